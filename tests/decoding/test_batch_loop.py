"""Sequences decoded together say what each says alone: token for token in float64, whoever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from fakes_measuring import Shallower
from refusals import refused
from runs import CONTEXT_TOKENS, LAYERS, pair, prompt_of, ticking
from tiny import VARIANTS

from benchctl.conformance.random_models import autoregressive
from benchctl.decoding.batch import MOST_SEQUENCES, decode_batch
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Context, Method, Speculative
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling
from benchctl.methods.autoregressive import Autoregressive
from benchctl.registry import build

LENGTHS = (7, 1, 19, 2, 33, 7, 12, 5, 40, 3, 9, 26, 1, 14, 8, 21)
NEW_TOKENS = 12


def prompts(number: int, seed: int = 0) -> list[DecodeRequest]:
    """Of other lengths, and each with a seed of its own."""
    return [DecodeRequest(prompt_of(LENGTHS[at], seed + at), NEW_TOKENS, seed=100 + at) for at in range(number)]


def together(method: Method, target: Target, asked: Sequence[DecodeRequest]) -> tuple[Generation, ...]:
    clock = ticking()
    return decode_batch(method, target, [replace(request, clock=clock) for request in asked])


def alone(method: Method, target: Target, asked: Sequence[DecodeRequest]) -> list[Generation]:
    return [decode(method, target, replace(request, clock=ticking())) for request in asked]


def assert_same(batch: Sequence[Generation], single: Sequence[Generation]) -> None:
    """In everything but time."""
    assert [one.token_ids for one in batch] == [one.token_ids for one in single]
    assert [one.stop_reason for one in batch] == [one.stop_reason for one in single]
    assert [one.steps for one in batch] == [one.steps for one in single]
    assert [one.layers for one in batch] == [one.layers for one in single]


@pytest.mark.parametrize("number", range(1, MOST_SEQUENCES + 1))
def test_a_batch_of_any_size_says_what_the_model_says_to_each_prompt(number: int) -> None:
    """The truth is transformers' own model without a cache."""
    models = pair("llama")
    asked = prompts(number)
    found = together(Autoregressive(), models.target, asked)
    limits = [min(NEW_TOKENS, CONTEXT_TOKENS - len(prompt.prompt_ids)) for prompt in asked]
    truth = [tuple(autoregressive(models.naive, one.prompt_ids, most)) for one, most in zip(asked, limits, strict=True)]
    assert [generation.token_ids for generation in found] == truth


@pytest.mark.parametrize("family", VARIANTS)
def test_every_family_and_variant_decodes_in_batches(family: str) -> None:
    """Windows, norms of heads, partial rotations, biases and experts among them."""
    target, asked = pair(family).target, prompts(6)
    assert_same(together(Autoregressive(), target, asked), alone(Autoregressive(), target, asked))


@pytest.mark.slow
def test_sequences_that_stop_early_leave_the_others_alone() -> None:
    """Each token that any sequence says is tried as the stop token: sequences leave from every place, at every step."""
    models, asked = pair("llama", 1), prompts(7)
    texts = [generation.token_ids for generation in alone(Autoregressive(), models.target, asked)]
    reasons = set()
    for token in sorted({token for text in texts for token in text}):
        target = models.with_stops(token)
        found = together(Autoregressive(), target, asked)
        assert_same(found, alone(Autoregressive(), target, asked))
        reasons |= {(generation.stop_reason, len(generation.steps)) for generation in found}
    assert {("stop", 0), ("stop", 1), ("length", NEW_TOKENS - 1)} <= reasons


def test_sequences_end_where_their_own_context_does() -> None:
    lengths = (CONTEXT_TOKENS - 1, 3, CONTEXT_TOKENS - 2, CONTEXT_TOKENS - 6, 1)
    asked = [DecodeRequest(prompt_of(length), NEW_TOKENS) for length in lengths]
    target = pair("llama").target
    found = together(Autoregressive(), target, asked)
    assert_same(found, alone(Autoregressive(), target, asked))
    assert [len(generation.token_ids) for generation in found] == [1, 12, 2, 6, 12]
    assert [generation.stop_reason for generation in found] == ["context", "length", "context", "context", "length"]


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(1.5, top_p=0.9, seed=3), Sampling(0.8, top_k=5)])
def test_neighbours_and_their_order_change_nothing_that_a_sequence_draws(sampling: Sampling) -> None:
    target, asked = pair("llama", 2).target, [replace(request, sampling=sampling) for request in prompts(8)]
    found = together(Autoregressive(), target, asked)
    assert_same(found, alone(Autoregressive(), target, asked))
    assert_same(together(Autoregressive(), target, asked[::-1])[::-1], found)
    assert_same(together(Autoregressive(), target, asked[2:5]), found[2:5])


@pytest.mark.parametrize("dropped", range(LAYERS))
@pytest.mark.parametrize("later", [1, 4])
def test_a_depth_that_falls_with_the_count_of_new_tokens_is_every_row_s_own(dropped: int, later: int) -> None:
    """Prompts of different lengths reach a count together, however far apart their positions are."""
    target, asked = pair("llama").target, prompts(9)
    method = Shallower(dropped, later)
    found = together(method, target, asked)
    assert_same(found, alone(method, target, asked))
    plain = together(Autoregressive(), target, asked)
    assert [one.token_ids for one in found] != [one.token_ids for one in plain]
    assert found[0].layers == (LAYERS - 1,) * later + (LAYERS - 2,) * (NEW_TOKENS - later)


@dataclass
class Uneven(Autoregressive):
    """One prompt of the batch passes all layers by."""

    exactness = "lossy"

    def start(self, context: Context) -> int:
        token: int = super().start(context)
        if context.prompt_tokens == LENGTHS[1]:
            context.stream.cache.truncate(0)
        return token


class Back(Shallower):
    """Its third row runs a layer that the second passed by."""

    def layers_at(self, target: Target, new_tokens: int) -> list[int]:
        return [0] if new_tokens == 2 else [0, 2, 3]


@pytest.mark.parametrize(("method", "layer"), [(Back(), 2), (Uneven(), 0)])
def test_a_layer_that_earlier_rows_passed_by_is_not_run(method: Method, layer: int) -> None:
    """The row would see keys and values of some rows of its text only."""
    with pytest.raises(ValueError, match=f"layer {layer} was not run"):
        together(method, pair("llama").target, prompts(3))


@pytest.mark.parametrize("method", [Shallower(1, 4), Uneven()])
def test_a_method_that_claims_the_target_s_answers_runs_all_layers(method: Method) -> None:
    method.exactness = "exact"
    with refused("layers_skipped"):
        together(method, pair("llama").target, prompts(3))


def test_what_memory_happened_to_hold_before_a_shorter_prompt_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A masked slot counts for nothing only if it is finite."""
    target, asked = pair("llama").target, prompts(4)
    wanted = alone(Autoregressive(), target, asked)
    made = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: made(*a, **k).fill_(float("nan")))
    assert_same(together(Autoregressive(), target, asked), wanted)


def test_the_clock_is_read_before_prefill_after_the_last_prompt_and_after_each_step() -> None:
    """So all have the same first mark, and a sequence that ends takes the batch's steps up to its own last."""
    models, asked = pair("llama", 1), prompts(5)
    target = models.with_stops(alone(Autoregressive(), models.target, asked)[0].token_ids[2])
    marks = iter([10.0, 15.0, *(15.0 + 2.0**step for step in range(NEW_TOKENS - 1))])
    found = decode_batch(Autoregressive(), target, [replace(request, clock=marks.__next__) for request in asked])
    assert {generation.ttft_s for generation in found} == {5.0}
    whole = (1.0, *(2.0**step for step in range(NEW_TOKENS - 2)))
    assert [generation.step_s for generation in found] == [whole[: len(one.token_ids) - 1] for one in found]
    assert len({len(generation.step_s) for generation in found}) > 1
    assert list(marks) == []


def test_a_prompt_that_cannot_be_decoded_is_refused_with_the_batch() -> None:
    target = pair("llama").target
    for ids, error in (([], "empty_prompt"), ([1] * CONTEXT_TOKENS, "prompt_too_long")):
        with refused(error):
            together(Autoregressive(), target, [*prompts(2), DecodeRequest(ids, NEW_TOKENS)])


@pytest.mark.parametrize("number", [0, MOST_SEQUENCES + 1])
def test_a_batch_has_between_one_sequence_and_sixteen(number: int) -> None:
    with pytest.raises(ValueError, match=f"{number} prompts are no batch"):
        together(Autoregressive(), pair("llama").target, [DecodeRequest([1], NEW_TOKENS)] * number)


def test_a_method_for_one_sequence_is_refused_with_its_reason() -> None:
    with pytest.raises(ValueError, match=Speculative.no_batch_reason):
        together(build("prompt_lookup"), pair("llama").target, prompts(2))
