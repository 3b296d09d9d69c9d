"""Figures of the modes beside the free one: of each method on the baseline's text, and of what its steps are made of.

They stand beside the headline and are no part of it; free rows alone make that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pandas as pd

from benchctl.analysis.frame.build import pair
from benchctl.analysis.frame.rows import FIDELITY, PHASE
from benchctl.analysis.metrics.metric import (
    BLOCK_EFFICIENCY,
    DECODE_SPEEDUP,
    DEPTH_FRACTION,
    SPEEDUP,
    Column,
    Metric,
    ones,
)
from benchctl.records.schema import Mode

_PROFILED, _FREE = "profile", "free"


def _replayed(metric: Metric) -> Metric:
    return replace(metric, name=f"replay_{metric.name}", label=f"{metric.label}, replay")


def _column(name: str) -> Column:
    """0 for pairs without it."""
    return lambda pairs: (pairs[name].astype(float) if name in pairs else pd.Series(0.0, pairs.index)).fillna(0.0)


REPLAY_SPEEDUP = _replayed(SPEEDUP)
REPLAY_DECODE_SPEEDUP = _replayed(DECODE_SPEEDUP)
REPLAY_BLOCK_EFFICIENCY = _replayed(BLOCK_EFFICIENCY)
REPLAY_DEPTH_FRACTION = _replayed(DEPTH_FRACTION)
# Of the forced tokens at which the method's own choice was seen: see decoding.replay.
REPLAY_AGREEMENT = Metric(
    "replay_agreement",
    "own choice is the forced token",
    "share",
    "higher",
    _column(FIDELITY + "replay_agreed_tokens"),
    _column(FIDELITY + "replay_judged_tokens"),
)
REPLAY_METRICS = (
    REPLAY_SPEEDUP,
    REPLAY_DECODE_SPEEDUP,
    REPLAY_BLOCK_EFFICIENCY,
    REPLAY_DEPTH_FRACTION,
    REPLAY_AGREEMENT,
)


def _per_step(name: str, column: str, label: str) -> Metric:
    return Metric(f"step_{name}_s", f"{label} per step", "s", "lower", _column(column), _column("steps"))


STEP_DRAFT = _per_step("draft", PHASE + "draft", "drafting")
STEP_VERIFY = _per_step("verify", PHASE + "verify", "verifying")
STEP_COMMIT = _per_step("commit", PHASE + "commit", "committing")
STEP_HOST = _per_step("host", PHASE + "host", "host work")
STEP_UNSPLIT = _per_step("unsplit", PHASE + "unsplit", "time that was not split")
STEP = _per_step("profiled", "decode_s", "time while profiled")
# Over pairs of a profiled generation and the free one of the same method, which takes the baseline's place here.
PROFILE_OVERHEAD = Metric(
    "profile_overhead",
    "what profiling adds to decoding",
    "share",
    "lower",
    _column("decode_s"),
    _column("decode_s_baseline"),
    less=(ones, ones),
    both=True,
)
STEP_PHASES = (STEP_DRAFT, STEP_VERIFY, STEP_COMMIT, STEP_HOST, STEP_UNSPLIT)
PROFILE_METRICS = (*STEP_PHASES, STEP, PROFILE_OVERHEAD)


@dataclass(frozen=True)
class Figured:
    """Pairs of generations, and the metrics that are taken over them."""

    pairs: pd.DataFrame
    metrics: tuple[Metric, ...]


OtherFrames = Mapping[Mode, pd.DataFrame]  # of the modes beside the free one


def figured(free: pd.DataFrame, others: OtherFrames, label: str, baseline: str) -> Iterator[Figured]:
    """What there is to say of a method in each of the other modes that there are."""
    if "replay" in others:
        yield Figured(pair(others["replay"], label, baseline), REPLAY_METRICS)
    if "profile" in others:
        yield Figured(_beside_free(free, others["profile"], label), PROFILE_METRICS)


def _beside_free(free: pd.DataFrame, profile: pd.DataFrame, label: str) -> pd.DataFrame:
    """The profiled generations of a method, each with the free one of the same turn, repeat and session."""
    arms = {_PROFILED: profile, _FREE: free}
    own = [frame[frame["label"] == label].assign(label=name) for name, frame in arms.items()]
    return pair(pd.concat(own, ignore_index=True), _PROFILED, _FREE)
