"""Replay (each method on the baseline's text) and profile (what a step's time consists of).

These figures are separate from the headline, which rests on free generations only.
"""

from __future__ import annotations

from dataclasses import replace

from benchctl.analysis.frame.rows import FIDELITY, PHASE
from benchctl.analysis.metrics import drafting, speed
from benchctl.analysis.metrics.metric import Metric, column, ones


def _replayed(metric: Metric) -> Metric:
    return replace(metric, name=f"replay_{metric.name}", label=f"{metric.label}, replay", mode="replay", table="Replay")


def _per_step(name: str, source: str, label: str, title: str, trivial: float | None = None) -> Metric:
    """Seconds of column `source` per profiled step."""
    return Metric(
        *(f"step_{name}_s", f"{label} per step", "s", "lower", column(source, 0.0), column("steps", 0.0)),
        mode="profile",
        table="A step, ms",
        title=title,
        scale=1e3,
        trivial=trivial,
    )


REPLAY_SPEEDUP = _replayed(speed.SPEEDUP)
REPLAY_DECODE_SPEEDUP = _replayed(speed.DECODE_SPEEDUP)
REPLAY_BLOCK_EFFICIENCY = _replayed(drafting.BLOCK_EFFICIENCY)
REPLAY_DEPTH_FRACTION = _replayed(drafting.DEPTH_FRACTION)
# Of the forced tokens at which the method's own choice was seen: see decoding/verify.py.
REPLAY_AGREEMENT = Metric(
    "replay_agreement",
    "own choice is the forced token",
    "share",
    "higher",
    column(FIDELITY + "replay_agreed_tokens", 0.0),
    column(FIDELITY + "replay_judged_tokens", 0.0),
    mode="replay",
    table="Replay",
    title="own choice",
)
STEP_DRAFT = _per_step("draft", PHASE + "draft", "drafting", "draft")
STEP_VERIFY = _per_step("verify", PHASE + "verify", "verifying", "verify")
STEP_COMMIT = _per_step("commit", PHASE + "commit", "committing", "commit")
STEP_HOST = _per_step("host", PHASE + "host", "host work", "host")
STEP_UNSPLIT = _per_step("unsplit", PHASE + "unsplit", "time that was not split", "not split", trivial=0.0)
STEP = _per_step("profiled", "decode_s", "time while profiled", "step")
# Over pairs of a profiled generation and the free one of the same method, which replaces the baseline here.
PROFILE_OVERHEAD = Metric(
    "profile_overhead",
    "what profiling adds to decoding",
    "ratio",
    "lower",
    column("decode_s", 0.0),
    column("decode_s_baseline", 0.0),
    less=(ones, ones),
    uses_baseline=True,
    mode="profile",
    table="A step, ms",
    title="profiling adds [95%]",
    cell="{:+z.3f}",
    interval=True,
)
