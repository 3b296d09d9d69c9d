"""Does the simulator say what a throttled run then takes? Each setting is predicted from a trace of another one.

All settings take turns on each prompt in one process. One of each family is recorded as a trace, before the others and
again after them; from that alone, the compute times and the experts in it, the simulator says what every other setting
takes: both recordings are simulated, and the mean is the prediction. So the predictions of a family share the noise of
two recordings, and their errors are not independent of each other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from statistics import fmean
from typing import Any

import torch

from benchctl import bundled as packs
from benchctl.decoding.experts.offload import Offload, mixtures_of
from benchctl.decoding.experts.tiers import Timer as Waits
from benchctl.decoding.experts.trace import Generation, Trace
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Method
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.errors import UserError
from benchctl.measuring.choices import Choice, Models, choose_method
from benchctl.measuring.clock import Clock, Timer
from benchctl.measuring.tracing import Offloading
from benchctl.offload.simulator import Setting, Simulated, simulate
from benchmarks.goals import against_band, is_met
from benchmarks.origin import origin
from benchmarks.speed import embedded_prompts, paired_interval

WITHIN = 0.10
TARGET = "ref-moe"
WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Family:
    """Settings that are predicted from traces of ``recorded``, whose capacity and bandwidth none of them has.

    Labels are the same up to ``{}``, where their options go.
    """

    label: str
    recorded: str
    predicted: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The recorded one first."""
        return tuple(self.label.format(options) for options in (self.recorded, *self.predicted))


# Policies, prefetching, capacities and bandwidths each meet often; all combinations would take a quarter of an hour.
OFFLOADING = Family(
    "expert_offload[{}]",
    "prefetch=next_gate,capacity=48,bandwidth_mb_s=300",
    (
        "policy=lru,capacity=16,bandwidth_mb_s=100",
        "policy=lru,capacity=32,bandwidth_mb_s=50",
        "policy=lru,capacity=64,bandwidth_mb_s=490",
        "policy=lru,prefetch=next_gate,capacity=16,bandwidth_mb_s=490",
        "policy=lru,prefetch=next_gate,capacity=32,bandwidth_mb_s=200",
        "policy=lru,prefetch=next_gate,capacity=64,bandwidth_mb_s=50",
        "policy=lfu,capacity=32,bandwidth_mb_s=200",
        "policy=lfu,prefetch=next_gate,capacity=16,bandwidth_mb_s=100",
        "policy=least_stale,capacity=64,bandwidth_mb_s=100",
        "policy=least_stale,prefetch=next_gate,capacity=32,bandwidth_mb_s=490",
        "policy=on_demand,capacity=16,bandwidth_mb_s=490",
        "policy=on_demand,prefetch=next_gate,capacity=32,bandwidth_mb_s=200",
    ),
)
AHEAD = Family(
    "m2r2[mode=aot,{}]",
    "capacity=48,bandwidth_mb_s=300",
    (
        "capacity=16,bandwidth_mb_s=200",
        "capacity=32,bandwidth_mb_s=100",
        "capacity=32,bandwidth_mb_s=490",
        "policy=least_stale,capacity=64,bandwidth_mb_s=50",
    ),
)


@dataclass(frozen=True)
class Real:
    """A throttled generation: its ids, seconds of decoding, of those stalled, experts loaded, and its trace."""

    token_ids: tuple[int, ...]
    decode_s: float
    stall_s: float
    loads: float
    trace: Trace


@dataclass
class Arm:
    """A prepared setting, and its generations by prompt."""

    label: str
    method: Method
    offload: Offload
    real: list[Real] = field(default_factory=list)

    @property
    def setting(self) -> Setting:
        """As the simulator is asked for it."""
        asked: Any = self.method
        predicts = getattr(asked, "prefetch", "next_gate") != "none"  # m2r2 has no such option: it always predicts
        capacity, prefetch = self.offload.capacity, "recorded" if predicts else "none"
        return Setting(asked.policy, prefetch, capacity, asked.bandwidth_mb_s)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Agreement:
    """What a setting took for each decoded token, and what the simulator says of it.

    recorded_in  the setting whose traces the simulator was given; recordings: how many of each prompt
    ratio        predicted / real seconds of decoding, sums over prompts; low, high: 95% interval over prompts
    goal         what the interval says of `WITHIN`
    real_s       seconds of decoding each prompt, and predicted_s: what ratio and interval are made of
    """

    label: str
    recorded_in: str
    recordings: int
    prompts: int
    tokens: int
    real_ms: float
    predicted_ms: float
    ratio: float
    low: float
    high: float
    goal: str
    real_stall_ms: float
    predicted_stall_ms: float
    real_loads: float
    predicted_loads: float
    real_s: tuple[float, ...]
    predicted_s: tuple[float, ...]


def measure(models: Models, prompts: int, max_new_tokens: int, threads: int) -> dict[str, object]:
    """Both families, that of m2r2 where the package has modules for it."""
    torch.set_num_threads(threads)
    path = packs.resolve(models.target)
    chosen, left_out = choose(models)
    info = TargetInfo.of(load_tokenizer(path).config)
    chosen = [[choice.fit(info) for choice in choices] for choices in chosen]
    target = Target.load(path)
    told = origin({"target": (models.target, target)}, [*chain(*chosen)], prompts, max_new_tokens)
    families = [[_prepared(choice, target) for choice in choices] for choices in chosen]
    recordings = [(family[0], replace(family[0], real=[])) for family in families]
    arms = [*chain(*families), *(again for _, again in recordings)]
    texts = embedded_prompts(target, prompts)
    for arm in arms:
        decode_really(arm, target, texts[0], WARM_UP_TOKENS, Clock(), Timer())
    for index, text in enumerate(texts):
        for arm in arms if index % 2 == 0 else reversed(arms):
            arm.real.append(decode_really(arm, target, text, max_new_tokens, Clock(), Timer()))
    found = [agreement(arm, both) for family, both in zip(families, recordings, strict=True) for arm in family[1:]]
    return {
        **told,
        "threads": threads,
        "within": WITHIN,
        "share_within": sum(is_met(line.low, line.high, WITHIN) for line in found) / len(found),
        "left_out": left_out,
        "settings": [asdict(line) for line in found],
    }


def choose(models: Models) -> tuple[list[list[Choice]], dict[str, str]]:
    """The settings of each family, the recorded one first; why m2r2 is left out, if it is."""
    chosen = [[choose_method(label, models) for label in OFFLOADING.labels]]
    try:
        chosen.append([choose_method(label, models) for label in AHEAD.labels])
    except UserError as problem:
        return chosen, {AHEAD.labels[0]: str(problem)}
    return chosen, {}


def _prepared(choice: Choice, target: Target) -> Arm:
    ready = choice.prepare(target)
    offload = ready.method.offload if isinstance(ready.method, Offloading) else None
    assert offload is not None, "both families offload experts"
    return Arm(ready.label, ready.method, offload)


def decode_really(
    arm: Arm, target: Target, prompt_ids: Sequence[int], max_new_tokens: int, clock: Callable[[], float], timer: Waits
) -> Real:
    """One throttled generation."""
    answer = decode(arm.method, target, DecodeRequest(prompt_ids, max_new_tokens, timer=timer, clock=clock))
    counts = answer.counters
    trace = _trace(arm, target, arm.offload.visits)
    return Real(answer.token_ids, sum(answer.step_s), counts["stall_s"], counts["loads"], trace)


def _trace(arm: Arm, target: Target, generation: Generation) -> Trace:
    mixtures, offload = mixtures_of(target), arm.offload
    experts = max(found.router.shape[0] for found in mixtures.values())
    return Trace(arm.label, False, target.layers, experts, offload.top_k, offload.expert_bytes, (generation,))


def agreement(arm: Arm, recordings: Sequence[Arm]) -> Agreement:
    """Of one setting, predicted from the traces of another, recorded once or more.

    Raises RuntimeError where their texts differ.
    """
    for recorded in recordings:
        if [real.token_ids for real in arm.real] != [real.token_ids for real in recorded.real]:
            raise RuntimeError(f"{arm.label} and {recorded.label} gave other answers: loading must not change any")
    by_prompt = zip(*(recorded.real for recorded in recordings), strict=True)
    simulated = [[simulate(real.trace, arm.setting) for real in reals] for reals in by_prompt]
    return compare(arm.label, recordings[0].label, arm.real, simulated)


def compare(label: str, recorded_in: str, real: Sequence[Real], simulated: Sequence[Sequence[Simulated]]) -> Agreement:
    """Of each prompt the mean of what its recordings give; sums over prompts, which are what the interval resamples;
    the rest per decoded token."""
    real_s = [found.decode_s for found in real]
    predicted_s = [fmean(found.decode_s for found in recordings) for recordings in simulated]
    interval = paired_interval(predicted_s, real_s)
    tokens = sum(recordings[0].tokens for recordings in simulated)
    stall_s = sum(fmean(found.counts.stall_s for found in recordings) for recordings in simulated)
    loads = sum(fmean(found.counts.loads for found in recordings) for recordings in simulated)
    return Agreement(
        label=label,
        recorded_in=recorded_in,
        recordings=len(simulated[0]),
        prompts=len(real),
        tokens=tokens,
        real_ms=1e3 * sum(real_s) / tokens,
        predicted_ms=1e3 * sum(predicted_s) / tokens,
        ratio=sum(predicted_s) / sum(real_s),
        low=interval.low,
        high=interval.high,
        goal=against_band(interval.low, interval.high, WITHIN),
        real_stall_ms=1e3 * sum(found.stall_s for found in real) / tokens,
        predicted_stall_ms=1e3 * stall_s / tokens,
        real_loads=sum(found.loads for found in real) / tokens,
        predicted_loads=loads / tokens,
        real_s=tuple(real_s),
        predicted_s=tuple(predicted_s),
    )


if __name__ == "__main__":
    print(json.dumps(measure(Models(TARGET, ""), **json.loads(sys.argv[1]))))
