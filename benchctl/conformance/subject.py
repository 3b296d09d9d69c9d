"""A method under examination: made anew from its label, given what it needs, and watched while it decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from benchctl.conformance.grounds import Ground
from benchctl.conformance.untrained import facts_of, untrained
from benchctl.decoding.experts.tiers import Timer
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Context, Method, Step, UsesDraftModel
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folder import save_modules
from benchctl.decoding.modules.trainable import Trainable
from benchctl.decoding.sampling import Sampling
from benchctl.registry import build, canonical_label, parse_label

Look = Callable[[Stream, Sequence[int], Step | None], None]


@dataclass(frozen=True)
class Subject:
    """A method by its label. ``folder`` takes the untrained modules of those that need some."""

    label: str
    folder: Path
    _modules: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def fresh(self) -> Method:
        return build(self.label)

    @property
    def canonical(self) -> str:
        return canonical_label(self.fresh(), parse_label(self.label))

    def prepared(self, ground: Ground) -> Method:
        """A fresh method, ready for a target: with a noisy twin as draft model, with untrained modules if need be."""
        method = self.fresh()
        if isinstance(method, Trainable) and method.needs_modules:
            method.modules = self._untrained(method, ground.target)
        if isinstance(method, UsesDraftModel):
            method.use_draft_model(ground.draft)
        method.prepare(ground.target)
        return method

    def _untrained(self, method: Method, target: Target) -> str:
        assert isinstance(method, Trainable)
        if target.weights_sha256 not in self._modules:
            place = self.folder / str(len(self._modules))
            save_modules(place, untrained(method, target), facts_of(self.label, method, target))
            self._modules[target.weights_sha256] = str(place)
        return self._modules[target.weights_sha256]


def answer(
    method: Method,
    ground: Ground,
    prompt: Sequence[int],
    limit: int,
    sampling: Sampling | None = None,
    forced: Sequence[int] | None = None,
) -> Generation:
    """What a prepared method says to a prompt, or does where that is ``forced``."""
    return decode(method, ground.target, DecodeRequest(list(prompt), limit, sampling or Sampling(), forced=forced))


class Watched(Method):
    """A prepared method that is looked at after its prefill and after each step, before the loop truncates that.

    ``look`` is given the stream, the text whose rows have to be committed by now, and the step, None for the prefill.
    """

    def __init__(self, method: Method, look: Look) -> None:
        self._method = method
        self._look = look

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        return self._method.serve(target, timer)

    def start(self, context: Context) -> int:
        first = self._method.start(context)
        self._look(context.stream, context.tokens, None)
        return first

    def step(self, context: Context) -> Step:
        step = self._method.step(context)
        self._look(context.stream, [*context.tokens, *step.tokens[:-1]], step)
        return step
