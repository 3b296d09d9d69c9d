"""auto_exit: exits, lengths and steps are those of a replay that recomputes every row of the text, by plain sums."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import Naive, Rounds, replay
from runs import CONTEXT_TOKENS, FIRST_FAST, LAYERS, NEW_TOKENS, answer, pair, prepared, prompt_of, rounds_of
from safetensors.torch import load_file
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Context
from benchctl.methods.auto_exit import AutoExit
from benchctl.methods.auto_exit.estimates import Estimates

Read = Callable[[int, Tensor], Tensor]
"""Logits of an exit: layer and state in."""


class Replay:
    """DEL in plain Python. ``seen`` [exit][right or wrong] are likeliest tokens: a weight, and the probability."""

    def __init__(
        self,
        naive: Naive,
        exits: Sequence[int],
        read: Read,
        most: int = 18,
        by_length: bool = False,
        decay: float = 0.95,
    ) -> None:
        self._naive, self._exits, self._read = naive, exits, read
        self._most, self._by_length, self._decay = most, by_length, decay
        self.seen: dict[int, dict[bool, list[list[float]]]] = {layer: {True: [], False: []} for layer in exits}
        self.choices: list[tuple[int, int]] = []
        self._known = 0

    def begin(self, prompt_tokens: int) -> None:
        self._known = max(0, prompt_tokens - 33)

    def draft(self, text: list[int], budget: int) -> list[int]:
        self._learn(text)
        layer, length = self._choose()
        self.choices.append((layer, length))
        least, proposal = self._threshold(layer), list[int]()
        while len(proposal) < min(length if self._by_length else self._most, budget):
            state = self._naive.last_states([*text, *proposal])[layer]
            probs = self._read(layer, state).softmax(-1)
            proposal.append(int(probs.argmax()))
            if not self._by_length and least is not None and float(probs.max()) < least:
                break
        return proposal

    def _learn(self, text: list[int]) -> None:
        """From the rows that the target has run since the last draft: those before the last token of the text."""
        for sides in self.seen.values():
            for pairs in sides.values():
                for weighted in pairs:
                    weighted[0] *= self._decay
        states = self._naive.states(text)
        for row in range(self._known, len(text) - 1):
            wanted = int(self._naive.logits(states[-1, row]).argmax())
            for layer, sides in self.seen.items():
                probs = self._read(layer, states[layer, row]).softmax(-1)
                sides[int(probs.argmax()) == wanted].append([1.0, float(probs.max())])
        self._known = len(text) - 1

    def _choose(self) -> tuple[int, int]:
        best, chosen = -1.0, (0, 0)
        for layer, sides in self.seen.items():
            right, wrong = (sum(weight for weight, _ in sides[side]) for side in (True, False))
            rate = right / (right + wrong)
            for length in range(self._most + 1):
                per_layer = sum(rate**n for n in range(length + 1)) / (self._naive.layers + length * layer)
                if per_layer > best * (1 + 1e-12):
                    best, chosen = per_layer, (layer, length)
        return chosen

    def _threshold(self, layer: int) -> float | None:
        means = []
        for pairs in self.seen[layer].values():
            total = sum(weight for weight, _ in pairs)
            if not total:
                return None
            means.append(sum(weight * prob for weight, prob in pairs) / total)
        return sum(means) / 2


def trained_read(naive: Naive, folder: str, scale: float) -> Read:
    """head(gain * norm(h + scale U silu(D norm(h)))) with the weights of a folder of modules."""
    weights = {name: weight.double() for name, weight in load_file(f"{folder}/modules.safetensors").items()}
    norm = naive.model.model.norm

    def read(layer: int, state: Tensor) -> Tensor:
        down, up, gain = (
            weights[f"exits.{layer}.{part}"] for part in ("change.down.weight", "change.up.weight", "gain")
        )
        logits: Tensor = naive.model.lm_head(norm(state + scale * (up @ F.silu(down @ norm(state)))) * gain)
        return logits

    return read


def watch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """From now on: exits and lengths that are chosen; and every drafted row waits at the exit that was chosen."""
    choices: list[tuple[int, int]] = []
    best, draft = Estimates.best, AutoExit.draft

    def chosen(estimates: Estimates, exits: Sequence[int], layers: int, most: int) -> tuple[int, int]:
        at, length = best(estimates, exits, layers, most)
        choices.append((exits[at], length))
        return at, length

    def drafted(method: AutoExit, context: Context, budget: int) -> Draft:
        found: Draft = draft(method, context, budget)
        assert all(
            held - context.stream.base == (len(found) if layer < choices[-1][0] else 0)
            for layer, held in enumerate(context.stream.cache.lengths)
        )
        return found

    monkeypatch.setattr(Estimates, "best", chosen)
    monkeypatch.setattr(AutoExit, "draft", drafted)
    return choices


@pytest.mark.parametrize(
    ("options", "exits", "settings"),
    [
        ("draft_tokens=18", (1, 2, 3), {}),
        ("stop=length,draft_tokens=5,decay=0.8", (1, 2, 3), {"most": 5, "by_length": True, "decay": 0.8}),
        ("exits=1+3,decay=1,draft_tokens=4", (1, 3), {"decay": 1.0, "most": 4}),
        ("exits=2,decay=0,draft_tokens=3", (2,), {"decay": 0.0, "most": 3}),
        ("head=trained,rank=3,alpha=60,draft_tokens=4", (1, 2, 3), {"most": 4}),
        ("head=trained,rank=3,alpha=60,exits=1+2,stop=length", (1, 2), {"by_length": True}),
    ],
)
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
def test_exits_lengths_and_steps_are_those_of_the_replay(
    family: str,
    seed: int,
    options: str,
    exits: Sequence[int],
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models, choices = pair(family, seed), watch(monkeypatch)
    accepted, all_choices = 0, set[tuple[int, int]]()
    for tokens in (1, 13, CONTEXT_TOKENS - 20):
        prompt, text = prompt_of(tokens, seed), answer(family, seed, tokens)
        method = prepared(f"auto_exit[{options}]", models.target)
        assert isinstance(method, AutoExit)
        read = lambda _, state: models.naive.logits(state)  # noqa: E731
        if method.modules:
            read = trained_read(models.naive, method.modules, 60 / 3)
        plain = Replay(models.naive, exits, read, **settings)
        plain.begin(tokens)
        choices.clear()
        got = decode(method, models.target, DecodeRequest(prompt, len(text)))
        assert list(got.token_ids) == text
        assert rounds_of(got) == replay(prompt, text, len(text), plain.draft)
        assert choices == plain.choices
        accepted += sum(step.accepted for step in got.steps)
        all_choices |= set(choices)
    assert family != "llama" or (accepted and len(all_choices) > 1)


def test_memory_of_a_run_begins_with_what_earlier_prompts_have_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    models, choices = pair("llama"), watch(monkeypatch)
    rounds: dict[str, list[Rounds]] = {"prompt": [], "run": []}
    for memory in rounds:
        method = prepared(f"auto_exit[memory={memory}]", models.target)
        assert isinstance(method, AutoExit)
        store, plain = method.new_store(), Replay(models.naive, (1, 2, 3), lambda _, state: models.naive.logits(state))
        for tokens in (30, 13):
            prompt, text = prompt_of(tokens), answer("llama", 0, tokens)
            if memory == "prompt":
                store = method.new_store()
                plain = Replay(models.naive, (1, 2, 3), lambda _, state: models.naive.logits(state))
            plain.begin(tokens)
            plain.choices.clear()
            choices.clear()
            store = copy.deepcopy(store)
            got = decode(method, models.target, DecodeRequest(prompt, len(text), store=store))
            # The rows of the last step teach too, and no further draft of the replay asks for them.
            expected = replay(prompt, text, len(text), plain.draft)
            plain.draft([*prompt, *text], 0)
            assert rounds_of(got) == expected
            assert [*choices, plain.choices[-1]] == plain.choices
            rounds[memory].append(expected)
    assert rounds["run"][0] == rounds["prompt"][0] and rounds["run"][1] != rounds["prompt"][1]


def test_estimates_by_hand() -> None:
    """Two exits of four layers. Exit 1 is right once in four rows, exit 3 three times; then both are right twice."""
    estimates = Estimates()
    right = torch.tensor([[True, False, False, False], [True, True, True, False]])
    likely = torch.tensor([[0.8, 0.2, 0.3, 0.1], [0.9, 0.6, 0.6, 0.5]], dtype=torch.float64)
    estimates.learn(right, likely, 0.5)
    assert [estimates.threshold(at) for at in (0, 1)] == pytest.approx([(0.8 + 0.2) / 2, (0.7 + 0.5) / 2])
    # Tokens per layer of exit 1: 1/4, 1.25/5; of exit 3: 1/4, 1.75/7, 2.3125/10. The first of equal ones is chosen.
    assert estimates.best((1, 3), 4, 2) == (0, 0)
    estimates.learn(torch.ones(2, 2, dtype=torch.bool), torch.full((2, 2), 0.4, dtype=torch.float64), 0.5)
    assert torch.equal(estimates.counts, torch.tensor([[2.5, 1.5], [3.5, 0.5]], dtype=torch.float64))
    assert estimates.threshold(0) == pytest.approx(((0.5 * 0.8 + 2 * 0.4) / 2.5 + 0.2) / 2)
    # Exit 1: a = 0.625, so 1/4, 1.625/5, 2.015625/6 (the most), 2.26/7; exit 3: a = 0.875, 1/4, 1.875/7, 2.64/10.
    assert estimates.best((1, 3), 4, 3) == (0, 2)
    estimates.learn(torch.tensor([[False], [True]]), torch.ones(2, 1, dtype=torch.float64), 0.0)
    assert isnan(estimates.threshold(0)) and isnan(estimates.threshold(1))
    assert estimates.best((1, 3), 4, 6) == (1, 6)  # 7/22 against 1/4


def test_verification_runs_no_row_twice_and_no_layer_is_probed_by_a_pass_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """States of all exits come from the layers that drafting and verification run anyway."""
    models, text = pair("llama"), answer("llama", 0, 13)
    runs: list[Any] = []
    step = AutoExit.step

    def watched(method: AutoExit, context: Context) -> Sequence[int]:
        tokens: Sequence[int] = step(method, context)
        runs.extend(context.stream.runs)
        return tokens

    monkeypatch.setattr(AutoExit, "step", watched)
    got = decode(prepared("auto_exit", models.target), models.target, DecodeRequest(prompt_of(13), NEW_TOKENS))
    assert list(got.token_ids) == text
    ran = sum((run.last - run.first) * run.rows for run in runs)
    assert ran == LAYERS * sum(1 + step.drafted for step in got.steps)
    assert {step.passes for step in got.steps} == {1}
