"""Watches real decoding from outside: what each step has to run, and what it takes.

Of a step that verifies a draft the time counts from the finished draft to the committed cache: pushing, masks, layers,
heads, verdict, moved rows. Drafting is no part of it, nor what a drafter does with the outcome. Of any other step all
of it counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from torch import Tensor

from benchctl.decoding.adaptive import AdaptiveDepth
from benchctl.decoding.draft import Draft
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Method, Outcome, Speculative
from benchctl.decoding.model.kernels import Linear
from benchmarks.work import Bare, Work, run_bare, spans_of

PARTS = ("advance", "run_rows", "fill", "logits", "keep")  # of Stream


@dataclass(frozen=True)
class Took:
    """Seconds of a step's real work, and of that by part: PARTS, the verdict as verify, and as decide what is asked at
    exits, their heads included. What one part calls of another counts for the other alone."""

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
        stepping = _stepping(method)
        drafter = next((found for found in stepping if isinstance(found, Speculative)), None)
        with ExitStack() as stack:
            if drafter is not None:
                verify = partial(self.part, "verify")
                for name, watched in (("draft", self._draft), ("verify", verify), ("observe", self._observe)):
                    stack.enter_context(_replaced(drafter, name, partial(watched, getattr(drafter, name))))
            for leaving in (found for found in stepping if isinstance(found, AdaptiveDepth)):
                stack.enter_context(_replaced(leaving, "decide", partial(self.part, "decide", leaving.decide)))
            stack.enter_context(_replaced(method, "step", partial(self._step, method.step)))
            yield

    def _step(self, original: Callable[[Context], Sequence[int]], context: Context) -> Sequence[int]:
        if self._stream is not context.stream:
            self._stream = context.stream
            self.meet(context.stream)
        self.drafted = False
        self.begin(context, None)
        tokens = original(context)
        if not self.drafted:
            self.end(context, tokens)
        return tokens

    def _draft(self, original: Callable[[Context, int], Draft], context: Context, budget: int) -> Draft:
        ends = context.stream.length
        draft = original(context, budget)
        self.drafted = True
        self.begin(context, _verification(context, draft, ends))
        return draft

    def _observe(self, original: Callable[[Context, Outcome], None], context: Context, outcome: Outcome) -> None:
        self.end(context, None)
        original(context, outcome)

    def meet(self, stream: Stream) -> None:
        """A stream is new; it is of this generation alone, so its functions need not be restored."""
        for name in PARTS:
            setattr(stream, name, partial(self.part, name, getattr(stream, name)))

    @abstractmethod
    def begin(self, context: Context, verification: Work | None) -> None:
        """A step begins; then, where it drafts, its draft is there, and what there is to do to verify it."""

    @abstractmethod
    def end(self, context: Context, tokens: Sequence[int] | None) -> None:
        """The work is done; its tokens are known where nothing was drafted."""

    @abstractmethod
    def part(self, name: str, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Do one part of the work."""


class Recorder(Watch):
    """Writes down the work of each step. Decoding under it is not timed."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Work] = []
        self._heads: list[int] = []
        self._starts: list[int] = []
        self._filled = 0

    @contextmanager
    def on(self, method: Method) -> Iterator[None]:
        """Also counts the products with the LM head, whoever asks for them: trained exits have their own way to it."""
        with super().on(method), _replaced(Linear, "__call__", _counted(Linear.__call__, self._count)):
            yield

    def _count(self, linear: Linear, rows: int) -> None:
        if self._stream is not None and linear is self._stream.target.lm_head:
            self._heads.append(rows)

    def begin(self, context: Context, verification: Work | None) -> None:
        self._heads, self._starts = [], list(context.stream.cache.lengths)
        self._filled = context.target.layers
        if verification is not None:
            self.works.append(verification)

    def end(self, context: Context, tokens: Sequence[int] | None) -> None:
        if tokens is None:
            return  # what there was to do was known when the draft was there, whatever was done
        spans = spans_of(self._starts, self._rows_run(context.stream))
        self.works.append(Work(False, tuple(context.tokens[-1:]), spans, tuple(self._heads), 1))

    def _rows_run(self, stream: Stream) -> list[int]:
        """By layer: those that it is done with since, and that neither passed it by nor were filled in."""
        rows = []
        for layer, (start, end) in enumerate(zip(self._starts, stream.cache.lengths, strict=True)):
            passed = sum(slot >= start for slot in stream.cache.absent[layer])
            rows.append(end - start - passed if layer < self._filled else 0)
        return rows

    def part(self, name: str, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if name == "fill":
            self._filled = arguments[0]
        return original(*arguments, **options)


class Timekeeper(Watch):
    """Times, step by step in turns, the real work and a bare pass in its place, before the real one runs untimed.

    In steps whose number has the parity ``first`` the real work is timed. Each comes right after what comes before it
    in real decoding, so neither finds more of what it needs in the processor's caches than the other.

    Raises RuntimeError where there is something else to do than was recorded: then the bare passes are of other work.
    """

    def __init__(self, works: Sequence[Work], first: int, stored: Tensor, clock: Callable[[], float]) -> None:
        super().__init__()
        self.took: dict[int, Took] = {}
        self.bare: dict[int, Bare] = {}
        self._works, self._first, self._stored, self._clock = works, first, stored, clock
        self._step_number, self._begin_s = -1, 0.0
        self._parts: defaultdict[str, float] = defaultdict(float)
        self._within_s = 0.0  # of the part at work: what it called of others

    def begin(self, context: Context, verification: Work | None) -> None:
        self._step_number += verification is None
        number, work = self._step_number, self._recorded(context, verification)
        if work.drafted == (verification is not None) and not self._is_real(number):
            stream = context.stream
            self.bare[number] = run_bare(stream.target, stream.cache, work, self._stored, self._clock)
        self._parts, self._within_s = defaultdict(float), 0.0
        self._begin_s = self._clock()

    def _recorded(self, context: Context, verification: Work | None) -> Work:
        if self._step_number >= len(self._works):
            self._differ()
        work, lengths = self._works[self._step_number], context.stream.cache.lengths
        begins = work.drafted or all(lengths[span.first] == span.start for span in work.spans)
        if not begins if verification is None else verification != work:
            self._differ()
        return work

    def _differ(self) -> NoReturn:
        raise RuntimeError(f"step {self._step_number} is otherwise than when it was recorded: its draft, or its cache")

    def end(self, context: Context, tokens: Sequence[int] | None) -> None:
        seconds = self._clock() - self._begin_s
        if tokens is not None and self._works[self._step_number].drafted:
            self._differ()
        if self._is_real(self._step_number):
            self.took[self._step_number] = Took(seconds, dict(self._parts))

    def part(self, name: str, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        before_s, self._within_s = self._within_s, 0.0
        begin_s = self._clock()
        found = original(*arguments, **options)
        seconds = self._clock() - begin_s
        self._parts[name] += seconds - self._within_s
        self._within_s = before_s + seconds
        return found

    def _is_real(self, number: int) -> bool:
        return number % 2 == self._first


def _stepping(method: Method) -> list[Method]:
    """What may take the steps of a method: itself, or what it hands them on to."""
    return [method, *(found for found in vars(method).values() if isinstance(found, Method))]


def _verification(context: Context, draft: Draft, ends: int) -> Work:
    """What there is to do once the draft is there, whose root is in the slot before ``ends``.

    The rows that each layer lacks, and one head for the root and each drafted row: more than that is the method's own.
    """
    starts, tokens = context.stream.cache.lengths, (context.tokens[-1], *draft.tokens)
    rows = [ends + len(draft) - start for start in starts]
    argmax_rows = len(tokens) - sum(draft.scratch)
    return Work(True, tokens[len(tokens) - rows[0] :], spans_of(starts, rows), (len(tokens),), argmax_rows)


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
