"""skip_layers against transformers' model, whose skipped sublayers add nothing to drafted rows; without a cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import Naive, Rounds, autoregressive, replay
from runs import CONTEXT_TOKENS, FIRST_FAST, LAYERS, NEW_TOKENS, answer, pair, pair_of, prompt_of, rounds_of, run
from torch import Tensor
from two_streams import hooked_states

from benchctl.conformance.random_models import in_float64
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model import layers as layers_module
from benchctl.decoding.model.layers import Mlp, Parts
from benchctl.methods.skip_layers.choosing import even, nearest, read_list
from benchctl.registry import build

Skipped = frozenset[tuple[int, str]]
"""Layers by index, and which sublayer: "a" or "m"."""


def layers_of(*indices: int) -> Skipped:
    return frozenset((index, part) for index in indices for part in "am")


def states_without(model: Any, text: Sequence[int], start: int, skipped: Skipped) -> Tensor:
    """[layers + 1, tokens, width] of one pass in which these sublayers add nothing from token ``start`` on."""

    def silence(_module: Any, _inputs: Any, output: Any) -> Any:
        out = output[0] if isinstance(output, tuple) else output
        out = torch.cat((out[:, :start], torch.zeros_like(out[:, start:])), 1)
        return (out, *output[1:]) if isinstance(output, tuple) else out

    silenced = [(model.model.layers[index], part) for index, part in skipped]
    parts = [layer.self_attn if part == "a" else layer.mlp for layer, part in silenced]
    return hooked_states(model, text, [part.register_forward_hook(silence) for part in parts])


class Threshold:
    """Where drafts end: fixed, or steered as in the code of Draft & Verify."""

    def __init__(self, least: float, most: int, adaptive: bool = False) -> None:
        self.least, self.most, self._adaptive, self._rate = least, most, adaptive, 0.0

    def learn(self, drafted: int, accepted: int) -> None:
        if self._adaptive and drafted:
            self._rate = (self._rate + accepted / drafted) / 2
            wanted = self.least
            if self._rate < 0.9:
                wanted += 0.01
            elif drafted != self.most:
                wanted -= 0.01
            self.least = 0.9 * self.least + 0.1 * wanted


def rounds(
    naive: Naive, prompt: list[int], text: list[int], stop: Threshold, choose: Callable[[list[int]], Skipped]
) -> Rounds:
    """Steps of a draft-and-verify method that skips ``choose(committed text)`` from the last committed token on."""
    known: Rounds = []

    def draft(committed: list[int], budget: int) -> list[int]:
        if known:
            stop.learn(*known[-1])
        skipped, proposal = choose(committed) if budget else frozenset(), list[int]()
        while len(proposal) < min(stop.most, budget):
            states = states_without(naive.model, [*committed, *proposal], len(committed) - 1, skipped)
            probs = naive.logits(states[-1, -1]).softmax(-1)
            proposal.append(int(probs.argmax()))
            if float(probs.max()) < stop.least:
                break
        rest = [*prompt, *text][len(committed) :]
        wrong = (at for at, pairs in enumerate(zip(proposal, rest, strict=False)) if pairs[0] != pairs[1])
        known.append((len(proposal), next(wrong, min(len(proposal), len(rest)))))
        return proposal

    return replay(prompt, text, len(text), draft)


@pytest.mark.parametrize(
    ("options", "skipped", "least", "most"),
    [
        ("share=1,confidence=0", layers_of(1, 2), 0.0, 4),
        ("confidence=0.5,draft_tokens=6", layers_of(1), 0.5, 6),
        ("skip=1+3a+4m,confidence=0,draft_tokens=3", layers_of(0) | {(2, "a"), (3, "m")}, 0.0, 3),
        ("skip=2a+3m,stop=adaptive,confidence=0.45,draft_tokens=5", frozenset({(1, "a"), (2, "m")}), 0.45, 5),
        ("skip=4,confidence=0.3", layers_of(3), 0.3, 4),
    ],
)
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
def test_steps_are_those_of_a_model_without_the_sublayers(
    family: str, seed: int, options: str, skipped: Skipped, least: float, most: int
) -> None:
    models, drafted = pair(family, seed), 0
    for tokens in (13, CONTEXT_TOKENS - 7):
        prompt, text = prompt_of(tokens, seed), answer(family, seed, tokens)
        got = run(f"skip_layers[{options}]", models.target, prompt, NEW_TOKENS)
        assert list(got.token_ids) == text
        stop = Threshold(least, most, "adaptive" in options)
        assert rounds_of(got) == rounds(models.naive, prompt, text, stop, lambda _: skipped)
        drafted += sum(step.drafted for step in got.steps)
    assert drafted > 20


def swift_score(naive: Naive, prompt: list[int], said: list[int], window: int, skipped: Skipped) -> float:
    states = states_without(naive.model, [*prompt, *said[:window]], len(prompt), skipped)
    likeliest = naive.logits(states[-1, len(prompt) :]).argmax(-1)
    return int((likeliest == torch.tensor(said[1 : window + 1])).sum()) / window


@pytest.mark.parametrize("window", [3, 7])
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
def test_a_search_takes_the_steps_of_the_best_set_so_far(family: str, seed: int, window: int) -> None:
    models, prompt, text = pair(family, seed), prompt_of(13, seed), answer(family, seed, 13)
    generator = torch.Generator().manual_seed(0)
    best, score, changes = layers_of(1), -1.0, 0

    def choose(committed: list[int]) -> Skipped:
        nonlocal best, score, changes
        said = committed[len(prompt) :]
        if len(said) > window + 1 and score <= 0.95:
            drawn = torch.randperm(4, generator=generator)[:2].tolist() if score >= 0 else []
            skipped = frozenset((1 + number % 2, "am"[number // 2]) for number in drawn) if score >= 0 else best
            new = swift_score(models.naive, prompt, said, window, skipped)
            if new > score:
                best, score, changes = skipped, new, changes + 1
        return best

    got = run(f"skip_layers[skip=search,window={window},confidence=0]", models.target, prompt, NEW_TOKENS)
    expected = rounds(models.naive, prompt, text, Threshold(0.0, 4), choose)
    assert rounds_of(got) == expected
    assert changes


def recurrence(model: Any, text: list[int], skips: int) -> frozenset[int]:
    """The layers that CLaSp's recurrence skips, one pass over the text for each cell."""
    full = states_without(model, text, len(text), frozenset())[:, -1]

    @cache
    def near(way: tuple[int, ...], after: int) -> float:
        state = states_without(model, text, len(text) - 1, layers_of(*way))[after, -1]
        return float(F.cosine_similarity(state, full[after], dim=0))

    @cache
    def best(after: int, skipped: int) -> tuple[int, ...]:
        if skipped in (0, after):
            return tuple(range(skipped))
        keep, skip = best(after - 1, skipped), (*best(after - 1, skipped - 1), after - 1)
        return keep if near(keep, after) >= near(skip, after) else skip

    return frozenset(best(len(model.model.layers), skips))


@pytest.mark.parametrize("share", [1.0, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
def test_nearest_skips_what_the_recurrence_skips_at_every_step(family: str, seed: int, share: float) -> None:
    models, sets = pair(family, seed), set[frozenset[int]]()

    def choose(committed: list[int]) -> Skipped:
        sets.add(chosen := recurrence(models.model, committed[:-1], int(2 * share)))
        return layers_of(*chosen)

    for tokens in (13, CONTEXT_TOKENS - 7):
        prompt, text = prompt_of(tokens, seed), answer(family, seed, tokens)
        got = run(f"skip_layers[skip=nearest,share={share},confidence=0.2]", models.target, prompt, NEW_TOKENS)
        assert rounds_of(got) == rounds(models.naive, prompt, text, Threshold(0.2, 4), choose)
    assert len(sets) > 1


def stream_with_taps(model: Any, text: list[int]) -> Stream:
    target = pair_of(model, model).target
    stream = Stream(target, len(text))
    stream.taps = tuple(range(target.layers + 1))
    stream.push(text)
    stream.advance()
    stream.keep(range(len(text)))
    return stream


@torch.inference_mode()
def test_nearest_finds_the_best_of_all_sets_where_two_layers_do_next_to_nothing() -> None:
    text = prompt_of(13)
    for quiet in combinations(range(LAYERS), 2):
        model = in_float64(copy.deepcopy(pair("llama").model))
        for index in quiet:
            for part in (model.model.layers[index].self_attn.o_proj, model.model.layers[index].mlp.down_proj):
                part.weight.mul_(1e-4)
        parts = nearest(stream_with_taps(model, text), -1, 1.0)
        last = states_without(model, text, len(text), frozenset())[-1, -1]
        nearness = {
            way: float(F.cosine_similarity(states_without(model, text, 12, layers_of(*way))[-1, -1], last, dim=0))
            for way in combinations(range(LAYERS), 2)
        }
        assert max(nearness, key=nearness.__getitem__) == quiet
        assert [index for index, kept in enumerate(parts) if not kept.mlp] == list(quiet)


@pytest.mark.parametrize(
    ("options", "skipped"), [("share=1", (1, 2)), ("skip=1+4", (0, 3)), ("skip=3", (2,)), ("share=0", ())]
)
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
def test_mode_answer_says_what_a_model_without_the_layers_says(
    family: str, seed: int, options: str, skipped: tuple[int, ...]
) -> None:
    models = pair(family, seed)
    smaller = copy.deepcopy(models.model)
    kept = [layer for index, layer in enumerate(smaller.model.layers) if index not in skipped]
    smaller.model.layers = torch.nn.ModuleList(kept)
    smaller.config.num_hidden_layers = len(kept)
    for tokens in (13, 1):
        got = run(f"skip_layers[mode=answer,{options}]", models.target, prompt_of(tokens, seed), NEW_TOKENS)
        assert list(got.token_ids) == autoregressive(Naive(smaller), prompt_of(tokens, seed), NEW_TOKENS)
        assert got.layers == (len(kept),) * NEW_TOKENS
        assert {step.passes for step in got.steps} == {1}


@pytest.mark.parametrize("options", ["share=1", "skip=1+3a+4m", "skip=search,window=3", "skip=nearest,share=1"])
def test_layers_counted_are_those_that_ran(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are counted where attentions and MLPs compute; two sublayers are one layer."""
    ran: list[int] = []
    mix, add_to = layers_module.mix, Mlp.add_to

    def mixed(attention: Any, queries: Tensor, *more: Any) -> Tensor:
        ran.append(queries.shape[0])
        return mix(attention, queries, *more)

    def added(mlp: Mlp, residual: Tensor, x: Tensor) -> Tensor:
        ran.append(x.shape[0])
        return add_to(mlp, residual, x)

    monkeypatch.setattr(layers_module, "mix", mixed)
    monkeypatch.setattr(Mlp, "add_to", added)
    got = run(f"skip_layers[{options},confidence=0]", pair("llama").target, prompt_of(13), NEW_TOKENS)
    verified = sum(LAYERS * (step.rows - len(step.tokens)) for step in got.steps)  # rejected rows are not in `layers`
    halves = sum(ran) - 2 * 13 * LAYERS - 2 * verified - 2 * sum(got.layers[1:])
    assert 0 <= halves <= len(got.steps)  # half a layer of a step is rounded down
    assert {step.passes for step in got.steps} == {1}
    assert sum(got.layers) > LAYERS * NEW_TOKENS


def test_even_sets_keep_both_ends_and_differ_by_one_layer_in_their_gaps() -> None:
    for layers in range(3, 40):
        for inner in range(layers - 1):
            skipped = even(layers, inner / (layers - 2) + 1e-9)
            kept = [index for index in range(layers) if index not in skipped]
            assert len(skipped) == inner and kept[0] == 0 and kept[-1] == layers - 1
            gaps = [above - below for below, above in zip(kept, kept[1:], strict=False)]
            assert max(gaps) - min(gaps) <= 1


def test_a_list_names_layers_and_sublayers() -> None:
    nothing = Parts(attention=False, mlp=False)
    assert read_list("3+5a+8m") == {2: nothing, 4: Parts(attention=False), 7: Parts(mlp=False)}
    assert read_list("2a+2m") == {1: nothing}


def test_a_detour_is_for_streams_whose_rows_ran_all_layers() -> None:
    stream = Stream(pair("llama").target, 8)
    stream.push([3, 4])
    stream.advance(2)
    with pytest.raises(ValueError, match="detour"):
        stream.detour(stream.states, [Parts()] * LAYERS)


def test_targets_without_such_layers_are_refused() -> None:
    info = pair("llama").target.info
    for options, fact in (("skip=5m", "5 layers"), ("mode=answer,skip=1+2+3+4", "all layers")):
        assert fact in str(build(f"skip_layers[{options}]").unsupported(info))
    assert build("skip_layers[skip=1+2+3+4]").unsupported(info) is None
    assert build("skip_layers").unsupported(replace(info, layers=2)) is not None
