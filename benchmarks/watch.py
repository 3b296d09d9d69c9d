"""Watches real decoding from outside: what each step has to run, and what it takes.

Of a step that verifies a draft the time counts from the finished draft to the committed cache: pushing, masks, layers,
heads, verdict, moved rows. Drafting is no part of it, nor what a drafter does with the outcome. Of any other step all
of it counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from benchctl.decoding.adaptive import AdaptiveDepth
from benchctl.decoding.draft import Draft
from benchctl.decoding.kernels import Linear
from benchctl.decoding.method import Context, Method, Outcome, Speculative, Step
from benchctl.decoding.stream import Stream
from benchmarks.work import Bare, Work, run_bare, spans_of

PARTS = ("advance", "choose", "fill", "logits", "keep")  # of Stream; not one of them calls another


@dataclass(frozen=True)
class Took:
    """Seconds of a step's real work, and of that by part: PARTS, the verdict as verify, and as decide what is asked at
    exits, their heads included."""

    seconds: float
    parts: Mapping[str, float]


class Watch(ABC):
    """Told when the work of a step begins and ends; one for each generation."""

    def __init__(self) -> None:
        self.drafted = False
        self._stream: Stream | None = None

    @contextmanager
    def on(self, method: Method) -> Iterator[None]:
        """While open, the method's steps are watched; afterwards it is as it was."""
        drafter = _drafter_of(method)
        with ExitStack() as stack:
            if drafter is not None:
                verify = partial(self.part, "verify")
                for name, watched in (("draft", self._draft), ("verify", verify), ("observe", self._observe)):
                    stack.enter_context(_replaced(drafter, name, partial(watched, getattr(drafter, name))))
            if isinstance(method, AdaptiveDepth):
                stack.enter_context(_replaced(method, "decide", partial(self.part, "decide", method.decide)))
            stack.enter_context(_replaced(method, "step", partial(self._step, method.step)))
            yield

    def _step(self, original: Callable[[Context], Step], context: Context) -> Step:
        if self._stream is not context.stream:
            self._stream = context.stream
            self.meet(context.stream)
        self.drafted = False
        self.begin(context, None)
        step = original(context)
        if not self.drafted:
            self.end(context, step)
        return step

    def _draft(self, original: Callable[[Context, int], Draft], context: Context, budget: int) -> Draft:
        ends = context.stream.length
        draft = original(context, budget)
        self.drafted = True
        self.begin(context, _Drafted(draft, ends))
        return draft

    def _observe(self, original: Callable[[Context, Outcome], None], context: Context, outcome: Outcome) -> None:
        self.end(context, None)
        original(context, outcome)

    def meet(self, stream: Stream) -> None:
        """A stream is new; it is of this generation alone, so nobody has to give its functions back."""
        for name in PARTS:
            setattr(stream, name, partial(self.part, name, getattr(stream, name)))

    @abstractmethod
    def begin(self, context: Context, drafted: _Drafted | None) -> None:
        """A step begins; then, where it drafts, its draft is there."""

    @abstractmethod
    def end(self, context: Context, step: Step | None) -> None:
        """The work is done; the step itself is known where nothing was drafted."""

    @abstractmethod
    def part(self, name: str, original: Callable[..., Any], *arguments: Any) -> Any:
        """Do one part of the work."""


@dataclass(frozen=True)
class _Drafted:
    """A draft, and the slot behind its root."""

    draft: Draft
    ends: int


class Recorder(Watch):
    """Writes down the work of each step. Decoding under it is not timed."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Work] = []
        self._heads: list[int] = []
        self._starts: list[int] = []
        self._filled = 0
        self._drafted: _Drafted | None = None

    @contextmanager
    def on(self, method: Method) -> Iterator[None]:
        """Also counts the products with the LM head, whoever asks for them: trained exits have their own way to it."""
        with super().on(method), _replaced(Linear, "__call__", _counted(Linear.__call__, self._count)):
            yield

    def _count(self, linear: Linear, rows: int) -> None:
        if self._stream is not None and linear is self._stream.target.lm_head:
            self._heads.append(rows)

    def begin(self, context: Context, drafted: _Drafted | None) -> None:
        self._drafted, self._heads = drafted, []
        self._starts, self._filled = list(context.stream.cache.lengths), context.target.layers

    def end(self, context: Context, step: Step | None) -> None:
        found = self._drafted
        if found is None:
            rows, tokens, told = self._rows_run(context.stream), context.tokens[-1:], 1
        else:
            total = found.ends + len(found.draft)
            rows, tokens = [total - start for start in self._starts], [context.tokens[-1], *found.draft.tokens]
            told = 1 + len(found.draft) - sum(found.draft.scratch)
        begun = tuple(tokens[len(tokens) - rows[0] :])
        self.works.append(Work(found is not None, begun, spans_of(self._starts, rows), tuple(self._heads), told))

    def _rows_run(self, stream: Stream) -> list[int]:
        """By layer: those that it is done with since, and that neither passed it by nor were filled in."""
        rows = []
        for layer, (start, end) in enumerate(zip(self._starts, stream.cache.lengths, strict=True)):
            passed = sum(slot >= start for slot in stream.cache.absent[layer])
            rows.append(end - start - passed if layer < self._filled else 0)
        return rows

    def part(self, name: str, original: Callable[..., Any], *arguments: Any) -> Any:
        if name == "fill":
            self._filled = arguments[0]
        return original(*arguments)


class Timekeeper(Watch):
    """Times, step by step in turns, the real work and a bare pass in its place, before the real one runs untimed.

    In steps whose number has the parity ``first`` the real work is timed. Each comes right after what comes before it
    in real decoding, so neither finds more of what it needs in the processor's caches than the other.
    """

    def __init__(self, works: Sequence[Work], first: int, stored: Tensor, clock: Callable[[], float]) -> None:
        super().__init__()
        self.took: dict[int, Took] = {}
        self.bare: dict[int, Bare] = {}
        self._works, self._first, self._stored, self._clock = works, first, stored, clock
        self._step_number, self._begin_s = -1, 0.0
        self._parts: Counter[str] = Counter()

    def begin(self, context: Context, drafted: _Drafted | None) -> None:
        self._step_number += drafted is None
        number = self._step_number
        work = self._works[number]
        if work.drafted == (drafted is not None) and not self._is_real(number):
            stream = context.stream
            self.bare[number] = run_bare(stream.target, stream.cache, work, self._stored, self._clock)
        self._parts = Counter()
        self._begin_s = self._clock()

    def end(self, context: Context, step: Step | None) -> None:
        seconds = self._clock() - self._begin_s
        if self._is_real(self._step_number):
            self.took[self._step_number] = Took(seconds, dict(self._parts))

    def part(self, name: str, original: Callable[..., Any], *arguments: Any) -> Any:
        begin_s = self._clock()
        found = original(*arguments)
        self._parts[name] += self._clock() - begin_s  # type: ignore[assignment]
        return found

    def _is_real(self, number: int) -> bool:
        return number % 2 == self._first


def _drafter_of(method: Method) -> Speculative | None:
    """What drafts in the steps of a method: itself, or what it hands its steps on to."""
    handed = (found for found in vars(method).values() if isinstance(found, Speculative))
    return method if isinstance(method, Speculative) else next(handed, None)


def _counted(original: Callable[[Linear, Tensor], Tensor], count: Callable[[Linear, int], None]) -> Any:
    def call(linear: Linear, x: Tensor) -> Tensor:
        count(linear, x.shape[0])
        return original(linear, x)

    return call


@contextmanager
def _replaced(owner: Any, name: str, stand_in: Any) -> Iterator[None]:
    own = vars(owner).get(name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
