"""M2R2: the accelerated stream is what its definition says, leaves no trace, and proposes what it should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from oracles import replay_tree
from runs import CONTEXT_TOKENS, LAYERS, NEW_TOKENS, Pair, answer, pair, prepared, prompt_of, rounds_of
from tiny import tiny_model
from torch import Tensor
from two_streams import accelerated_states, beam_drafter, guess
from untrained import facts_of, untrained

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Context, Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.trainable import save_modules
from benchctl.decoding.sampling import Sampling
from benchctl.errors import UserError
from benchctl.methods.m2r2 import M2R2, draft_beam, draft_chain
from benchctl.methods.m2r2.gates import Interval, default_gates
from benchctl.methods.m2r2.training import TwoStreams
from benchctl.registry import build

MODELS = (("llama", 0), ("qwen3", 2), ("mistral_window", 4), ("llama_biases", 1))
KINDS = ("lora", "bottleneck", "hybrid")


def streams_of(method: M2R2, target: Target) -> TwoStreams:
    module = untrained(method, target).double().requires_grad_(False)
    assert isinstance(module, TwoStreams)
    return module


def accompanied(target: Target, module: TwoStreams, interval: Interval, stream: Stream, rows: int) -> list[Tensor]:
    trail: list[Tensor] = module.run(interval, target.blocks)(stream, rows)
    return trail


def _generate(method: Method, models: Pair, prompt: list[int], limit: int = NEW_TOKENS) -> Generation:
    return decode(method, models.target, DecodeRequest(prompt, limit))


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("family", "seed"), MODELS)
def test_accelerated_states_are_those_of_the_definition(family: str, seed: int, kind: str) -> None:
    """Of the last of several rows, of a row of its own, and of each end of a tree's branches."""
    models, method = pair(family, seed), M2R2(gates="1+3", adapters=kind, rank=5, alpha=7.0)
    module, text = streams_of(method, models.target), prompt_of(13)
    for interval in module.intervals:
        stream = Stream(models.target, 40)
        stream.push(text)
        trail = torch.cat(accompanied(models.target, module, interval, stream, 1))
        expected = accelerated_states(models.naive, module, text, interval.first, interval.gate)
        torch.testing.assert_close(trail, expected, rtol=1e-9, atol=1e-9)
        stream.push([5, 9], [12, 12])
        trail_of_branches = torch.stack(accompanied(models.target, module, interval, stream, 2), 1)
        for got, token in zip(trail_of_branches, (5, 9), strict=True):
            expected = accelerated_states(models.naive, module, [*text, token], interval.first, interval.gate)
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_the_accelerated_stream_leaves_no_trace_in_the_slow_one(family: str) -> None:
    """States and cache are those of a pass without it, whatever its adapters do."""
    models = pair(family)
    module = streams_of(M2R2(gates="1+3"), models.target)
    alone, beside = Stream(models.target, 40), Stream(models.target, 40)
    for tokens in (prompt_of(13), [4], [7]):
        alone.push(tokens)
        alone.advance(3)
        beside.push(tokens)
        for interval in module.intervals:
            accompanied(models.target, module, interval, beside, 1)
    assert beside.cache.lengths == alone.cache.lengths == [15, 15, 15, 0]
    torch.testing.assert_close(beside.states, alone.states, rtol=1e-12, atol=1e-12)
    for one, other in zip(beside.cache.kv[:3], alone.cache.kv[:3], strict=True):
        torch.testing.assert_close(one[:, :15], other[:, :15], rtol=1e-12, atol=1e-12)


@torch.inference_mode()
def test_fresh_lora_adapters_leave_the_accelerated_state_the_slow_one() -> None:
    """B = 0: p = h at every layer. Other adapters start as no change at all: p stays what it was at the gate below."""
    models = pair("llama")
    for kind in KINDS:
        method = M2R2(gates="3", adapters=kind)
        module = method.build(models.target.info, models.target.lm_head.weight).double()
        assert isinstance(module, TwoStreams)
        stream = Stream(models.target, 40)
        stream.push(prompt_of(13))
        trail = accompanied(models.target, module, module.intervals[0], stream, 1)
        slow = models.naive.states(prompt_of(13))
        if kind == "lora":
            torch.testing.assert_close(torch.cat(trail), slow[:4, -1], rtol=1e-9, atol=1e-9)
        if kind == "bottleneck":
            assert all(torch.equal(state, trail[0]) for state in trail)


def test_rows_that_have_run_the_layers_cannot_be_accompanied() -> None:
    models = pair("llama")
    module = streams_of(M2R2(gates="2"), models.target)
    stream = Stream(models.target, 40)
    stream.push([5, 6])
    with torch.inference_mode():
        stream.advance(1)
        with pytest.raises(ValueError, match="layers 0 to 2 do not lack exactly the rows from 2 to 2"):
            accompanied(models.target, module, module.intervals[0], stream, 1)


@torch.inference_mode()
def test_layers_whose_absent_rows_differ_cannot_share_a_mask_with_the_deferred_one() -> None:
    """Lost in a rewrite: the mask of the first layer also served the last one, from which other rows were absent."""
    models = pair("llama")
    module = untrained(M2R2(gates="2"), models.target)
    assert isinstance(module, TwoStreams)
    stream = Stream(models.target, CONTEXT_TOKENS)
    stream.push([3, 4])
    stream.advance(1)
    stream.pass_by(1, 2)  # both rows are absent from the second layer only
    stream.advance()
    stream.keep(range(2))
    stream.push([5])
    with pytest.raises(ValueError, match="layers 0 to 2"):
        module.run(module.intervals[0], models.target.blocks, defers_last=True)(stream, 1)
    assert stream.cache.lengths[:2] == [2, 2]


@torch.inference_mode()
@pytest.mark.parametrize("gates", ["1", "2", "1+3"])
def test_rows_that_wait_leave_their_keys_and_values_even_where_the_cache_grows(gates: str) -> None:
    """Room for 64 rows: the second drafted one makes the cache grow, and the third still sees the first."""
    models = pair("llama", 0, 128)
    module = streams_of(M2R2(gates=gates), models.target)
    interval, text, stream = module.intervals[-1], prompt_of(62), Stream(models.target, 0)
    stream.push(text)
    stream.advance()
    stream.keep(range(len(text)))
    run = module.run(interval, models.target.blocks, defers_last=True)
    for token in (5, 9, 7, 4):
        text = [*text, token]
        stream.push([token])
        state = run(stream, 1)[-1][0]
        expected = accelerated_states(models.naive, module, text, interval.first, interval.gate)[-1]
        torch.testing.assert_close(state, expected, rtol=1e-9, atol=1e-9)
        assert stream.cache.lengths[interval.gate - 1] == 62
    assert stream.cache.capacity > 66
    stream.advance()
    torch.testing.assert_close(stream.states, models.naive.states(text)[-1, 62:], rtol=1e-9, atol=1e-9)


def _label(options: dict[str, object]) -> str:
    return f"m2r2[{','.join(f'{name}={value}' for name, value in options.items())}]"


REPLAYED: Sequence[dict[str, object]] = (
    {},
    {"gates": "1+3", "exit": 3, "draft_tokens": 6},
    {"gates": "2", "width": 3, "draft_tokens": 3},
    {"gates": "2", "confidence": 0.15, "draft_tokens": 5},
    {"gates": "2", "confidence": 0.1, "draft_tokens": 5, "width": 2},
    {"gates": "2", "source": "slow"},
    {"gates": "1+2", "exit": 2, "source": "exit", "width": 2},
)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), MODELS[:3])
@pytest.mark.parametrize("options", REPLAYED, ids=_label)
def test_steps_equal_replay(options: dict[str, object], family: str, seed: int) -> None:
    """The rounds that full recomputation says: proposals come from the state that they should come from."""
    models = pair(family, seed)
    for prompt_tokens in (1, 13, CONTEXT_TOKENS - 7):
        method = prepared(_label(options), models.target)
        assert isinstance(method, M2R2)
        module, text = streams_of(method, models.target), answer(family, seed, prompt_tokens)
        interval = next(
            interval for interval in module.intervals if interval.gate == (method.exit or module.intervals[0].gate)
        )
        says = guess(models.naive, module, method.source, interval.first, interval.gate)
        draft = beam_drafter(says, method.draft_tokens, method.width, method.confidence)
        got = _generate(method, models, prompt_of(prompt_tokens, seed))
        assert list(got.token_ids) == text
        assert rounds_of(got) == replay_tree(prompt_of(prompt_tokens, seed), text, len(text), draft)


def test_sources_and_gates_propose_different_tokens() -> None:
    """Else the replay would hold of one and the same proposal."""
    models, found = pair("llama"), {}
    for options in ("exit=1", "exit=2", "exit=2,source=slow", "exit=2,source=exit"):
        generation = _generate(prepared(f"m2r2[gates=1+2,{options}]", models.target), models, prompt_of(13))
        found[options] = tuple(rounds_of(generation))
    assert len(set(found.values())) == len(found)


def test_rows_of_a_step_are_the_root_and_the_branches_kept() -> None:
    models = pair("llama")
    got = _generate(prepared("m2r2[gates=2,width=3]", models.target), models, prompt_of(13))
    assert [step.rows for step in got.steps] == [1 + 3 * step.drafted for step in got.steps]


def test_modules_of_other_gates_are_refused_and_the_error_names_those_they_have(tmp_path: Path) -> None:
    models, method = pair("llama"), M2R2(gates="1+3")
    save_modules(tmp_path / "m", untrained(method, models.target), facts_of("m2r2", method, models.target))
    other = build(f"m2r2[modules={tmp_path / 'm'},gates=2]")
    with pytest.raises(UserError, match=r"trained with gates=1\+3"):
        other.prepare(models.target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("gates=4+2", "out of order"),
        ("gates=2+2", "out of order"),
        ("gates=0+2", "join layer numbers"),
        ("gates=a", "join layer numbers"),
        ("gates=2+4,exit=3", "exit 3 is not among the gates"),
        ("rank=0", "rank is 0"),
        ("width=0", "width is 0"),
        ("draft_tokens=0", "draft_tokens is 0"),
        ("rate=0.5", "rate is 0.5"),
        ("confidence=2", "confidence is 2"),
        ("adapters=none", "lora"),
        ("source=head", "accelerated"),
    ],
)
def test_options_that_cannot_be_are_refused(options: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(f"m2r2[{options}]")


@pytest.mark.parametrize("options", ["gates=4", "gates=1+9", "exit=7"])
def test_gates_beyond_the_target_are_unsupported(options: str) -> None:
    models, method = pair("llama"), build(f"m2r2[{options}]")
    assert isinstance(method, M2R2) and method.unsupported(models.target.info)
    with pytest.raises(UserError, match="cannot be trained for this target"):
        method.build(models.target.info, models.target.lm_head.weight)


def test_default_gates_are_an_eighth_a_quarter_and_a_half_of_the_depth() -> None:
    for layers, gates in ((16, (2, 4, 8)), (32, (4, 8, 16)), (4, (1, 2)), (2, (1,)), (1, ())):
        assert default_gates(layers) == gates
        info = replace(pair("llama").target.info, layers=layers)
        assert (M2R2().unsupported(info) is None) == bool(gates)


def test_a_draft_in_half_precision_stops_by_the_probability_itself() -> None:
    """0.9985 is 1 in bfloat16, so a confidence of 0.999 never stopped it."""
    draft_logits = torch.tensor([[6.5, 0.0]], dtype=torch.bfloat16)  # sigmoid(6.5) = 0.9985
    pushed: list[int] = []
    stream = SimpleNamespace(push=lambda tokens, parents=(): pushed.extend(tokens), rows=1)
    context = cast(Context, SimpleNamespace(sampling=Sampling(), stream=stream))
    assert len(draft_chain(context, 4, lambda rows: draft_logits, confidence=0.999)) == 0
    assert len(draft_chain(context, 4, lambda rows: draft_logits, confidence=0.99)) == 4
    assert len(draft_beam(context, 4, lambda rows: draft_logits.expand(rows, -1), width=2, confidence=0.999)) == 0
    assert len(pushed) == 4


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", ["olmoe", "gemma"])
def test_every_mode_decodes_in_the_precision_of_a_gpu(family: str, dtype: torch.dtype, device: str) -> None:
    """Gemma keeps gains in float32 and scales its embedding, OLMoE norms queries; both meet the modules' bfloat16."""
    target = Target(tiny_model(family, layers=LAYERS, dtype=dtype).to(device), None)
    labels = ["m2r2[width=3,confidence=0.1]", "m2r2[source=exit]", "m2r2[adapters=bottleneck]"]
    labels += [f"m2r2_dynamic[threshold=0.5,kv_fill={fill}]" for fill in ("rate_map", "absent")]
    labels += ["m2r2_dynamic[threshold=0.5,router=state_cosine,kv_fill=deferred_exact]"]
    for label in [*labels, *(["m2r2_prefetch"] if family == "olmoe" else [])]:
        method = prepared(label, target)
        for sampling in (Sampling(), Sampling(temperature=0.8, top_p=0.9)):
            got = decode(method, target, DecodeRequest(prompt_of(9), 12, sampling))
            assert len(got.token_ids) == 12
