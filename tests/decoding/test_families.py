"""The hand-written forward against transformers' own; no model loads where the two differ."""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from refusals import refused
from tiny import FAMILIES, VARIANTS, tiny_config, tiny_folder, tiny_model, tiny_target
from torch import Tensor
from transformers import AutoModelForCausalLM, BloomConfig
from transformers.models.glm4 import modeling_glm4

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model import layers
from benchctl.decoding.model.families import check_family, family, family_of
from benchctl.decoding.model.families.family import Family, Parts
from benchctl.decoding.model.footprint import read_bytes
from benchctl.decoding.model.layers import Attention, Experts, Layer, Mlp, weigh
from benchctl.decoding.model.target import Target, TargetInfo, outline

IDS = torch.randint(0, 96, (40,), generator=torch.Generator().manual_seed(7)).tolist()
# Windows of 6 end long before 40; parts of more than 16 rows take the fused attention, the others the batched products.
PARTS = {
    "one pass": (40,),
    "token by token": (1,) * 40,
    "several rows after a cached prefix": (20, 5, 15),
    "many rows after a cached prefix": (3, 17, 20),
}


def _norm_float64(self: Any, x: Tensor) -> Tensor:
    eps = self.eps if hasattr(self, "eps") else self.variance_epsilon
    gain = 1.0 + self.weight if type(self).__name__.startswith("Gemma") else self.weight
    return cast(Tensor, x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gain)


def _route_float64(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    router_logits = F.linear(x.reshape(-1, self.hidden_dim), self.weight)
    weights, experts = router_logits.softmax(-1).topk(self.top_k, dim=-1)
    if getattr(self, "norm_topk_prob", True):
        weights = weights / weights.sum(-1, keepdim=True)
    return router_logits, weights, experts


def _attend_float64(
    module: Any,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scaling: float,
    softcap: float | None,
    **_: Any,
) -> tuple[Tensor, None]:
    keys, values = (part.repeat_interleave(module.num_key_value_groups, 1) for part in (keys, values))
    scores = queries @ keys.mT * scaling
    scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
    return ((scores + mask).softmax(-1) @ values).transpose(1, 2), None


def _with_globals(module: Any, **others: Any) -> None:
    """Let the module's forward call these functions in place of those of its file."""
    forward = type(module).forward
    function = FunctionType(
        forward.__code__, {**forward.__globals__, **others}, None, forward.__defaults__, forward.__closure__
    )
    function.__kwdefaults__ = forward.__kwdefaults__
    module.forward = MethodType(function, module)


def float64_throughout(model: Any) -> Any:
    """transformers keeps norms, routers and Gemma's scale in float32 whatever the dtype of the model; not here.

    So it does with the rotation of ERNIE, which is GLM's, and with the softmax of Gemma 2.
    """
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(_norm_float64, module)
        if type(module).__name__.endswith("TopKRouter") and not hasattr(
            module, "bias"
        ):  # gpt-oss: in the model's dtype
            module.forward = MethodType(_route_float64, module)
        if hasattr(module, "embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float64)
        if type(module).__name__ == "Ernie4_5Attention":
            _with_globals(module, apply_rotary_pos_emb=modeling_glm4.apply_rotary_pos_emb)
        if type(module).__name__ == "Gemma2Attention":
            _with_globals(module, eager_attention_forward=_attend_float64)
    return model


@torch.inference_mode()
def theirs(model: Any, ids: list[int]) -> Tensor:
    return cast(Tensor, model(torch.tensor([ids])).logits[0])


@torch.inference_mode()
def ours(target: Target, ids: list[int], parts: tuple[int, ...]) -> Tensor:
    stream = Stream(target, len(ids))
    logits = []
    for start, count in zip([sum(parts[:n]) for n in range(len(parts))], parts, strict=True):
        stream.push(ids[start : start + count])
        stream.advance()
        logits.append(stream.logits())
        stream.keep(range(count))
    return torch.cat(logits)


@cache
def exact(variant: str) -> tuple[Target, Tensor]:
    """A target, and the logits of transformers for IDS in float64 from the first product to the last."""
    model = tiny_model(variant, dtype=torch.float64)
    return Target(model, None), theirs(float64_throughout(model), IDS)


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS.keys())
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers_however_the_rows_are_fed(variant: str, parts: tuple[int, ...]) -> None:
    target, their_logits = exact(variant)
    torch.testing.assert_close(ours(target, IDS, parts), their_logits, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_untouched_transformers_up_to_its_float32_norms(variant: str) -> None:
    model = tiny_model(variant, seed=1, dtype=torch.float64)
    torch.testing.assert_close(ours(Target(model, None), IDS, (40,)), theirs(model, IDS), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_kernels_give_the_same_logits(variant: str) -> None:
    model = tiny_model(variant, seed=2)
    their_logits = theirs(model, IDS)
    for parts in (PARTS["one pass"], PARTS["several rows after a cached prefix"], PARTS["token by token"]):
        torch.testing.assert_close(ours(Target(model, None), IDS, parts), their_logits, rtol=1e-4, atol=5e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_layer_is_freed_as_soon_as_it_is_read(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model and joined copies of all its layers took 25 GB on a GPU for weights of 16."""
    model, alive = tiny_model(variant), list[int]()
    their_logits, parameters = theirs(model, IDS), sum(p.numel() for p in model.parameters())
    family = family_of(model.config)
    layers = [weakref.ref(layer) for layer in family.stack(model)]
    kind = type(family)
    read_layer = kind.read_layer

    def counting(*arguments: Any) -> Layer:
        alive.append(sum(layer() is not None for layer in layers))
        return read_layer(*arguments)

    monkeypatch.setattr(kind, "read_layer", counting)
    target = Target(model, None, release=True)
    assert alive == [3, 2, 1] and not any(layer() for layer in layers)
    assert target.parameters == parameters
    torch.testing.assert_close(ours(target, IDS, (40,)), their_logits, rtol=1e-4, atol=5e-4)


def test_a_model_that_is_used_further_keeps_its_layers() -> None:
    model = tiny_model("llama")
    their_logits = theirs(model, IDS)
    Target(model, None)
    assert torch.equal(theirs(model, IDS), their_logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_no_further_from_the_truth_than_transformers_is(family: str) -> None:
    """Gemma's gain 1 + w, once rounded to bfloat16, made the typical error 1.2 to 1.3 times that of transformers.

    Rounding differs, so nothing is equal here; medians, since an expert chosen differently is far off in either.
    """
    assert statistics.median(_error_ratio(family, seed) for seed in range(3, 9)) < 1.12


def _error_ratio(family: str, seed: int) -> float:
    model = tiny_model(family, seed=seed, dtype=torch.bfloat16)
    our_logits, their_logits = ours(Target(model, None), IDS, (40,)), theirs(model, IDS)
    assert our_logits.dtype == torch.bfloat16
    truth = theirs(float64_throughout(model.to(torch.float64)), IDS)
    our_error, their_error = ((x - truth).square().mean(-1).sqrt().median() for x in (our_logits, their_logits))
    return float(our_error / their_error)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_models_are_varied_enough_to_show_a_wrong_forward(family: str) -> None:
    target, their_logits = exact(family)
    best = their_logits.topk(2).values
    assert len(set(their_logits.argmax(-1).tolist())) > 10
    assert (best[:, 0] - best[:, 1]).median() > 0.2


ALL_WINDOWS = [*(v for v in VARIANTS if v.endswith("window")), "olmo3", "gemma2", "gemma3_text", "gpt_oss"]


@pytest.mark.parametrize("variant", ALL_WINDOWS)
def test_windows_matter_in_these_models(variant: str) -> None:
    windowless = tiny_model(variant, dtype=torch.float64, sliding_window=None)
    target, their_logits = exact(variant)
    full = ours(Target(windowless, None), IDS, (40,))
    assert torch.allclose(full[:6], their_logits[:6], atol=1e-10)
    assert not torch.allclose(full[6:], their_logits[6:], atol=0.1)


@pytest.mark.parametrize("variant", ["gpt_oss", "gpt_oss_biasless"])
def test_sinks_matter_in_these_models(variant: str) -> None:
    target, their_logits = exact(variant)
    blocks = [replace(block, attention=replace(block.attention, sinks=None)) for block in target.blocks]
    for parts in PARTS.values():
        without = ours(target.with_blocks(blocks), IDS, parts)
        assert not torch.allclose(without, their_logits, atol=0.1)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("variant", ["gpt_oss", "gpt_oss_biasless"])
def test_rows_of_a_long_prompt_attend_a_few_at_a_time(variant: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of 4,096 tokens has 64 heads * 4,096 * 4,096 scores: 4 GB in float32, if they are held at once."""
    target, their_logits = exact(variant)
    seen = list[int]()

    def counting(attention: Attention, queries: Tensor, *others: Any) -> Tensor:
        seen.append(queries.shape[0] * queries.shape[1])
        return weigh(attention, queries, *others)

    monkeypatch.setattr(layers, "_MOST_SCORES", rows * 4 * 40)
    monkeypatch.setattr(layers, "weigh", counting)
    torch.testing.assert_close(ours(target, IDS, (40,)), their_logits, rtol=0.0, atol=1e-10)
    assert max(seen) == rows * 4 and sum(seen) == 3 * 40 * 4


def test_longrope_is_used_within_its_original_context() -> None:
    model = tiny_model("phi3_longrope", dtype=torch.float64)
    target = Target(model, None)
    ids = (IDS + IDS)[:64]
    assert target.context_tokens == 64
    torch.testing.assert_close(ours(target, ids, (64,)), theirs(model, ids), rtol=1e-5, atol=1e-5)


PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
SCALED = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"layers": 1}),
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 1}),
        ("llama", {"hidden_act": "gelu"}),
        *(("llama", {"rope_parameters": {"rope_type": kind, **SCALED}}) for kind in ("linear", "yarn")),
        # The width that is rotated was read from the configuration; only Phi-3 heeds that field.
        *((family, {"rope_parameters": PARTIAL}) for family in FAMILIES if family != "phi3"),
    ],
    ids=str,
)
def test_other_settings_have_the_logits_of_transformers_too(family: str, settings: dict[str, Any]) -> None:
    model = tiny_model(family, dtype=torch.float64, **settings)
    their_logits = theirs(float64_throughout(model), IDS)
    torch.testing.assert_close(ours(Target(model, None), IDS, (30, 10)), their_logits, rtol=0.0, atol=1e-10)


# Fields of other families, which transformers keeps and the models of these do not heed.
STRAY: tuple[tuple[str, dict[str, Any]], ...] = (
    ("qwen2", {"num_experts": 4, "num_experts_per_tok": 2}),
    ("llama", {"num_experts": 4}),
    ("llama", {"num_decoder_layers": 7, "d_ff": 9}),
)


@pytest.mark.parametrize(("family", "stray"), [*((family, {}) for family in VARIANTS), *STRAY], ids=str)
def test_the_configuration_alone_tells_what_the_weights_are(family: str, stray: dict[str, Any]) -> None:
    """Methods are asked whether they can run on a target before its weights are read."""
    target, facts = tiny_target(family, **stray), TargetInfo.of(tiny_config(family, **stray))
    attention = target.blocks[0].attention
    chosen = {block.mlp.top_k for block in target.blocks if isinstance(block.mlp, Experts)}
    widths = {0 if isinstance(block.mlp, Experts) else block.mlp.down.in_features for block in target.blocks}
    assert (facts.family, facts.is_encoder_decoder) == (target.config.model_type, False)
    assert (facts.layers, facts.context_tokens) == (len(target.blocks), target.rotary.shape[0])
    assert (facts.vocabulary, facts.hidden_size) == target.lm_head.weight.shape
    assert facts.query_size == attention.heads * attention.head_dim
    assert facts.kv_size == attention.kv_heads * attention.head_dim
    assert facts.mlp_size == min(widths)
    assert facts.experts_per_token == max(chosen, default=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_outline_of_a_model_has_its_sizes(variant: str) -> None:
    """Memory and traffic are estimated before weights are read."""
    outlined, target = outline(tiny_config(variant)), tiny_target(variant, dtype=torch.float32)
    assert outlined.parameters == target.parameters
    read = sum(map(read_bytes, outlined.blocks))
    assert read == sum(map(read_bytes, target.blocks))
    has_all = variant != "opt_bare"  # its norms have no weights, and ours read ones and zeros
    if has_all and TargetInfo.of(target.config).experts_per_token == 0:
        model = tiny_model(variant)
        assert read == 4 * sum(p.numel() for p in family_of(model.config).stack(model).parameters())


DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
DYNAMIC_FULL = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": DYNAMIC_ROPE,
}


@pytest.mark.parametrize(
    ("config", "error", "fact"),
    [
        (tiny_config("gemma", use_bidirectional_attention=True), "unsupported_attention", ""),
        (BloomConfig(), "unknown_family", "bloom"),
        (tiny_config("opt", do_layer_norm_before=False), "unsupported_opt", "do_layer_norm_before"),
        (tiny_config("opt", word_embed_proj_dim=16), "unsupported_opt", "word_embed_proj_dim 16"),
        (tiny_config("opt", _remove_final_layer_norm=True), "unsupported_opt", "_remove_final_layer_norm"),
        (tiny_config("llama", hidden_act="mish"), "unsupported_activation", "mish"),
        # Its keys change with the length of the text.
        (tiny_config("llama", rope_parameters=DYNAMIC_ROPE), "unsupported_rope", "dynamic"),
        (tiny_config("olmo3", rope_parameters=DYNAMIC_FULL), "unsupported_rope", "dynamic"),
    ],
)
def test_a_variant_that_is_not_reproduced_is_refused(config: Any, error: str, fact: str) -> None:
    with refused(error, fact):
        check_family(config)


def test_unsupported_folder_is_refused_before_its_weights_are_loaded(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    BloomConfig(n_layer=1).save_pretrained(folder)
    with refused("unknown_family", "bloom"):
        Target.load(folder)


WIDE_IDS = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(7)).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_in_every_dtype(family: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, family)
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        logits = Target.load(folder, dtype=dtype).next_logits([1, 7])
        assert logits.isfinite().all() and logits.dtype == getattr(torch, dtype)


def _rescaled(scale: float) -> Callable[..., Attention]:
    return lambda **parts: Attention(**{**parts, "scale": scale * parts["scale"]})


_READ = Family.read


def _louder(*arguments: Any) -> Parts:
    parts = _READ(*arguments)
    parts.final_norm.gain = 1.02 * parts.final_norm.gain
    return parts


def _against_time(*arguments: Any) -> Parts:
    parts = _READ(*arguments)
    return replace(parts, rotary=parts.rotary.conj().resolve_conj())


MISTAKES = {
    "queries scaled by a tenth too much": (family, "Attention", _rescaled(1.1)),
    "final norm two in a hundred too loud": (Family, "read", _louder),
    "rotations the other way round": (Family, "read", _against_time),
    "another activation": (family, "Mlp", lambda gate_up, down, act: Mlp(gate_up, down, torch.relu)),
}


@pytest.mark.parametrize(("module", "name", "mistake"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_forward_that_differs_is_refused(
    module: Any, name: str, mistake: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, mistake)
    for dtype in ("float32", "float64"):
        with refused("logits_differ", "'llama'"):
            Target.load(folder, dtype=dtype)


@pytest.mark.parametrize("mistake", ["rotations the other way round", "another activation"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_part_read_wrongly_is_seen_through_the_rounding_of_half_precision(
    dtype: str, mistake: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    with refused("logits_differ", "'llama'"):
        Target.load(folder, dtype=dtype)


def _change(folder: Path, change: Callable[[Any], None]) -> Path:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        change(model.model)
    model.save_pretrained(folder)
    return folder


def test_a_model_that_overflows_the_dtype_is_refused_in_it_alone(tmp_path: Path) -> None:
    folder = _change(tiny_folder(tmp_path), lambda model: model.norm.weight.mul_(1e5))
    with refused("logits_differ", "float16", "--dtype"):
        Target.load(folder, dtype="float16")
    for dtype in ("float32", "bfloat16"):
        assert Target.load(folder, dtype=dtype).next_logits([1, 7]).isfinite().all()


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    folder = _change(tiny_folder(tmp_path), lambda model: model.layers[1].mlp.down_proj.weight[0, 0].fill_(torch.nan))
    with refused("logits_differ", "by nan"):
        Target.load(folder)


@torch.inference_mode()
def test_a_window_in_a_llama_configuration_is_ignored_as_transformers_ignores_it(tmp_path: Path) -> None:
    window: dict[str, Any] = {"layer_types": ["sliding_attention"] * 3, "sliding_window": 6, "use_sliding_window": True}
    folder = tiny_folder(tmp_path, **window)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.config.sliding_window == 6
    their_logits = model(torch.tensor([WIDE_IDS])).logits[0, -1]
    torch.testing.assert_close(Target.load(folder).next_logits(WIDE_IDS), their_logits, rtol=0.0, atol=5e-4)
