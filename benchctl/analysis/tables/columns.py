"""The tables of a comparison: which columns there are, and where each has a place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchctl.analysis.frame.comparison import Group, MethodFigures
from benchctl.analysis.frame.fidelity import Fidelity
from benchctl.analysis.metrics.experts import (
    EVICTED_UNUSED,
    LATE,
    LOADED,
    LOADS,
    PRECISION,
    RECALL,
    RESIDENCY,
    STALL,
    THROTTLE,
    has_loading,
)
from benchctl.analysis.metrics.faithfulness import (
    CHRF,
    DEGENERATION,
    KL,
    LOG_LIKELIHOOD_DIFFERENCE,
    ROUGE_L,
    TARGET_AGREEMENT,
    has_faithfulness,
)
from benchctl.analysis.metrics.metric import (
    ACCEPTANCE_DIFFERENCE,
    ACCEPTANCE_RATE,
    BLOCK_EFFICIENCY,
    DECODE_SPEEDUP,
    DEPTH_FRACTION,
    EXACT_MATCH,
    EXACT_MATCH_DIFFERENCE,
    MEAN_ACCEPTED,
    MEAN_SPEEDUP,
    SOUND_SPEEDUP,
    SPEEDUP,
    TOKEN_AGREEMENT,
    TOKENS_PER_S,
    TPOT,
    TTFT,
)
from benchctl.analysis.metrics.resources import BANDWIDTH_SHARE, ENERGY, PEAK_MEMORY, RESERVED_MEMORY
from benchctl.analysis.tables.cells import NONE, Block, Column, number, ratio, share
from benchctl.analysis.tables.judges import judge_blocks
from benchctl.analysis.tables.modes import mode_blocks

_RESOURCE_COLUMNS = (
    (BANDWIDTH_SHARE, Column("of the bandwidth bound", number(BANDWIDTH_SHARE, "{:.3f}"))),
    (ENERGY, Column("J per token", number(ENERGY, "{:.3g}"))),
    (PEAK_MEMORY, Column("peak memory MB", number(PEAK_MEMORY, "{:,.0f}", 1e-6))),
    (RESERVED_MEMORY, Column("held by torch MB", number(RESERVED_MEMORY, "{:,.0f}", 1e-6))),
)


def resource_blocks(group: Group) -> Iterator[Block]:
    """One table, or none where no method has any of these figures. The most memory a process ever held is no figure of
    one method, so without a GPU, which can tell a generation's own, there is no column of it."""
    methods = group.pooled.methods
    told = [
        column
        for metric, column in _RESOURCE_COLUMNS
        if any(method.estimate(metric).value is not None for method in methods)
        and (metric is not PEAK_MEMORY or group.run.device != "cpu")
    ]
    if told:
        yield Block("Machine", tuple(told))


_COLUMNS = (
    (TARGET_AGREEMENT, Column("target agrees", number(TARGET_AGREEMENT, "{:.3f}"))),
    (LOG_LIKELIHOOD_DIFFERENCE, Column("ln p difference", number(LOG_LIKELIHOOD_DIFFERENCE, "{:+.3f}"))),
    (KL, Column("KL nats", number(KL, "{:.3g}"))),
    (ROUGE_L, Column("ROUGE-L", number(ROUGE_L, "{:.3f}"))),
    (CHRF, Column("chrF", number(CHRF, "{:.3f}"))),
    (DEGENERATION, Column("degenerate", number(DEGENERATION, "{:.3f}"))),
)


def faithfulness_blocks(group: Group) -> Iterator[Block]:
    """One table, or none where every answer is the baseline's and none degenerates: there it would say nothing."""
    methods = group.pooled.methods
    told = {
        metric: column
        for metric, column in _COLUMNS
        if any(method.estimate(metric).value is not None for method in methods)
    }
    degenerates = any(method.estimate(DEGENERATION).value for method in methods)
    if has_faithfulness(group.frame) or degenerates or ROUGE_L in told:
        yield Block("Fidelity, otherwise", tuple(told.values()))


def _loss(method: MethodFigures) -> str:
    named = method.is_baseline and method.checked_prompts
    return "baseline" if named else share(EXACT_MATCH_DIFFERENCE, "+.3f")(method)


def _acceptance_difference(method: MethodFigures) -> str:
    return "baseline" if method.is_baseline else share(ACCEPTANCE_DIFFERENCE, "+.3f")(method)


def _lossless(method: MethodFigures) -> str:
    """Empty for sampled answers: one text cannot show whether their distribution is the target's; and for answers of
    which nothing is known, as of imported ones."""
    if method.is_baseline or method.fidelity.sampled or method.fidelity == Fidelity():
        return NONE
    return "yes" if method.lossless else "no"


_SPEED = Block(
    "Speed",
    (
        Column("speed-up [95%]", ratio(SPEEDUP)),
        Column("decode only", number(DECODE_SPEEDUP, "{:.2f}x")),
        Column("tokens/s", number(TOKENS_PER_S, "{:.1f}")),
        Column("TPOT ms", number(TPOT, "{:.2f}", 1e3)),
        Column("TTFT ms", number(TTFT, "{:.1f}", 1e3)),
        Column("prompts", lambda method: str(method.prompts)),
    ),
)
BRIEF = Block(
    "In brief",
    (
        Column("speed-up [95%]", ratio(SPEEDUP)),
        Column("tokens/s", number(TOKENS_PER_S, "{:.1f}")),
        Column("token agreement", number(TOKEN_AGREEMENT, "{:.3f}")),
        Column("exact match", number(EXACT_MATCH, "{:.3f}")),
        Column("lossless", _lossless),
    ),
)
_MEAN = Column("mean of prompts [95%]", ratio(MEAN_SPEEDUP))
_OTHERWISE = Block("Speed-up, otherwise", (_MEAN, Column("without degenerate answers [95%]", ratio(SOUND_SPEEDUP))))
_OF_SUMS = Block("Speed-up, otherwise", (_MEAN,))
_DRAFTING = Block(
    "Drafting and depth",
    (
        Column("block efficiency", number(BLOCK_EFFICIENCY, "{:.2f}")),
        Column("mean accepted tokens", number(MEAN_ACCEPTED, "{:.2f}")),
        Column("acceptance rate", number(ACCEPTANCE_RATE, "{:.3f}")),
        Column("depth fraction", number(DEPTH_FRACTION, "{:.3f}")),
    ),
)
_AGAINST = Block("Against it", (Column("acceptance difference [95%]", _acceptance_difference),))
_IDENTICAL = Column("identical", lambda method: _verdicts(method, method.fidelity.identical))
_TIE = Column("tie", lambda method: _verdicts(method, method.fidelity.tie))
_NUMERIC = Column("numeric", lambda method: _verdicts(method, method.fidelity.numeric))
_LOSSY = Column("lossy", lambda method: _verdicts(method, method.fidelity.lossy))
_SAMPLED = (Column("sampled", lambda method: _verdicts(method, method.fidelity.sampled)),)

_EXACT_MATCH = Block(
    "Exact match",
    (
        Column("exact match [95%]", share(EXACT_MATCH, ".3f")),
        Column("difference [95%]", _loss),
        Column("checked prompts", lambda method: str(method.checked_prompts)),
    ),
)


_LOADING = Block(
    "Expert loading, per token",
    (
        Column("stall ms", number(STALL, "{:.2f}", 1e3)),
        Column("experts loaded", number(LOADS, "{:.2f}")),
        Column("MB loaded", number(LOADED, "{:.2f}", 1e-6)),
        Column("evicted unused", number(EVICTED_UNUSED, "{:.2f}")),
        Column("loading throttled to", number(THROTTLE, "{:g} MB/s")),
    ),
)
_FORESIGHT = Block(
    "Experts at the moment of need",
    (
        Column("resident", number(RESIDENCY, "{:.3f}")),
        Column("late", number(LATE, "{:.3f}")),
        Column("prediction recall", number(RECALL, "{:.3f}")),
        Column("prediction precision", number(PRECISION, "{:.3f}")),
    ),
)


def _verdicts(method: MethodFigures, count: int) -> str:
    return NONE if method.is_baseline else str(count)


def _compared(methods: Sequence[MethodFigures]) -> tuple[Column, ...]:
    """Numeric verdicts are rare, and their column leaves little room for labels: only where there are some."""
    numeric = (_NUMERIC,) if any(method.fidelity.numeric for method in methods) else ()
    return (_IDENTICAL, _TIE, *numeric, _LOSSY)


def blocks(group: Group) -> tuple[Block, ...]:
    """Expert loading has a place only where experts are loaded, exact match where there are answers to check, a
    difference of acceptance rates where the baseline drafts."""
    methods = group.pooled.methods
    drafts = any(method.estimate(ACCEPTANCE_DIFFERENCE).value is not None for method in methods)
    drafting = (_DRAFTING, _AGAINST) if drafts else (_DRAFTING,)
    fidelity = (
        Column("token agreement", number(TOKEN_AGREEMENT, "{:.3f}")),
        *(_compared(methods) if group.run.temperature == 0 else _SAMPLED),
        Column("failed", lambda method: str(method.fidelity.failed)),
        Column("claim", lambda method: method.exactness.replace("_", " ")),
        Column("lossless", _lossless),
    )
    loading = (_LOADING, _FORESIGHT) if has_loading(group.frame) else ()
    if group.run.imported:  # no verdicts, no claims
        return _SPEED, _OF_SUMS, _DRAFTING, *faithfulness_blocks(group), *judge_blocks(group)
    beside = *mode_blocks(group), *resource_blocks(group)
    found = _SPEED, _OTHERWISE, *drafting, *loading, *beside, Block("Fidelity", fidelity), *faithfulness_blocks(group)
    checked = any(method.checked_prompts for method in methods)
    return (*found, *((_EXACT_MATCH,) if checked else ()), *judge_blocks(group))
