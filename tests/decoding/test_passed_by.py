"""Rows that pass some layers by, below others that they run: what the stream and the cache make of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial

import pytest
import torch
from plain_depths import planned_states, said_by
from runs import LAYERS, MODELS, Pair, pair, prompt_of
from torch import Tensor

from benchctl.decoding.kv.stream import Stream
from benchctl.methods.mixture_of_depths import run_some

TEXT = prompt_of(20)
# Of each routed layer the tokens that run it, a chunk of the text at a time.
CHUNKS = (range(0, 12), range(12, 13), range(13, 14), range(14, 20))
CHOSEN = {1: {0, 3, 4, 9, 12, 15, 16}, 3: {5, 6, 13, 14, 15, 16, 17, 18, 19}}


def follow(chosen: Mapping[int, set[int]], index: int, states: Tensor) -> tuple[Tensor, Tensor]:
    """The Plan by which only the tokens chosen for a layer run it, where there are any such."""
    runs = torch.tensor([index not in chosen or token in chosen[index] for token in range(len(states))])
    return runs, torch.ones(len(states), dtype=torch.float64)


def run_chunk(models: Pair, stream: Stream, chunk: range) -> Tensor:
    """Logits of a chunk of TEXT, which is then committed."""
    stream.push([TEXT[at] for at in chunk])
    for index, chosen in CHOSEN.items():
        stream.advance(index)
        rows = [row for row, at in enumerate(chunk) if at in chosen]
        run_some(stream, index, dict.fromkeys(rows, 1.0))
    stream.advance()
    logits = stream.logits()
    stream.keep(range(stream.rows))
    assert stream.rows == 0
    return logits


@torch.inference_mode()
@pytest.mark.parametrize(("family", "seed"), MODELS)
def test_chosen_rows_see_each_other_and_none_of_those_that_passed_by(family: str, seed: int) -> None:
    """Chunks of several rows and of one, of which all, some or none are chosen, are as one pass with a mask."""
    models = pair(family, seed)
    stream = Stream(models.target, len(TEXT))
    logits = torch.cat([run_chunk(models, stream, chunk) for chunk in CHUNKS])
    expected = said_by(models.model, planned_states(models.model, TEXT, partial(follow, CHOSEN)))
    assert (logits - expected).abs().max() < 1e-11
    everyone = said_by(models.model, planned_states(models.model, TEXT, partial(follow, {})))
    assert (expected - everyone).abs().max() > 1e-3
    absent = [[at for at in range(20) if at not in CHOSEN.get(index, range(20))] for index in range(LAYERS)]
    assert (stream.cache.lengths, stream.cache.absent) == ([20] * LAYERS, absent)


def draft(stream: Stream, at: int, chance: random.Random, runs: dict[int, set[int]]) -> tuple[Tensor, int]:
    """Logits of the next tokens of TEXT, which run what ``runs`` says, and their number; drafts behind them are
    rejected before the last routed layer or behind all layers."""
    kept, wrong = min(chance.choice((1, 1, 1, 3)), len(TEXT) - at), chance.choice((0, 0, 1, 4))
    stream.push([*TEXT[at : at + kept], *(chance.choice(TEXT) for _ in range(wrong))])
    early = chance.random() < 0.5
    for index, tokens in runs.items():
        stream.advance(index)
        rows = [row for row in range(stream.rows) if (at + row in tokens if row < kept else chance.random() < 0.5)]
        run_some(stream, index, dict.fromkeys(rows, 1.0))
        if early and stream.rows > kept:
            stream.keep(range(kept))
    stream.advance()
    logits = stream.logits()[:kept]
    stream.keep(range(kept))
    return logits, kept


def choose_anew(runs: dict[int, set[int]], start: int, chance: random.Random) -> None:
    """Others of the tokens from ``start`` on run the routed layers."""
    for tokens in runs.values():
        tokens -= set(range(start, len(TEXT)))
        tokens |= {at for at in range(start, len(TEXT)) if chance.random() < 0.5}


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("family", "model_seed"), MODELS)
def test_rejected_drafts_and_ways_back_leave_no_trace_of_who_passed_by(family: str, model_seed: int, seed: int) -> None:
    """What hides them is written in place: after every draft and truncation it must be that of the tokens kept."""
    models, chance = pair(family, model_seed), random.Random(seed)
    runs: dict[int, set[int]] = {index: set() for index in CHOSEN}
    choose_anew(runs, 0, chance)
    stream, said, turned = Stream(models.target, len(TEXT)), torch.zeros(len(TEXT), 24, dtype=torch.float64), 0
    while stream.length < len(TEXT):
        at = stream.length
        logits, kept = draft(stream, at, chance, runs)
        said[at : at + kept] = logits
        if chance.random() < 0.3 and turned < 6:
            turned += 1
            stream.truncate(chance.randrange(stream.length))
            choose_anew(runs, stream.length, chance)
    expected = said_by(models.model, planned_states(models.model, TEXT, partial(follow, runs)))
    assert turned and (said - expected).abs().max() < 1e-11
    assert stream.cache.absent == [sorted(set(range(len(TEXT))) - runs.get(i, set(range(99)))) for i in range(LAYERS)]


@torch.inference_mode()
def test_rows_pass_by_layers_between_others_and_later_rows_do_not_see_them_there() -> None:
    models = pair("llama")
    without_middle = partial(follow, {2: {*range(len(TEXT))} - {8, 9}})
    stream = Stream(models.target, len(TEXT))
    parts = []
    for chunk, first, last in ((range(8), 3, 3), (range(8, 10), 2, 3), (range(10, 20), 3, 3)):
        stream.push([TEXT[at] for at in chunk])
        stream.advance(first)
        stream.pass_by(first, last)
        stream.advance()
        parts.append(stream.logits())
        stream.keep(range(stream.rows))
    expected = said_by(models.model, planned_states(models.model, TEXT, without_middle))
    assert (torch.cat(parts) - expected).abs().max() < 1e-11
    assert stream.cache.absent == [[], [], [8, 9], []]


@torch.inference_mode()
def test_rows_can_be_chosen_only_where_all_wait_for_the_layer() -> None:
    models = pair("llama")
    stream = Stream(models.target, 8)
    stream.push(TEXT[:4])
    with pytest.raises(ValueError, match="layers 0 to 1 .* from 0 to 4"):
        stream.advance(2)
        run_some(stream, 0, {1: 1.0})
