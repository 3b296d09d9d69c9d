"""Drafters in z-lab's format: held to a plain reimplementation, and refused where they do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from naive_dflash import NaiveDflash
from published import HEADS, KV_HEADS, MLP, SIZES, WIDTH, Change, Weights, changed, drawing, folder_of, rotary, without
from refusals import refused
from runs import CONTEXT_TOKENS, check_chain, pair

from benchctl.decoding.modules.folders import modules_sha256, trained_options
from benchctl.methods.dflash import Dflash
from benchctl.methods.dflash.published import read_published

MASK = 9
QWEN = {
    **SIZES,
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "num_target_layers": 4,
    "block_size": 8,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [2, 0]},
}


def random_weights(head_dim: int = 8, taps: int = 2, bias: bool = False) -> Weights:
    random = drawing()
    weights = {"fc.weight": random(WIDTH, taps * WIDTH)}
    norms = ["norm", "hidden_norm"]
    for layer in ("layers.0", "layers.1"):
        shapes = {"q": (HEADS * head_dim, WIDTH), "k": (KV_HEADS * head_dim, WIDTH), "v": (KV_HEADS * head_dim, WIDTH)}
        for name, shape in {**shapes, "o": (WIDTH, HEADS * head_dim)}.items():
            weights[f"{layer}.self_attn.{name}_proj.weight"] = random(*shape)
            if bias:
                weights[f"{layer}.self_attn.{name}_proj.bias"] = random(shape[0])
        for name in ("q_norm", "k_norm"):
            weights[f"{layer}.self_attn.{name}.weight"] = 1 + 0.3 * random(head_dim)
        for name, shape in {"gate": (MLP, WIDTH), "up": (MLP, WIDTH), "down": (WIDTH, MLP)}.items():
            weights[f"{layer}.mlp.{name}_proj.weight"] = random(*shape)
        norms += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
    return {**weights, **{f"{name}.weight": 1 + 0.3 * random(WIDTH) for name in norms}}


# Name -> weights, changes of the configuration, and how the plain reimplementation differs.
CASES: dict[str, tuple[Weights, dict[str, Any], dict[str, Any]]] = {
    "as published": (random_weights(), {}, {}),
    "taps by default": (random_weights(), {"dflash_config": {"mask_token_id": MASK}}, {"taps": (2, 2)}),
    "head_dim and bias": (random_weights(16, bias=True), {"head_dim": 16, "attention_bias": True}, {"head_dim": 16}),
    "windows": (
        random_weights(),
        {"sliding_window": 6, "layer_types": ["sliding_attention"] * 2},
        {"window": 6},
    ),
    "a window that is not used": (random_weights(), {"sliding_window": 6}, {}),
}


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_a_published_drafter_takes_the_steps_of_a_plain_reimplementation(name: str, tmp_path: Path) -> None:
    weights, changes, differs = CASES[name]
    models, folder = pair("llama"), folder_of(tmp_path, weights, {**QWEN, **changes})
    method = Dflash(modules=folder, draft_tokens=5, confidence=0.0)
    assert method.unsupported(models.target.info) is None
    wide = {key: weight.double() for key, weight in weights.items()}
    mask = models.naive.model.model.embed_tokens.weight[MASK]
    more = {"taps": (3, 1), "head_dim": 8, "eps": 1e-3, "context_tokens": CONTEXT_TOKENS, **differs}
    naive = NaiveDflash(models.naive, wide, mask=mask, rotary=rotary(head_dim=more["head_dim"]), **more)
    draft = naive.drafter(5, 0.0, block_tokens=7)
    check_chain(method, draft)
    assert len(modules_sha256(folder)) == 64


REFUSED: dict[str, tuple[Change, dict[str, Any], str, str]] = {
    "no norm": (without("norm.weight"), {}, "not_a_dflash_drafter", "norm.weight"),
    "no key norm": (without("layers.1.self_attn.k_norm.weight"), {}, "not_a_dflash_drafter", "k_norm"),
    "a third layer": (changed("layers.2.mlp.up_proj.weight", torch.ones(2, 2)), {}, "not_a_dflash_drafter", "layers.2"),
    "wrong shape": (changed("fc.weight", torch.ones(3, 2)), {}, "not_a_dflash_drafter", "fc.weight"),
    "wrong head_dim": (dict, {"head_dim": 4}, "not_a_dflash_drafter", "q_proj"),
    "mask token beyond": (dict, {"dflash_config": {"mask_token_id": 99}}, "not_a_dflash_drafter", "99"),
    "no mask token": (dict, {"dflash_config": {}}, "not_a_dflash_drafter", "mask"),
    "another kind": (dict, {"dflash_config": None}, "not_a_dflash_drafter", "dflash_config"),
    "activation": (dict, {"hidden_act": "sine"}, "not_a_dflash_drafter", "sine"),
    "no width": (dict, {"hidden_size": None}, "file_not_readable", "hidden_size"),
    "dynamic rope": (dict, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "unsupported_rope", "dynamic"),
    "another width": (dict, {"hidden_size": 64}, "modules_of_other_target", "64"),
    "another vocabulary": (dict, {"vocab_size": 99}, "modules_of_other_target", "99"),
    "another depth": (dict, {"num_target_layers": 36}, "modules_of_other_target", "36"),
    "a tap beyond": (
        dict,
        {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 3]}},
        "modules_of_other_target",
        "(1, 4)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_that_does_not_fit_is_refused_before_the_target_is_loaded(name: str, tmp_path: Path) -> None:
    change, config, error, fact = REFUSED[name]
    folder = folder_of(tmp_path, change(random_weights()), {**QWEN, **config})
    with refused(error, fact):
        Dflash(modules=folder).prepare(pair("llama").target)
    if error == "modules_of_other_target":
        assert fact in str(Dflash(modules=folder).unsupported(pair("llama").target.info))
    else:
        with refused(error, fact):
            Dflash(modules=folder).unsupported(pair("llama").target.info)


@pytest.mark.parametrize("options", [{"layers": 1}, {"markov": 4}, {"gamma": 7.0}, {"draft_vocabulary": "whole"}])
def test_options_without_effect_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    folder = folder_of(tmp_path, random_weights(), QWEN)
    with refused("options_of_training", *options):
        trained_options(Dflash(modules=folder, **options), "dflash", folder)
    trained_options(Dflash(modules=folder, draft_tokens=7, confidence=0.0), "dflash", folder)


def test_more_tokens_than_the_block_has_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, random_weights(), QWEN)
    with refused("trained_for_fewer", "draft_tokens=7"):
        trained_options(Dflash(modules=folder, draft_tokens=8), "dflash", folder)


def test_a_folder_without_weights_is_refused_and_one_without_a_configuration_is_none(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, random_weights(), QWEN)
    (tmp_path / "model.safetensors").unlink()
    with refused("not_a_dflash_drafter", "model.safetensors"):
        Dflash(modules=folder).prepare(pair("llama").target)
    assert read_published(str(tmp_path / "nothing")) is None
    assert read_published("") is None
