"""Answers drawn by the thousand, of which few are decoded.

A short answer depends only on the outcomes of its draws. So all answers are the leaves of a tree, and each branching is
a token that is drawn or a drafted token that is accepted. Decoding the answers of a few seeds shows the tree. The
answer of another seed follows from the numbers that its generator gives, without a pass of any model.

That holds only where the method uses the numbers of its generator in order and each once. So `Drawing` draws the
numbers of every decoded answer a second time, and they have to lead to the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from benchctl.conformance.enumeration import Uniform, taken_over
from benchctl.decoding import verify
from benchctl.decoding.sampling import draw

Text = tuple[int, ...]
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
