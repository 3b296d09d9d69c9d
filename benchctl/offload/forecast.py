"""What simulations say of a trace, line by line, each beside on-demand LRU on the same tiers; for tables and files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from benchctl.decoding.experts.trace import Trace
from benchctl.errors import UserError
from benchctl.offload.made_up import Guessing, Shape
from benchctl.offload.simulator import PolicyChoice, Prefetch, Setting, Simulated, simulate

# allenai/OLMoE-1B-7B: 3 x 2048 x 1024 weights an expert, in 16 bit. The time is assumed: what reading the 2.39 GB that
# a token uses takes at 400 GB/s; of those, 1.61 GB are experts.
OLMOE = Shape("OLMoE-1B-7B", 16, 64, 8, 3 * 2048 * 1024 * 2, layer_s=0.4e-3, experts_share=0.67)


_ON_DEMAND: tuple[Prefetch, ...] = ("none", "blocking")


@dataclass(frozen=True)
class Question:
    """Every combination of these is simulated. ``bandwidths_mb_s`` empty: the one at which on-demand LRU loads as long
    as it computes; ``capacities`` empty: a quarter of all experts."""

    policies: Sequence[PolicyChoice]
    prefetches: Sequence[Prefetch]
    capacities: Sequence[int] = ()
    bandwidths_mb_s: Sequence[float] = ()
    guesses: Sequence[Guessing] = (Guessing(),)


@dataclass(frozen=True)
class Line:
    """One simulation, per decoded token; the speed-ups are over LRU on demand: as experts come, and blocking."""

    simulation: str
    source: str
    policy: str
    prefetch: str
    recall_assumed: float | None
    spare: int | None
    capacity: int
    bandwidth_mb_s: float
    tpot_ms: float
    compute_ms: float
    stall_ms: float
    loads: float
    loaded_mb: float
    residency: float
    late_share: float
    evicted_unused: float
    prediction_recall: float | None
    prediction_precision: float | None
    speedup_over_lru: float
    speedup_over_blocking: float


def forecast(trace: Trace, question: Question) -> Iterator[Line]:
    """The lines of a question, in the order of capacities, bandwidths, policies, prefetches and guesses.

    Raises UserError for a trace without decoded tokens or predictions where those are asked for, and for a capacity
    below what a token needs.
    """
    _check(trace, question)
    for capacity in question.capacities or (max(trace.layers * trace.experts // 4, trace.top_k),):
        for bandwidth in question.bandwidths_mb_s or (balanced_mb_s(trace, capacity),):
            lru = [simulate(trace, Setting("lru", way, capacity, bandwidth)) for way in _ON_DEMAND]
            for policy, prefetch in product(question.policies, question.prefetches):
                for guessing in question.guesses if prefetch in ("next", "aot") else (Guessing(),):
                    found = simulate(trace, Setting(policy, prefetch, capacity, bandwidth, guessing))
                    yield _line(trace, found, *lru)


def balanced_mb_s(trace: Trace, capacity: int) -> float:
    """The bandwidth, in 10^6 bytes a second, at which on-demand LRU loads for as long as it computes."""
    found = simulate(trace, Setting("lru", "none", capacity, 1.0))
    compute_s = found.decode_s - found.counts.stall_s
    if not found.counts.loads or compute_s <= 0:
        raise UserError(f"capacity {capacity} leaves nothing to load, or the trace has no times: give --bandwidth.")
    return found.counts.loads * trace.expert_bytes / compute_s / 1e6


def _check(trace: Trace, question: Question) -> None:
    if not trace.tokens:
        raise UserError("the trace holds no decoded tokens. Record longer answers with --max-new-tokens.")
    for capacity in question.capacities:
        if capacity < trace.top_k:
            raise UserError(f"capacity {capacity} is below the {trace.top_k} experts that a token needs; give more.")
    predicted = any(visit.predicted for generation in trace.generations for visit in generation)
    if "recorded" in question.prefetches and not predicted:
        raise UserError(
            "the trace has no predictions. Record one with a method that prefetches, or give --prefetch next."
        )


def _line(trace: Trace, found: Simulated, lru: Simulated, blocking: Simulated) -> Line:
    setting, counts, guessed = found.setting, found.counts, found.setting.prefetch in ("next", "aot")
    return Line(
        simulation="synthetic trace" if trace.synthetic else "recorded trace",
        source=trace.source,
        policy=setting.policy,
        prefetch=setting.prefetch,
        recall_assumed=setting.guessing.recall if guessed else None,
        spare=setting.guessing.spare if guessed else None,
        capacity=setting.capacity,
        bandwidth_mb_s=setting.bandwidth_mb_s,
        tpot_ms=found.tpot_s * 1e3,
        compute_ms=(found.decode_s - counts.stall_s) / found.tokens * 1e3,
        stall_ms=counts.stall_s / found.tokens * 1e3,
        loads=counts.loads / found.tokens,
        loaded_mb=counts.loads * trace.expert_bytes / found.tokens / 1e6,
        residency=counts.ready / counts.needed,
        late_share=counts.late / counts.needed,
        evicted_unused=counts.evicted_unused / found.tokens,
        prediction_recall=counts.predicted_needed / counts.foreseeable if counts.foreseeable else None,
        prediction_precision=counts.predicted_needed / counts.predicted if counts.predicted else None,
        speedup_over_lru=lru.tpot_s / found.tpot_s,
        speedup_over_blocking=blocking.tpot_s / found.tpot_s,
    )
