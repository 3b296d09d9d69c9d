"""Every way a random program can go, with its probability: exact distributions where sampling would only estimate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar
from unittest.mock import patch

import torch
from torch import Tensor

from benchctl.decoding import verify

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


def total_variation(one: dict[Outcome, float], other: dict[Outcome, float]) -> float:
    """Half the sum of absolute differences: 0 for equal distributions, 1 for disjoint ones."""
    return 0.5 * sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys())
