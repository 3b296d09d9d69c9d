"""When prefill and each step of a generation ended and, in a profile, what the time of a step went into.

Clock readings between phases wait for the device and slow a step, so no speed-up is taken from a profile.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

Phase = Literal["draft", "verify", "commit", "host"]
"""draft: proposing tokens, with what the drafter takes from the verification; verify: the target's pass and the choice
of tokens, of plain steps too; commit: keeping and dropping rows in the cache; host: what is left, the loop included."""

PHASES: tuple[Phase, ...] = ("draft", "verify", "commit", "host")
UNSPLIT = "unsplit"  # the whole of a step that enters no phase, as of a method with its own `step`


def ignore_phase(phase: Phase) -> None:
    """`Marks.enter` of a generation without a profile."""


class Marks:
    """Reads the clock it is given. With ``split`` it also collects the phases that steps `enter`."""

    def __init__(self, clock: Callable[[], float], split: bool = False) -> None:
        self._clock = clock
        self._split = split
        self._at: list[float] = []
        self._steps: list[dict[str, float]] = []
        self._entered: list[tuple[Phase, float]] = []

    def mark(self) -> None:
        """Prefill begins, prefill has ended, a step has ended, a step has ended .."""
        self._at.append(self._clock())
        if self._split and len(self._at) > 2:
            begin, end = self._at[-2:]
            spent: dict[str, float] = dict.fromkeys(PHASES, 0.0) if self._entered else {UNSPLIT: end - begin}
            if self._entered:
                for (phase, since), (_, until) in pairwise([("host", begin), *self._entered, ("host", end)]):
                    spent[phase] += until - since
            self._steps.append(spent)
        self._entered.clear()

    def enter(self, phase: Phase) -> None:
        """A phase of the present step begins. A step begins in the phase host."""
        self._entered.append((phase, self._clock()))

    @property
    def watch(self) -> Callable[[Phase], None]:
        return self.enter if self._split else ignore_phase

    def seconds(self, steps: int) -> list[float]:
        """Of prefill, then of each of the first ``steps`` steps."""
        return [after - before for before, after in pairwise(self._at[: 2 + steps])]

    def phases(self, steps: int) -> dict[str, tuple[float, ...]]:
        """Seconds of each phase in each of the first ``steps`` steps, which they add up to; nothing if not split."""
        if not self._split:
            return {}
        unsplit = any(UNSPLIT in step for step in self._steps)
        names = (*PHASES, UNSPLIT) if unsplit else PHASES
        return {name: tuple(step.get(name, 0.0) for step in self._steps[:steps]) for name in names}
