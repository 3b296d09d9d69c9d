"""What tests of expert offloading share: visits, a fast tier driven without time, a simulated link, a clock by hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from unittest.mock import patch

from benchctl.decoding.experts.fast_tier import Counts, FastTier, Key, PolicyName, policy_of

Visits = Sequence[tuple[int, Sequence[int]]]


def visits_of(passes: Sequence[Sequence[Sequence[int]]]) -> list[tuple[int, Sequence[int]]]:
    """The visits of passes over the layers: [[[0, 1], [2]]] is one pass, whose layer 1 needs expert 2."""
    return [(layer, experts) for over in passes for layer, experts in enumerate(over)]


def settle(tier: FastTier) -> list[Key]:
    """Let every transfer that can begin arrive at once; what was moved, in order."""
    moved: list[Key] = []
    while (key := tier.next()) is not None:
        moved.append(key)
        tier.arrive()
    return moved


def drive(visits: Visits, tier: FastTier) -> Counts:
    """All visits, loading as fast as asked; the counts of all passes together."""
    for layer, experts in visits:
        tier.need(layer, experts)
        for expert in experts:
            settle(tier)
            assert tier.holds(Key(layer, expert))
            tier.done(Key(layer, expert))
    return tier.counts


def loads(name: PolicyName, visits: Visits, capacity: int, layers: int) -> int:
    """Experts that a policy loads for these visits, without any prefetch."""
    tier = FastTier(capacity, policy_of(name, layers))
    drive(visits, tier)
    return tier.prefill.loads + tier.decode.loads


class Visit(NamedTuple):
    """A layer reached by a pass: its needed experts and, by coming layer, those predicted there."""

    layer: int
    experts: tuple[int, ...]
    predicted: dict[int, tuple[int, ...]]


@contextmanager
def recorded_visits() -> Iterator[list[Visit]]:
    """The visits of whatever decodes out of a fast tier meanwhile."""
    visits: list[Visit] = []
    need, want = FastTier.need, FastTier.want

    def needed(tier: FastTier, layer: int, experts: Sequence[int]) -> None:
        visits.append(Visit(layer, tuple(experts), {}))
        need(tier, layer, experts)

    def wanted(tier: FastTier, layer: int, experts: Sequence[int]) -> None:
        visits[-1].predicted[layer] = tuple(experts)
        want(tier, layer, experts)

    with patch.object(FastTier, "need", needed), patch.object(FastTier, "want", wanted):
        yield visits


class Simulation:
    """The oracle of the loader's thread: one link on which a transfer takes ``transfer_s``; computing takes no time."""

    def __init__(self, tier: FastTier, transfer_s: float, together: int) -> None:
        self._tier, self._transfer_s, self._together = tier, transfer_s, together
        self._now_s = 0.0
        self._arrival_s: float | None = None

    def run(self, visits: Sequence[Visit]) -> None:
        for layer, experts, predicted in visits:
            self._tier.need(layer, experts)
            self._begin()
            for ahead, guesses in predicted.items():
                self._tier.want(ahead, guesses)
            self._begin()
            for expert in experts[: self._together]:
                self._wait_for(Key(layer, expert))
            for expert in experts:
                self._wait_for(Key(layer, expert))
                self._tier.done(Key(layer, expert))
                self._begin()

    def _wait_for(self, key: Key) -> None:
        started_s = self._now_s
        while not self._tier.holds(key):
            assert self._arrival_s is not None, "what is needed is on its way"
            self._now_s, self._arrival_s = self._arrival_s, None
            self._tier.arrive()
            self._begin()
        self._tier.counts.stall_s += self._now_s - started_s

    def _begin(self) -> None:
        if self._arrival_s is None and self._tier.next() is not None:
            self._arrival_s = self._now_s + self._transfer_s


class HandTimer:
    """Time that stands still but where the caller waits or `compute`s; loaders only look at it."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._lock = threading.Lock()

    def now_s(self) -> float:
        return self._now_s

    def wait_until(self, moment_s: float) -> None:
        with self._lock:
            self._now_s = max(self._now_s, moment_s)

    def compute(self, seconds: float) -> None:
        self.wait_until(self._now_s + seconds)
