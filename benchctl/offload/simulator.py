"""A discrete simulation of expert offloading: the books of the fast tier, driven by arithmetic instead of threads."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Final, Literal

from benchctl.decoding.experts.fast_tier import Counts, FastTier
from benchctl.decoding.experts.policies import ORACLE, Key, Oracle, Policy, PolicyName, policy_of
from benchctl.decoding.experts.policies import POLICIES as REAL_POLICIES
from benchctl.decoding.experts.trace import Generation, Trace, Visit
from benchctl.offload.made_up import Guessing, made_up_predictions

PolicyChoice = PolicyName | Literal["oracle"]
POLICIES: Final[tuple[PolicyChoice, ...]] = (*REAL_POLICIES, ORACLE)
Prefetch = Literal["blocking", "none", "recorded", "next", "aot"]


@dataclass(frozen=True)
class Setting:
    """What is simulated: a fast tier of ``capacity`` experts behind a link of so many 10^6 bytes a second.

    Prefetch none demands a layer's experts when it is reached and computes each as it comes; blocking waits for all of
    them first.
    """

    policy: PolicyChoice
    prefetch: Prefetch
    capacity: int
    bandwidth_mb_s: float
    guessing: Guessing = field(default_factory=Guessing)


@dataclass(frozen=True)
class Simulated:
    """What a simulation gives. Times and counts are of decoding, prefill left out; it only fills the fast tier."""

    setting: Setting
    tokens: int
    decode_s: float
    counts: Counts

    @property
    def tpot_s(self) -> float:
        return self.decode_s / self.tokens


def simulate(trace: Trace, setting: Setting) -> Simulated:
    """All generations of a trace, each with an empty fast tier, as every prompt of a real run begins with one.

    Computing takes what the trace says, a transfer expert_bytes / bandwidth, one after another; nothing else takes
    time. Raises ValueError for a capacity that does not hold the experts of one token.
    """
    if setting.capacity < trace.top_k:
        raise ValueError(f"capacity {setting.capacity} is below the {trace.top_k} experts that each token needs")
    transfer_s = trace.expert_bytes / (setting.bandwidth_mb_s * 1e6)
    total, decode_s = Counts(), 0.0
    for generation in _with_predictions(trace, setting):
        tier = FastTier(setting.capacity, _policy(setting, generation, trace.layers))
        together = setting.capacity if setting.prefetch == "blocking" else 1
        decode_s += _Machine(tier, transfer_s, together).run(generation)
        total = _sum(total, tier.decode)
    return Simulated(setting, trace.tokens, decode_s, total)


def _with_predictions(trace: Trace, setting: Setting) -> tuple[Generation, ...]:
    if setting.prefetch == "recorded":
        return trace.generations
    if setting.prefetch in ("none", "blocking"):
        return tuple(tuple(map(_without_prediction, generation)) for generation in trace.generations)
    return made_up_predictions(trace, "aot" if setting.prefetch == "aot" else "next", setting.guessing)


def _without_prediction(visit: Visit) -> Visit:
    return replace(visit, predicted={}, predict_s=0.0)


def _policy(setting: Setting, generation: Generation, layers: int) -> Policy:
    if setting.policy == ORACLE:
        return Oracle([[Key(visit.layer, expert) for expert in visit.experts] for visit in generation])
    return policy_of(setting.policy, layers)


def _sum(one: Counts, other: Counts) -> Counts:
    return Counts(*(getattr(one, item.name) + getattr(other, item.name) for item in fields(Counts)))


class _Machine:
    """One computation and one link. Events happen in the order and at the places of decoding.offload."""

    def __init__(self, tier: FastTier, transfer_s: float, together: int) -> None:
        self._tier, self._transfer_s, self._together = tier, transfer_s, together
        self._now_s = 0.0
        self._arrival_s: float | None = None

    def run(self, generation: Generation) -> float:
        """Seconds from the end of the first pass to the end of the last."""
        decode_from_s, layer, first = 0.0, -1, True
        for visit in generation:
            if visit.layer <= layer and first:
                decode_from_s, first = self._now_s, False
            layer = visit.layer
            self._visit(visit)
        return 0.0 if first else self._now_s - decode_from_s

    def _visit(self, visit: Visit) -> None:
        tier = self._tier
        self._compute(visit.before_s)
        tier.need(visit.layer, visit.experts)
        self._transfer()
        self._compute(visit.predict_s)
        for layer, experts in visit.predicted.items():
            tier.want(layer, experts)
        self._transfer()
        for expert in visit.experts[: self._together]:
            self._wait_for(Key(visit.layer, expert))
        for expert in visit.experts:
            self._wait_for(Key(visit.layer, expert))
            self._compute(visit.experts_s / len(visit.experts))
            tier.done(Key(visit.layer, expert))
            self._transfer()

    def _compute(self, seconds: float) -> None:
        """Time passes; transfers end and follow each other meanwhile."""
        until_s = self._now_s + seconds
        while self._arrival_s is not None and self._arrival_s <= until_s:
            self._now_s = self._arrival_s
            self._arrive()
        self._now_s = until_s

    def _wait_for(self, key: Key) -> None:
        started_s = self._now_s
        while not self._tier.holds(key):
            assert self._arrival_s is not None, "what is needed is on its way"
            self._now_s = self._arrival_s
            self._arrive()
        self._tier.counts.stall_s += self._now_s - started_s

    def _arrive(self) -> None:
        self._tier.arrive()
        self._arrival_s = None
        self._transfer()

    def _transfer(self) -> None:
        if self._arrival_s is None and self._tier.next() is not None:
            self._arrival_s = self._now_s + self._transfer_s
