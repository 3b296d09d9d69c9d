"""What tests of expert offloading share: visits in few words, a fast tier driven without time, and a clock by hand."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from benchctl.decoding.experts.fast_tier import Counts, FastTier
from benchctl.decoding.experts.policies import Key, Oracle, Policy, PolicyName, policy_of
from benchctl.decoding.experts.trace import Visit

Visits = Sequence[tuple[int, Sequence[int]]]


def visits_of(passes: Sequence[Sequence[Sequence[int]]]) -> list[tuple[int, Sequence[int]]]:
    """The visits of passes over the layers: [[[0, 1], [2]]] is one pass, whose layer 1 needs expert 2."""
    return [(layer, experts) for over in passes for layer, experts in enumerate(over)]


def policy(name: PolicyName | str, visits: Visits, layers: int) -> Policy:
    if name == "oracle":
        return Oracle([[Key(layer, expert) for expert in experts] for layer, experts in visits])
    return policy_of(name, layers)  # type: ignore[arg-type]


def settle(tier: FastTier) -> list[Key]:
    """Let every transfer that can begin arrive at once; what was moved, in order."""
    moved: list[Key] = []
    while (transfer := tier.next()) is not None:
        moved.append(transfer.key)
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


def loads(name: PolicyName | str, visits: Visits, capacity: int, layers: int) -> int:
    """Experts that a policy loads for these visits, without any prefetch."""
    tier = FastTier(capacity, policy(name, visits, layers))
    drive(visits, tier)
    return tier.prefill.loads + tier.decode.loads


def visit(layer: int, *experts: int, before_s: float = 0.0, experts_s: float = 0.0) -> Visit:
    return Visit(layer, experts, {}, before_s, 0.0, experts_s)


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
