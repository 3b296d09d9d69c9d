"""Tables of the modes beside the free one, and what to know before believing them."""

from collections.abc import Iterator

from benchctl.analysis.frame.comparison import Group, MethodFigures
from benchctl.analysis.metrics.metric import SPEEDUP
from benchctl.analysis.metrics.modes import (
    PROFILE_OVERHEAD,
    REPLAY_AGREEMENT,
    REPLAY_BLOCK_EFFICIENCY,
    REPLAY_DECODE_SPEEDUP,
    REPLAY_DEPTH_FRACTION,
    REPLAY_SPEEDUP,
    STEP,
    STEP_COMMIT,
    STEP_DRAFT,
    STEP_HOST,
    STEP_PHASES,
    STEP_UNSPLIT,
    STEP_VERIFY,
)
from benchctl.analysis.tables.cells import NONE, Block, Column, number, ratio, share

_SUM_WITHIN = 0.02  # share of a step by which its phases may miss its time
_HEAVY = 0.1  # share that profiling may add to decoding before the shares are those of other steps


def _free(method: MethodFigures) -> str:
    return NONE if method.is_baseline else number(SPEEDUP, "{:.2f}x")(method)


_REPLAY = Block(
    "Replay",
    (
        Column("speed-up [95%]", ratio(REPLAY_SPEEDUP)),
        Column("decode only", number(REPLAY_DECODE_SPEEDUP, "{:.2f}x")),
        Column("on own text", _free),
        Column("block efficiency", number(REPLAY_BLOCK_EFFICIENCY, "{:.2f}")),
        Column("depth fraction", number(REPLAY_DEPTH_FRACTION, "{:.3f}")),
        Column("own choice", number(REPLAY_AGREEMENT, "{:.3f}")),
    ),
)
_PHASES = (
    Column("draft", number(STEP_DRAFT, "{:.3f}", 1e3)),
    Column("verify", number(STEP_VERIFY, "{:.3f}", 1e3)),
    Column("commit", number(STEP_COMMIT, "{:.3f}", 1e3)),
    Column("host", number(STEP_HOST, "{:.3f}", 1e3)),
)
_UNSPLIT = Column("not split", number(STEP_UNSPLIT, "{:.3f}", 1e3))
_WHOLE = (
    Column("step", number(STEP, "{:.3f}", 1e3)),
    Column("profiling adds [95%]", share(PROFILE_OVERHEAD, "+.3f")),
)


def mode_blocks(group: Group) -> Iterator[Block]:
    """The tables of the modes that the group's files have."""
    if "replay" in group.others:
        yield _REPLAY
    if "profile" in group.others:
        unsplit = any(method.estimate(STEP_UNSPLIT).value for method in group.pooled.methods)
        yield Block("A step, ms", (*_PHASES, *((_UNSPLIT,) if unsplit else ()), *_WHOLE))


def mode_cautions(group: Group) -> Iterator[str]:
    """What failed or was disturbed in these modes, and profiles that do not add up, or that weigh too much."""
    for mode, frame in group.others.items():
        for label, rows in frame.groupby("label", sort=False):
            lost = rows["error"].notna() | rows["round_invalid"]
            if lost.any():
                first = rows[lost].iloc[0]
                why = first["error"] if isinstance(first["error"], str) else first["invalid"] or "with its round"
                yield (
                    f"{label}: {int(lost.sum())} of {len(rows)} generations in {mode} mode failed or were disturbed, "
                    f"and are left out, first {first['suite']}/{first['prompt_id']}: {why}."
                )
    if "profile" in group.others:
        for method in group.pooled.methods:
            yield from _profile_cautions(method)


def _profile_cautions(method: MethodFigures) -> Iterator[str]:
    step, overhead = method.estimate(STEP).value, method.estimate(PROFILE_OVERHEAD).interval
    phases = sum(method.estimate(metric).value or 0.0 for metric in STEP_PHASES)
    if step and abs(phases / step - 1) > _SUM_WITHIN:
        yield (
            f"{method.label}: the phases of its steps come to {phases / step:.1%} of their time, so they are not of "
            "these steps: profile it again."
        )
    if method.estimate(STEP_UNSPLIT).value:
        yield (
            f"{method.label} has a step of its own that tells of no phases: let it call context.enter, or read its "
            "time as a whole."
        )
    if overhead is not None and overhead.low > _HEAVY:
        yield (
            f"{method.label}: profiling made decoding at least {overhead.low:.0%} slower, so its phases are those of "
            "slower steps; read their shares with that in mind, or profile a larger model."
        )
