"""Answers drawn by the thousand, of which few are decoded: what a method computes between two draws is remembered.

A short answer hangs on what its draws come to, and on nothing else. So the answers are the ends of a tree, at whose
branchings a token is drawn, or a drafted one accepted. Whoever has decoded the answers of a few seeds knows the tree;
another seed's answer follows from the numbers that its generator gives, which takes no pass of any model.

That holds only where the numbers are those of the generator the method was given, one after the other, each used once.
So the numbers of every answer that is decoded are drawn a second time, and have to lead to it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from benchctl.conformance.chances import taken_over
from benchctl.decoding import verify
from benchctl.decoding.sampling import draw

Text = tuple[int, ...]
_multinomial, _uniform = torch.multinomial, verify._uniform


@dataclass(frozen=True, eq=False)
class _Token:
    """A token is drawn from ``probs`` [vocabulary]."""

    probs: Tensor

    def outcome(self, generator: torch.Generator) -> int:
        return draw(self.probs, generator)

    def is_same(self, other: _Token | _Acceptance) -> bool:
        return isinstance(other, _Token) and torch.equal(self.probs, other.probs)


@dataclass(frozen=True)
class _Acceptance:
    """A number from [0, 1), times ``factor``, is to be below ``bound``."""

    factor: float
    bound: float

    def outcome(self, generator: torch.Generator) -> int:
        return int(_uniform(generator) * self.factor < self.bound)

    def is_same(self, other: _Token | _Acceptance) -> bool:
        return self == other


_Question = _Token | _Acceptance


class _Trace:
    """The draws of one answer: what was asked, what it came to, and whether the generator served for nothing else."""

    def __init__(self, generator: torch.Generator) -> None:
        self.path: list[tuple[_Question, int]] = []
        self.is_whole = True
        self._state = generator.get_state()

    def multinomial(self, probs: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
        with self._looked_at(generator):
            found: Tensor = _multinomial(probs, count, generator=generator)
        self.path.append((_Token(probs), int(found)))
        return found

    def uniform(self, generator: torch.Generator) -> _Number:
        with self._looked_at(generator):
            return _Number(self, _uniform(generator))

    @contextmanager
    def _looked_at(self, generator: torch.Generator) -> Iterator[None]:
        self.is_whole &= torch.equal(generator.get_state(), self._state)
        yield
        self._state = generator.get_state()


class _Number:
    """A number from [0, 1) that is noted when it decides."""

    def __init__(self, trace: _Trace, number: float, factor: float = 1.0) -> None:
        self._trace, self._number, self._factor = trace, number, factor

    def __mul__(self, factor: float) -> _Number:
        return _Number(self._trace, self._number, self._factor * factor)

    def __lt__(self, bound: float) -> bool:
        is_below = self._number * self._factor < bound
        self._trace.path.append((_Acceptance(self._factor, bound), int(is_below)))
        return is_below


class Drawing:
    """Answers by their seeds: ``decode`` gives one, and draws from what ``generator`` gives for the same seed.

    follows  whether every answer decoded so far followed from its draws alone: those of a method that draws numbers of
             its own too do not
    checked  the answers decoded that came the way of an earlier one, and so could have been another than that: the
             first to come a way shows nothing
    """

    def __init__(self, decode: Callable[[int], Text], generator: Callable[[int], torch.Generator]) -> None:
        self._decode, self._generator = decode, generator
        self._questions: dict[Text, _Question] = {}  # by what the draws before came to
        self._answers: dict[Text, Text] = {}
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
        """The same answer, by the numbers alone wherever these lead to one that is known."""
        generator, came_to = self._generator(seed), Text()
        while self.follows and came_to in self._questions:
            came_to = (*came_to, self._questions[came_to].outcome(generator))
        found = self._answers.get(came_to) if self.follows else None
        return self.decode(seed) if found is None else found

    def _remember(self, seed: int, trace: _Trace, answer: Text) -> bool:
        """Whether the answer agrees with those before, and each of its draws with what the seed's numbers give."""
        generator, came_to = self._generator(seed), Text()
        for question, outcome in trace.path:
            if came_to in self._answers or not self._questions.setdefault(came_to, question).is_same(question):
                return False
            if question.outcome(generator) != outcome:
                return False
            came_to = (*came_to, outcome)
        self.checked += came_to in self._answers
        return came_to not in self._questions and self._answers.setdefault(came_to, answer) == answer
