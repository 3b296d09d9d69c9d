"""Layers as others publish them: three formats, held to a plain reimplementation, and refused where they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from naive_eagle import NaiveEagle
from published import HEADS, KV_HEADS, MLP, SIZES, WIDTH, Change, Weights, changed, drawing, folder_of, rotary, without
from refusals import refused
from runs import VOCABULARY, check_tree, pair, prompt_of
from safetensors.torch import save_file
from target_batches import saved
from test_dflash_published import QWEN
from test_dflash_published import random_weights as dflash_weights
from torch import Tensor
from untrained import untrained

from benchctl.decoding.drafting.grow import Frontier
from benchctl.decoding.modules import others
from benchctl.decoding.modules.folders import modules_sha256, trained_options
from benchctl.methods.dflash import Dflash
from benchctl.methods.eagle import Eagle
from benchctl.methods.eagle.published import read_published

IDS = torch.tensor([1, 2, 5, 6, 7, 9, 10, 13, 14, 17, 18, 21, 22])
LLAMA = {**SIZES, "model_type": "llama", "num_hidden_layers": 1, "hidden_act": "silu"}


def random_weights(fused: bool, head_dim: int = 8, extras: tuple[str, ...] = ()) -> Weights:
    """By the names of SafeAILab's version 3 and SpecForge, in float32; near the target, so that some drafts count."""
    target, random = pair("llama").target, drawing()
    inputs = 2 * WIDTH if fused else WIDTH
    fc = 0.1 * random(WIDTH, 3 * WIDTH if fused else 2 * WIDTH)
    fc[:, -WIDTH:] += torch.eye(WIDTH)
    weights = {"fc.weight": fc}
    for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        weights[f"midlayer.self_attn.{name}_proj.weight"] = random(rows * head_dim, inputs)
        if "qkv" in extras:
            weights[f"midlayer.self_attn.{name}_proj.bias"] = random(rows * head_dim)
        if "qk_norm" in extras and name != "v":
            weights[f"midlayer.self_attn.{name}_norm.weight"] = 1 + 0.3 * random(head_dim)
    weights["midlayer.self_attn.o_proj.weight"] = 0.3 * random(WIDTH, HEADS * head_dim)
    for name in ("gate", "up"):
        weights[f"midlayer.mlp.{name}_proj.weight"] = random(MLP, WIDTH)
    weights["midlayer.mlp.down_proj.weight"] = 0.3 * random(WIDTH, MLP)
    norms = ["midlayer.post_attention_layernorm"]
    if fused:
        norms += ["midlayer.hidden_norm", "midlayer.input_layernorm", "norm"]
        norms += [f"fc_norm.{tap}" for tap in range(3)] if "fc_norm" in extras else []
        weights["lm_head.weight"] = target.lm_head.weight.float() + 0.1 * random(VOCABULARY, WIDTH)
        if "subset" in extras:
            weights["lm_head.weight"] = weights["lm_head.weight"][IDS]
            weights["d2t"] = IDS - torch.arange(len(IDS))
            weights["t2d"] = torch.isin(torch.arange(VOCABULARY), IDS)
    else:
        weights["fc.bias"] = 0.1 * random(WIDTH)
    for name in norms:
        weights[f"{name}.weight"] = 1 + 0.3 * random(WIDTH)
    if "input_norm" in extras:
        weights["input_norm.weight"] = 1 + 0.3 * random(3 * WIDTH)
    return weights


def speculators_names(weights: Weights) -> Weights:
    return {name.replace("midlayer.", "layers.0."): weight for name, weight in weights.items()}


def speculators_config(**flags: Any) -> dict[str, Any]:
    return {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": VOCABULARY,
        "transformer_layer_config": {**LLAMA, "head_dim": 8},
        **flags,
    }


def eagle3(**more: Any) -> dict[str, Any]:
    return {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VOCABULARY, **LLAMA, **more}


# Name -> extras of the weights, configuration, head_dim, and how the plain reimplementation differs.
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any], int, dict[str, Any]]] = {
    "eagle": ((), {**LLAMA}, 8, {"taps": ()}),
    "eagle, qkv bias, pickled": (("qkv", ".bin"), {**LLAMA, "qkv_bias": True}, 8, {"taps": ()}),
    "eagle3": (("subset",), eagle3(draft_vocab_size=len(IDS)), 8, {"ids": IDS}),
    "eagle3, whole vocabulary": ((), eagle3(), 8, {}),
    "eagle3, head_dim": (("subset",), eagle3(draft_vocab_size=len(IDS), head_dim=16), 16, {"ids": IDS, "head_dim": 16}),
    "specforge, layers": (
        (),
        eagle3(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}),
        8,
        {"taps": (1, 2, 4)},
    ),
    "specforge, tap norms": (("fc_norm",), eagle3(fc_norm=True, norm_output=True), 8, {}),
    "specforge, bare head": ((), eagle3(norm_output=False), 8, {"bare_head": True}),
    "specforge, rope": (
        (),
        eagle3(rope_scaling={"type": "linear", "factor": 4.0}),
        8,
        {"rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}},
    ),
    "speculators": (("speculators", "subset"), speculators_config(draft_vocab_size=len(IDS)), 8, {"ids": IDS}),
    "speculators, layers": (
        ("speculators",),
        speculators_config(eagle_aux_hidden_state_layer_ids=[3, 0, 2]),
        8,
        {"taps": (3, 0, 2)},
    ),
    "speculators, fed back normed": (
        ("speculators", "fc_norm"),
        speculators_config(norm_output=True, fc_norm=True),
        8,
        {"feeds_normed": True},
    ),
    "speculators, normed before": (
        ("speculators", "input_norm", "qkv"),
        speculators_config(norm_before_fc=True, norm_before_residual=True),
        8,
        {"norms_residual": True},
    ),
    "speculators, qwen3": (
        ("speculators", "qk_norm"),
        speculators_config(transformer_layer_config={**LLAMA, "model_type": "qwen3", "head_dim": 8}),
        8,
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_a_published_layer_takes_the_steps_of_a_plain_reimplementation(name: str, tmp_path: Path) -> None:
    extras, config, head_dim, differs = CASES[name]
    models, first = pair("llama"), differs.get("taps") == ()
    weights = random_weights(not first, head_dim, extras)
    named = speculators_names(weights) if first or "speculators" in extras else weights
    folder = folder_of(tmp_path, named, config, "pytorch_model.bin" if ".bin" in extras else "model.safetensors")
    version: Any = "1" if first else "3.1" if "feeds_normed" in differs else "3"
    method = Eagle(modules=folder, version=version, width=3, nodes=7, confidence=0.0)
    assert method.published(folder) == {"version": version}
    assert method.unsupported(models.target.info) is None
    more = dict(differs)
    rotations = rotary(head_dim=head_dim, **more.pop("rope", {}))
    settings = {"taps": (1, 2, 3), "eps": 1e-3, "head_dim": 8, "rotary": rotations, **more}
    wide = {key: weight.double() for key, weight in weights.items() if key not in ("d2t", "t2d")}
    naive = NaiveEagle(models.naive, wide, **settings)
    draft = naive.dynamic(3, 4, 7)
    check_tree(method, draft)
    assert len(modules_sha256(folder)) == 64


@torch.inference_mode()
def test_our_modules_under_published_names_are_the_same_drafter(tmp_path: Path) -> None:
    models = pair("llama")
    module = untrained(Eagle(), models.target)
    sizes = {"intermediate_size": 48, "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
    published = Eagle(modules=folder_of(tmp_path / "published", dict(module.state_dict()), eagle3(**sizes)))
    states, logits = models.naive.states(prompt_of(13)), list[Tensor]()
    for method in (saved("eagle", Eagle(), module, models, tmp_path / "own"), published):
        method.prepare(models.target)
        method._drafter.start(20)
        method._drafter.read([states[tap][:12] for tap in method._drafter.taps], prompt_of(13)[1:])
        logits.append(method._drafter(Frontier()))
    assert torch.equal(*logits)


@torch.inference_mode()
def test_the_embedding_of_a_folder_is_used(tmp_path: Path) -> None:
    """Most folders hold the target's once more; some were trained."""
    models, weights, logits = pair("llama"), random_weights(True), list[Tensor]()
    theirs, states = models.target.embedding.float(), models.naive.states(prompt_of(13))
    for place, embedding in enumerate((None, theirs, theirs.flip(0))):
        more = {} if embedding is None else {"embed_tokens.weight": embedding.contiguous()}
        method = Eagle(modules=folder_of(tmp_path / str(place), {**weights, **more}, eagle3()))
        method.prepare(models.target)
        drafter = method._drafter
        drafter.start(20)
        drafter.read([states[tap][:12] for tap in drafter.taps], prompt_of(13)[1:])
        logits.append(drafter(Frontier()))
    assert (logits[0] - logits[1]).abs().max() < 1e-5 < 1e-3 < (logits[0] - logits[2]).abs().max()


SUBSET = eagle3(draft_vocab_size=len(IDS))
REFUSED: dict[str, tuple[Change, dict[str, Any], str, str]] = {
    "no d2t": (without("d2t"), SUBSET, "not_an_eagle_layer", "d2t"),
    "d2t of zeros": (changed("d2t", torch.zeros(len(IDS), dtype=torch.int64)), SUBSET, "not_an_eagle_layer", "d2t"),
    "d2t too long": (changed("d2t", torch.zeros(20, dtype=torch.int64)), SUBSET, "not_an_eagle_layer", "d2t"),
    "d2t beyond": (changed("d2t", IDS + VOCABULARY), SUBSET, "not_an_eagle_layer", "d2t"),
    "d2t of a whole head": (changed("d2t", torch.arange(VOCABULARY).flip(0)), eagle3(), "not_an_eagle_layer", "d2t"),
    "no norms of taps": (dict, {**SUBSET, "fc_norm": True}, "not_an_eagle_layer", "fc_norm"),
    "norms of taps unsaid": (changed("fc_norm.0.weight", torch.ones(WIDTH)), SUBSET, "not_an_eagle_layer", "fc_norm"),
    "no norm before fc": (
        speculators_names,
        speculators_config(draft_vocab_size=len(IDS), norm_before_fc=True),
        "not_an_eagle_layer",
        "input_norm",
    ),
    "fewer draft tokens": (dict, {**SUBSET, "draft_vocab_size": 7}, "not_an_eagle_layer", "lm_head"),
    "draft tokens unsaid": (dict, {**SUBSET, "draft_vocab_size": None}, "file_not_readable", "draft_vocab_size"),
    "no lm_head": (without("lm_head.weight"), SUBSET, "not_an_eagle_layer", "lm_head"),
    "no norm": (without("norm.weight"), SUBSET, "not_an_eagle_layer", "norm.weight"),
    "no query": (without("midlayer.self_attn.q_proj.weight"), SUBSET, "not_an_eagle_layer", "q_proj"),
    "two layers": (changed("layers.1.mlp.up_proj.weight", torch.ones(2, 2)), SUBSET, "not_an_eagle_layer", "layers.1"),
    "wrong width of a part": (changed("norm.weight", torch.ones(7)), SUBSET, "not_an_eagle_layer", "[7]"),
    "wrong embedding": (changed("embed_tokens.weight", torch.ones(3, 2)), SUBSET, "not_an_eagle_layer", "[3, 2]"),
    "wrong head_dim": (dict, {**SUBSET, "head_dim": 4}, "not_an_eagle_layer", "q_proj"),
    "another width": (dict, {**SUBSET, "hidden_size": 64}, "modules_of_other_target", "64"),
    "another vocabulary": (dict, {**SUBSET, "vocab_size": 99}, "modules_of_other_target", "99"),
    "another target width": (dict, {**SUBSET, "target_hidden_size": 48}, "modules_of_other_target", "width"),
    "layers beyond": (
        dict,
        {**SUBSET, "eagle_aux_hidden_state_layer_ids": [1, 2, 9]},
        "modules_of_other_target",
        "9",
    ),
    "dynamic rope": (
        dict,
        {**SUBSET, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        "unsupported_rope",
        "dynamic",
    ),
    "activation": (dict, {**SUBSET, "hidden_act": "sine"}, "not_an_eagle_layer", "sine"),
    "no width in the configuration": (dict, {"draft_vocab_size": 3}, "file_not_readable", "hidden_size"),
    "another speculator": (dict, {"speculators_model_type": "mlp"}, "not_an_eagle_layer", "mlp"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_that_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    change, config, error, fact = REFUSED[name]
    extras = () if config.get("draft_vocab_size") == VOCABULARY else ("subset",)
    folder = folder_of(tmp_path, change(random_weights(True, extras=extras)), config)
    with refused(error, fact):
        Eagle(modules=folder).prepare(pair("llama").target)
    if error == "modules_of_other_target":
        assert fact in str(Eagle(modules=folder).unsupported(pair("llama").target.info))
    else:
        with refused(error, fact):  # before the target is loaded
            Eagle(modules=folder).unsupported(pair("llama").target.info)


def test_a_missing_bias_is_noticed_unless_the_configuration_says_so(tmp_path: Path) -> None:
    weights = speculators_names(without("fc.bias")(random_weights(False)))
    with refused("not_an_eagle_layer", "fc.bias"):
        Eagle(modules=folder_of(tmp_path / "1", weights, LLAMA), version="1").prepare(pair("llama").target)
    Eagle(modules=folder_of(tmp_path / "2", weights, {**LLAMA, "bias": False}), version="1").prepare(
        pair("llama").target
    )


def test_of_another_target_or_version_before_weights_are_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, random_weights(True), eagle3())
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    info = replace(pair("llama").target.info, hidden_size=48)
    method = Eagle(modules=folder)
    assert str(method.unsupported(info)).count("48") == 1
    with refused("trained_with_other_option", "version=3"):
        Eagle(modules=folder, version="1").prepare(pair("llama").target)
    with refused("file_not_readable", "model.safetensors"):
        method.unsupported(pair("llama").target.info)
    with refused("file_not_readable", "model.safetensors"):
        method.prepare(pair("llama").target)


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("3", {"passes": 5}),
        ("1", {"draft_vocabulary": "whole"}),
        ("1", {"objective": "hass"}),
    ],
)
def test_options_of_training_are_refused_with_a_published_layer(
    version: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    fused = version == "3"
    weights = random_weights(fused)
    folder = folder_of(tmp_path, weights if fused else speculators_names(weights), eagle3() if fused else LLAMA)
    with refused("options_of_training", next(reversed(options))):
        trained_options(Eagle(modules=folder, version=version, **options), "eagle", folder)
    trained_options(Eagle(modules=folder, version=version), "eagle", folder)


@pytest.mark.parametrize(
    ("method", "options", "weights", "config"),
    [
        (Eagle(modules="someone/a-layer"), {"version": "3"}, lambda: random_weights(True), eagle3()),
        (Dflash(modules="someone/a-drafter"), {"draft_tokens": 7}, dflash_weights, QWEN),
    ],
    ids=["eagle", "dflash"],
)
def test_weights_of_a_hub_id_are_downloaded_only_where_its_configuration_fits(
    method: Any,
    options: dict[str, Any],
    weights: Callable[[], Weights],
    config: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder_of(tmp_path, weights(), config)
    asked, info = list[str](), pair("llama").target.info

    def download(place: str, name: str) -> Path:
        asked.append(name)
        return tmp_path / name

    monkeypatch.setattr(others, "downloaded_file", download)
    assert method.published(method.modules) == options
    assert method.unsupported(replace(info, hidden_size=48)) is not None
    assert asked == ["config.json"]
    method.prepare(pair("llama").target)
    assert asked.count("config.json") <= 2 and asked[-1] == "model.safetensors"


def test_the_hash_is_of_the_weights_that_are_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, random_weights(True), eagle3())
    before = modules_sha256(folder)
    (tmp_path / "optimizer.pt").write_bytes(b"more")
    (tmp_path / "pytorch_model.bin").write_bytes(b"not read where there is the other")
    assert modules_sha256(folder) == before
    save_file({"changed": torch.ones(1)}, tmp_path / "model.safetensors")
    assert modules_sha256(folder) != before
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").unlink()
    with refused("no_modules_folder", "model.safetensors"):
        modules_sha256(folder)
    with refused("not_an_eagle_layer", "model.safetensors"):
        Eagle(modules=folder).prepare(pair("llama").target)


def test_a_folder_without_such_a_layer_is_none(tmp_path: Path) -> None:
    assert read_published(str(tmp_path)) is None
    assert read_published("") is None
