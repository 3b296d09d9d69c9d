"""Targets whose layers transformers runs: answers are those of generate, and rows can be taken back."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from refusals import refused
from tiny import tiny_folder, tiny_model
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import UsesDraftModel, check_trees
from benchctl.decoding.model.likelihood import likelihood
from benchctl.decoding.model.opaque import OpaqueTarget, check_opaque
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.measuring.run import model_store
from benchctl.measuring.weights import WeightGuard
from benchctl.registry import build

TINY: dict[str, Any] = {
    **{"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 5},
    **{"pad_token_id": 1, "initializer_range": 0.4},
}
TURNS = ["sliding_attention", "full_attention"] * 2
# One of each kind that our own layers do not know; windows of 16 and chunks of 64 end within the texts.
KINDS: dict[str, dict[str, Any]] = {
    "cohere2": {"sliding_window": 16, "layer_types": TURNS, "logit_scale": 0.25},
    "starcoder2": {"sliding_window": 16},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False, "bias": False},
    "stablelm": {"partial_rotary_factor": 0.25},
    "gemma3_text": {"sliding_window": 16, "head_dim": 8, "layer_types": ["full_attention"] * 4},  # no layer has it
    "bloom": {"n_layer": 4, "n_head": 4},
}
TREELESS = ("bloom",)  # it takes no mask of another shape
PROMPTS = ([7, 8, 9, 10, 11, 12, 13] * 5, list(range(20, 60)))
LABELS = (
    *("autoregressive", "prompt_lookup", "suffix", "two_model[confidence=0,draft_tokens=3]", "suffix[tree=true]"),
    *("draft_tree[nodes=6,confidence=0]", "token_recycling", "lookahead", "combine[when=union]"),
)


def random_model(kind: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{**TINY, **KINDS.get(kind, {}), **settings})
    return AutoModelForCausalLM.from_config(config).double().eval()  # type: ignore[no-untyped-call]


@cache
def model_and_draft(kind: str) -> tuple[Any, OpaqueTarget, OpaqueTarget]:
    """A random model, the same as a target, and one with weights that are a little different."""
    model, draft = random_model(kind), random_model(kind)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.mul_(1 + 0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return model, OpaqueTarget(model, None), OpaqueTarget(draft, None)


def generated(model: Any, prompt: list[int], tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    settings = {"max_new_tokens": tokens, "do_sample": False}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    return [int(token) for token in out[0, len(prompt) :]]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_generate_for_every_method_that_needs_no_layers(kind: str) -> None:
    model, target, draft = model_and_draft(kind)
    model.generation_config.eos_token_id = None
    truths = [generated(model, prompt, 30) for prompt in PROMPTS]
    accepted = 0
    for label in LABELS:
        method = build(label)
        if getattr(method, "drafts_trees", False) and kind in TREELESS:
            with refused("no_trees"):
                check_trees(method, target)
            continue
        for part in (method, *getattr(method, "parts", ())):
            if isinstance(part, UsesDraftModel):
                part.use_draft_model(draft)
        method.prepare(target)
        for prompt, truth in zip(PROMPTS, truths, strict=True):
            answer = decode(method, target, DecodeRequest(prompt, 30))
            assert list(answer.token_ids) == truth, label
            assert set(answer.layers) == {target.layers} == {4}
            accepted += sum(step.accepted for step in answer.steps)
    assert accepted > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_finds_which_models_run_trees(kind: str) -> None:
    assert model_and_draft(kind)[1].runs_trees == (kind not in TREELESS)


def test_chunks_of_attention_run_no_trees() -> None:
    """A tree behind the first chunk saw other rows than its branches alone; short texts did not show it."""
    settings = {"head_dim": 8, "intermediate_size_mlp": 64, "num_local_experts": 2, "attention_chunk_size": 64}
    model = random_model("llama4_text", **settings)
    model.set_experts_implementation("eager")
    target = OpaqueTarget(model, None)
    assert not target.runs_trees and target.config.attention_chunk_size == 64


def test_likelihoods_are_those_of_our_own_layers() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    whole, own = OpaqueTarget(model, None), Target(model, None)
    answer = [3, 4, 5] * 30  # more than one block of rows
    one, other = likelihood(whole, [7, 8, 9], answer), likelihood(own, [7, 8, 9], answer)
    assert one.agreed == other.agreed and one.logprob == pytest.approx(other.logprob, rel=1e-6)
    assert torch.allclose(whole.next_logits([7, 8], [9]), own.next_logits([7, 8], [9]), atol=1e-6)


def test_a_changed_weight_is_found() -> None:
    target = OpaqueTarget(random_model("stablelm"), None)
    guard = WeightGuard(target)
    decode(build("autoregressive"), target, DecodeRequest([7, 8, 9], 5))
    guard.check("plain decoding", sample=True)
    with torch.no_grad():
        next(target._model.parameters()).add_(1)
    with refused("weights_changed"):
        guard.check("somebody", sample=True)


@pytest.mark.parametrize(
    ("kind", "settings", "error"),
    [
        ("mamba2", {}, "recurrent_state"),
        ("qwen3_next", {}, "recurrent_state"),
        ("lfm2", {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}, "recurrent_state"),
        ("bart", {}, "unknown_family"),
        ("vit", {}, "unknown_family"),
    ],
)
def test_models_that_transformers_cannot_run_for_us_are_refused(
    kind: str, settings: dict[str, Any], error: str
) -> None:
    with refused(error, kind):
        check_opaque(CONFIG_MAPPING[kind](**settings))


def test_a_model_that_looks_ahead_is_refused() -> None:
    """BERT gives logits for each token, of a text whose end it has seen."""
    config = CONFIG_MAPPING["bert"](**{**TINY, "is_decoder": False})
    model = AutoModelForCausalLM.from_config(config).double()  # type: ignore[no-untyped-call]
    with refused("rows_not_taken_back", "bert"):
        OpaqueTarget(model, None)


def test_a_model_with_a_cache_of_its_own_is_refused() -> None:
    """DeepSeek's indexer ended in a traceback: it keeps keys that a plain cache has no place for."""
    sizes = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    more = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1}
    settings = {**sizes, **more, "num_key_value_heads": 4, "index_n_heads": 2, "index_head_dim": 8}
    model = random_model("glm_moe_dsa", **settings)
    model.set_experts_implementation("eager")
    with refused("rows_not_taken_back", "glm_moe_dsa", "cache of their own"):
        OpaqueTarget(model, None)


def test_the_cache_of_keys_and_values_of_different_widths_is_counted() -> None:
    """DeepSeek-V3 keeps 128 * (64 + 128 + 128) values for each layer and token; the estimate had 16,384."""
    info = TargetInfo.of(CONFIG_MAPPING["deepseek_v3"](), opaque=True)
    assert 2 * info.kv_size == 128 * (64 + 128 + 128)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_is_loaded_with_its_tokenizer_and_hash(tmp_path: Path, dtype: str) -> None:
    folder = tiny_folder(tmp_path / "model")
    whole, own = (model_store(dtype, "cpu", executor=name)(str(folder)) for name in ("transformers", "static"))
    assert whole.weights_sha256 == own.weights_sha256 and whole.stop_ids == own.stop_ids == {2}
    assert whole.parameters == own.parameters and whole.attention == "sdpa"
    assert str(whole.dtype) == f"torch.{dtype}"


def test_the_text_part_of_a_model_that_reads_images_answers_as_generate(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")  # for its tokenizer
    text = {**TINY, "vocab_size": 320, "head_dim": 8, "sliding_window": 16, "layer_types": TURNS}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    kind: Any = transformers.Gemma3ForConditionalGeneration
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vision_config": {**vision, "image_size": 28, "patch_size": 14},
        "mm_tokens_per_image": 4,
    }
    model = kind(transformers.Gemma3Config(text_config=text, **settings)).float().eval()
    model.generation_config = GenerationConfig(eos_token_id=[5])  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    with refused("unknown_family", "gemma3"):
        Target.load(folder)
    target = OpaqueTarget.load_whole(folder)
    answer = decode(build("prompt_lookup"), target, DecodeRequest(PROMPTS[0], 20))
    truth = kind.from_pretrained(folder).eval()
    ids = torch.tensor([PROMPTS[0]])
    out = truth.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    assert list(answer.token_ids) == out[0, len(PROMPTS[0]) :].tolist()
    assert target.info.layers == 4 and target.tokenizer.wrapper == "gemma3"
