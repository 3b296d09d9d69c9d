"""A stream of rows on their way through the layers: parts, deferred rows, commits, against one plain pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from streams import TEXT, VARIANTS, after, assert_cached_as_if_fresh, assert_same, commit, logits_of, target_of
from tiny import tiny_model

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.target import Target


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(params=VARIANTS)
def target(request: pytest.FixtureRequest) -> Target:
    return target_of(request.param)


def test_rows_run_part_of_the_way_and_joined_by_others_end_as_in_one_pass(target: Target) -> None:
    stream = after(target, TEXT[:10])
    stream.push(TEXT[10:12])
    stream.advance(2)
    stream.push(TEXT[12:15])
    stream.advance(1)
    stream.push(TEXT[15:16])
    stream.advance(3)
    stream.push(TEXT[16:20])
    stream.advance()
    assert_same(stream.logits(), logits_of(target, TEXT[:20])[10:])
    stream.keep(range(10))
    assert_cached_as_if_fresh(stream, TEXT[:20])


def test_states_are_those_after_the_last_layer_each_row_ran() -> None:
    target = target_of("llama")
    stream = after(target, TEXT[:5])
    stream.push(TEXT[5:6])
    stream.advance(2)
    stream.push(TEXT[6:7])
    whole = Stream(target, 7)
    whole.push(TEXT[:7])
    whole.advance(2)
    assert_same(stream.states[0], whole.states[5])
    assert_same(stream.states[1], target.embed(TEXT[6:7])[0])


def test_advancing_again_changes_nothing(target: Target) -> None:
    stream = after(target, TEXT[:5])
    stream.push(TEXT[5:9])
    stream.advance(3)
    before = stream.states.clone()
    stream.advance(3)
    stream.advance(2)
    assert torch.equal(stream.states, before)


def test_rejected_chain_leaves_the_cache_as_if_never_read(target: Target) -> None:
    stream = after(target, TEXT[:9])
    stream.push(TEXT[9:15])
    stream.advance()
    stream.keep([0, 1])
    assert_cached_as_if_fresh(stream, TEXT[:11])


def test_rows_kept_before_they_ran_all_layers_run_them_later(target: Target) -> None:
    stream = after(target, TEXT[:8])
    for position, layers in ((8, 1), (9, 3), (10, 2), (11, 1)):
        stream.push([TEXT[position]])
        stream.advance(layers)
        stream.keep(range(stream.rows))
        assert stream.length == position + 1
    stream.push([TEXT[12]])
    stream.advance()
    assert_same(stream.logits(), logits_of(target, TEXT[:13])[8:])
    stream.keep(range(stream.rows))
    assert_cached_as_if_fresh(stream, TEXT[:13])


def test_finished_and_unfinished_rows_are_kept_together(target: Target) -> None:
    stream = after(target, TEXT[:8])
    stream.push(TEXT[8:11])
    stream.advance()
    stream.push(TEXT[11:13])
    stream.advance(2)
    stream.keep(range(5))
    assert (stream.base, stream.text[stream.base :]) == (11, TEXT[11:13])
    stream.push(TEXT[13:14])
    stream.advance()
    assert_same(stream.logits(), logits_of(target, TEXT[:14])[11:])
    stream.keep(range(3))
    assert_cached_as_if_fresh(stream, TEXT[:14])


def test_a_rejected_part_of_a_draft_that_was_never_run_is_forgotten(target: Target) -> None:
    stream = after(target, TEXT[:8])
    stream.push([50])
    stream.advance()
    stream.push([11, 12])
    stream.advance(1)
    stream.push([13])
    stream.keep([0])
    assert_cached_as_if_fresh(stream, [*TEXT[:8], 50])
    assert_same(commit(stream, [77]), logits_of(target, [*TEXT[:8], 50, 77])[-1:])


def test_a_truncated_stream_goes_on_like_a_fresh_one(target: Target) -> None:
    stream = after(target, TEXT[:20])
    stream.truncate(9)
    assert stream.length == 9
    commit(stream, TEXT[14:18])
    assert_cached_as_if_fresh(stream, TEXT[:9] + TEXT[14:18])


def test_truncation_to_more_than_there_is_changes_nothing_and_open_rows_forbid_it() -> None:
    stream = after(target_of("llama"), TEXT[:6])
    stream.truncate(9)
    assert stream.length == 6
    assert_cached_as_if_fresh(stream, TEXT[:6])
    stream.push([1])
    with pytest.raises(ValueError, match="open rows"):
        stream.truncate(3)


def test_text_longer_than_the_capacity_given_makes_the_cache_grow() -> None:
    target = target_of("llama")
    stream = Stream(target, 2)
    text = (TEXT * 5)[:110]
    for start in range(0, 110, 11):
        commit(stream, text[start : start + 11])
    assert_cached_as_if_fresh(stream, text)


def test_fill_gives_upper_layers_the_keys_of_the_frozen_state() -> None:
    """State propagation: to a model whose upper layers add nothing, the same state would arrive at each of them."""
    model = tiny_model("llama", layers=4, seed=1, dtype=torch.float64)
    for layer in model.model.layers[2:]:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    still = after(Target(model, None), TEXT[:9])
    stream = after(target_of("llama"), TEXT[:8])
    stream.push(TEXT[8:9])
    stream.advance(2)
    before = stream.states.clone()
    stream.fill(2)
    assert torch.equal(stream.states, before)
    assert stream.cache.lengths == [9] * 4
    for ours, theirs in zip(stream.cache.kv, still.cache.kv, strict=True):
        assert_same(ours[:, 8], theirs[:, 8])


def test_a_filled_row_is_never_run_again() -> None:
    stream = after(target_of("llama"), TEXT[:8])
    stream.push(TEXT[8:9])
    stream.advance(2)
    stream.fill(2)
    stream.keep([0])
    assert stream.rows == 0
    filled = stream.cache.kv[3][:, 8].clone()
    commit(stream, TEXT[9:11])
    assert torch.equal(stream.cache.kv[3][:, 8], filled)


def test_a_row_with_earlier_rows_waiting_below_it_cannot_be_filled_in_or_skipped() -> None:
    """Its keys would take the slots of theirs."""
    stream = after(target_of("llama"), TEXT[:8])
    stream.push(TEXT[8:10])
    stream.advance(2)
    with pytest.raises(ValueError, match="still wait"):
        stream.fill(2)
    with pytest.raises(ValueError, match="still wait"):
        stream.skip(2)
    assert (stream.cache.lengths, stream.cache.absent) == ([10, 10, 8, 8], [[]] * 4)


@pytest.mark.parametrize("parents", [None, (-1, -1)], ids=["chain", "tree"])
@pytest.mark.parametrize("beyond", [1, 2])
def test_rows_beyond_the_context_are_refused(parents: tuple[int, int] | None, beyond: int) -> None:
    """One rotation for two rows would be used for both."""
    target = target_of("llama")
    context = target.context_tokens
    last = context - 2 + beyond
    positions = (last, last + 1) if parents is None else (last + 1, last + 1)
    ancestors = None if parents is None else ((0,), (1,))
    with pytest.raises(ValueError, match=f"position {last + 1}, .* {context}"):
        target.layout(last, positions, ancestors)
    assert target.layout(context - 2, (context - 2, context - 1)).rotary.shape[0] == 2


@pytest.mark.parametrize("unfinished", [0, 2, 3], ids=["all finished", "some finished", "none finished"])
def test_keeping_a_whole_chain_is_the_same_however_its_rows_are_named(target: Target, unfinished: int) -> None:
    """A range of all rows takes a short cut, a list does not."""
    streams = [after(target, TEXT[:8]) for _ in range(2)]
    for stream, kept in zip(streams, (range(3), [0, 1, 2]), strict=True):
        if unfinished < 3:
            stream.push(TEXT[8 : 11 - unfinished])
            stream.advance()
        if unfinished:
            stream.push(TEXT[11 - unfinished : 11])
            stream.advance(2)
        stream.keep(kept)
        assert (stream.base, stream.text[stream.base :]) == (11 - unfinished, TEXT[11 - unfinished : 11])
    assert streams[0].cache.lengths == streams[1].cache.lengths
    for stream in streams:
        stream.push(TEXT[11:13])
        stream.advance()
    assert torch.equal(streams[0].logits(), streams[1].logits())
    for stream in streams:
        stream.keep(range(stream.rows))
        assert_cached_as_if_fresh(stream, TEXT[:13])


@pytest.mark.parametrize("variant", [*VARIANTS, "qwen3", "qwen3_biases", "phi3_partial", "olmoe_clipped", "mixtral"])
def test_stand_ins_fill_each_layer_with_its_own(variant: str) -> None:
    """The very residuals that would arrive make the very keys and values of an ordinary pass."""
    target = target_of(variant)
    whole, stream = after(target, TEXT[:9]), after(target, TEXT[:8])
    stream.push(TEXT[8:9])
    stream.advance(2)
    arriving, twin = [], after(target, TEXT[:8])
    twin.push(TEXT[8:9])
    for layers in (2, 3):
        twin.advance(layers)
        arriving.append(twin.states[0])
    stream.fill(2, torch.stack(arriving))
    assert stream.cache.lengths == [9] * 4
    for ours, theirs in zip(stream.cache.kv, whole.cache.kv, strict=True):
        assert_same(ours[:, 8], theirs[:, 8])


@pytest.mark.parametrize("variant", ["llama", "mistral_window"])
def test_rows_after_one_that_passed_layers_by_do_not_see_it_there(variant: str) -> None:
    """A layer that nothing was ever written to for it and one that wrote rubbish for it are the same to them."""
    target, streams = target_of(variant), []
    for rubbish in (0.0, 1e6):
        stream = after(target, TEXT[:8])
        stream.push(TEXT[8:9])
        stream.advance(2)
        stream.skip(2)
        stream.keep([0])
        assert (stream.rows, stream.cache.lengths) == (0, [9] * 4)
        commit(stream, TEXT[9:10])
        for kv in stream.cache.kv[2:]:
            kv[:, 8] = rubbish
        stream.push(TEXT[10:12])
        stream.advance()
        streams.append(stream)
    assert torch.equal(streams[0].logits(), streams[1].logits())
    assert (streams[0].logits() - logits_of(target, TEXT[:12])[10:]).abs().max() > 1e-3


def test_branches_do_not_see_an_absent_row_either() -> None:
    target, logits = target_of("llama"), []
    for parents in (None, (-1, 0, 0)):
        stream = after(target, TEXT[:8])
        stream.push(TEXT[8:9])
        stream.advance(1)
        stream.skip(1)
        stream.keep([0])
        stream.push(TEXT[9:11] if parents is None else [*TEXT[9:11], 3], parents)
        stream.advance()
        logits.append(stream.logits()[:2])
    assert_same(logits[0], logits[1])
