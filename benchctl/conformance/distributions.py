"""Distributions of random programs: by enumerating every way they can go, and by thousands of cheap draws.

A short answer depends only on the outcomes of its draws, so `Drawing` decodes a few seeds to learn the tree of outcomes
and reads the answers of other seeds off their numbers. That holds only where a method uses these numbers in order, each
once, so `Drawing` also draws the numbers of every decoded answer a second time and compares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from unittest.mock import patch

import torch
from torch import Tensor

from benchctl.decoding import verify
from benchctl.decoding.sampling import draw

Outcome = TypeVar("Outcome")


class Chance:
    """One way through a program: follows ``fixed`` choices, then the first possible ones, and notes the others."""

    def __init__(self, fixed: tuple[int, ...]) -> None:
        self._fixed = fixed
        self._taken: tuple[int, ...] = ()
        self.untaken: list[tuple[int, ...]] = []
        self.probability = 1.0

    def choose(self, probs: Sequence[float]) -> int:
        """An index, which has the probability given for it."""
        possible = [index for index, prob in enumerate(probs) if prob > 0.0]
        if len(self._taken) < len(self._fixed):
            index = self._fixed[len(self._taken)]
        else:
            index = possible[0]
            self.untaken += [(*self._taken, other) for other in possible[1:]]
        self._taken += (index,)
        self.probability *= probs[index] / sum(probs)
        return index

    def multinomial(self, probs: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
        """In the place of torch's."""
        assert count == 1
        return torch.tensor([self.choose(probs.tolist())])

    def uniform(self, generator: torch.Generator) -> Uniform:
        """In the place of a number from [0, 1): chance * factor < bound holds with min(1, bound / factor)."""
        return Uniform(self._is_below)

    def _is_below(self, factor: float, bound: float) -> bool:
        below = min(1.0, bound / factor) if factor > 0.0 else float(bound > 0.0)
        return self.choose((below, 1.0 - below)) == 0


class Uniform:
    """A number from [0, 1) whose comparisons ``is_below`` decides: whether number * factor < bound."""

    def __init__(self, is_below: Callable[[float, float], bool], factor: float = 1.0) -> None:
        self._is_below = is_below
        self._factor = factor

    def __mul__(self, factor: float) -> Uniform:
        return Uniform(self._is_below, self._factor * factor)

    def __lt__(self, bound: float) -> bool:
        return self._is_below(self._factor, bound)


def distribution(program: Callable[[Chance], Outcome]) -> dict[Outcome, float]:
    """Probability of each outcome of ``program``, whose draws and accept decisions all go through benchctl's own."""
    totals: dict[Outcome, float] = defaultdict(float)
    pending: list[tuple[int, ...]] = [()]
    while pending:
        chance = Chance(pending.pop())
        with taken_over(chance.multinomial, chance.uniform):
            totals[program(chance)] += chance.probability
        pending += chance.untaken
    return dict(totals)


@contextmanager
def taken_over(multinomial: Callable[..., Tensor], uniform: Callable[[torch.Generator], object]) -> Iterator[None]:
    """Meanwhile every draw of torch.multinomial, and the number of every accept decision, comes from these."""
    with patch.object(torch, "multinomial", multinomial), patch.object(verify, "_uniform", uniform):
        yield


Text = tuple[int, ...]


def total_variation(one: dict[Outcome, float], other: dict[Outcome, float]) -> float:
    """Half the sum of absolute differences: 0 for equal distributions, 1 for disjoint ones."""
    return 0.5 * sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys())


_multinomial, _uniform = torch.multinomial, verify._uniform


@dataclass(frozen=True, eq=False)
class _Branching:
    """A token drawn from ``values`` [vocabulary], or whether a number from [0, 1) * values[0] < values[1]."""

    values: Tensor
    is_token: bool

    def outcome(self, generator: torch.Generator) -> int:
        if self.is_token:
            return draw(self.values, generator)
        factor, bound = self.values.tolist()
        return int(_uniform(generator) * factor < bound)

    def equals(self, other: _Branching) -> bool:
        return self.is_token == other.is_token and torch.equal(self.values, other.values)


class _Trace:
    """The draws of one answer and their outcomes; ``is_whole`` is False where the generator served anything else."""

    def __init__(self, generator: torch.Generator) -> None:
        self.path: list[tuple[_Branching, int]] = []
        self.is_whole = True
        self._state = generator.get_state()

    def multinomial(self, probs: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
        with self._observed(generator):
            token: Tensor = _multinomial(probs, count, generator=generator)
        self.path.append((_Branching(probs, is_token=True), int(token)))
        return token

    def uniform(self, generator: torch.Generator) -> Uniform:
        with self._observed(generator):
            number = _uniform(generator)

        def is_below(factor: float, bound: float) -> bool:
            below = number * factor < bound
            values = torch.tensor((factor, bound), dtype=torch.float64)
            self.path.append((_Branching(values, is_token=False), int(below)))
            return below

        return Uniform(is_below)

    @contextmanager
    def _observed(self, generator: torch.Generator) -> Iterator[None]:
        self.is_whole &= torch.equal(generator.get_state(), self._state)
        yield
        self._state = generator.get_state()


class Drawing:
    """Answers by their seeds. ``decode`` gives one; it draws from what ``generator`` gives for the same seed.

    follows  whether every decoded answer followed from its draws alone; not where a method draws other numbers too
    checked  decoded answers that took the way of an earlier one; the first on a way proves nothing
    """

    def __init__(self, decode: Callable[[int], Text], generator: Callable[[int], torch.Generator]) -> None:
        self._decode, self._generator = decode, generator
        self._branchings: dict[Text, _Branching] = {}  # by the outcomes before
        self._answers: dict[Text, Text] = {}  # by all outcomes
        self.follows = True
        self.checked = 0

    def decode(self, seed: int) -> Text:
        """The method's own answer, by decoding."""
        trace = _Trace(self._generator(seed))
        with taken_over(trace.multinomial, trace.uniform):
            answer = self._decode(seed)
        self.follows = self.follows and trace.is_whole and self._remember(seed, trace, answer)
        return answer

    def draw(self, seed: int) -> Text:
        """The same answer, from the numbers alone where they lead to a known one."""
        generator, outcomes = self._generator(seed), Text()
        while self.follows and outcomes in self._branchings:
            outcomes = (*outcomes, self._branchings[outcomes].outcome(generator))
        known = self._answers.get(outcomes) if self.follows else None
        return self.decode(seed) if known is None else known

    def _remember(self, seed: int, trace: _Trace, answer: Text) -> bool:
        """Whether the answer agrees with earlier ones, and each of its draws with the numbers of the seed."""
        generator, outcomes = self._generator(seed), Text()
        for branching, outcome in trace.path:
            if outcomes in self._answers or not self._branchings.setdefault(outcomes, branching).equals(branching):
                return False
            if branching.outcome(generator) != outcome:
                return False
            outcomes = (*outcomes, outcome)
        self.checked += outcomes in self._answers
        return outcomes not in self._branchings and self._answers.setdefault(outcomes, answer) == answer
