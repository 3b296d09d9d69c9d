"""The tables of a comparison: a column for each metric with a table, and columns of counts and claims next to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.frame.fidelity import Fidelity
from benchctl.analysis.metrics.faithfulness import EXACT_MATCH, TOKEN_AGREEMENT
from benchctl.analysis.metrics.metric import Metric, all_metrics
from benchctl.analysis.metrics.speed import SPEEDUP, TOKENS_PER_S
from benchctl.analysis.stats.estimates import Estimate

NONE = "–"
_ORDER = (
    *("Speed", "Speed-up variants", "Drafting and depth", "vs. baseline"),
    *("Expert loading, per token", "Experts at the moment of need", "Replay", "A step, ms", "Machine"),
    *("Fidelity", "Fidelity (no judge)", "Exact match"),
)


@dataclass(frozen=True)
class Column:
    title: str
    cell: Callable[[MethodFigures], str]


@dataclass(frozen=True)
class Block:
    """Columns that belong together and fit into 80 characters."""

    title: str
    columns: tuple[Column, ...]


def metric_blocks(group: Group) -> Iterator[Block]:
    """The tables of all metrics, without columns and tables that would be empty."""
    shown = [metric for metric in all_metrics() if _is_shown(group, metric)]
    for title in dict.fromkeys((*_ORDER, *(metric.table for metric in shown))):
        columns = tuple(metric_column(metric) for metric in shown if metric.table == title)
        if columns or (title == "Fidelity" and not group.run.imported):
            yield Block(title, (*columns, *_other_columns(title, group)))


def brief(group: Group) -> Block:
    """One table of the most important columns."""
    metrics = (SPEEDUP, TOKENS_PER_S, TOKEN_AGREEMENT, replace(EXACT_MATCH, title="exact match", interval=False))
    return Block("In brief", (*map(metric_column, metrics), Column("lossless", _lossless)))


def metric_column(metric: Metric) -> Column:
    return Column(metric.title or metric.label, cell(metric))


def cell(metric: Metric) -> Callable[[MethodFigures], str]:
    """The cell of each method in the metric's own format."""

    def text(method: MethodFigures) -> str:
        estimate = method.estimate(metric)
        # A profiled generation is compared with the method's own free one, so there the baseline has a figure too.
        itself = method.is_baseline and metric.uses_baseline and metric.interval and metric.mode != "profile"
        if itself and estimate.value is not None:
            return "baseline"
        return spread(estimate, metric.cell, metric.scale, interval=metric.interval)

    return text


def spread(estimate: Estimate, pattern: str, scale: float = 1, *, interval: bool = True) -> str:
    """A value by a pattern such as "{:.2f}x", by default with its interval: `1.50x [1.40, 1.60]`."""
    if estimate.value is None:
        return NONE
    value = pattern.format(estimate.value * scale)
    if not interval:
        return value
    bare = pattern[: pattern.index("}") + 1]  # without the unit
    ends = estimate.interval
    return f"{value} [{f'{bare}, {bare}'.format(ends.low * scale, ends.high * scale) if ends else 'n/a'}]"


def _is_shown(group: Group, metric: Metric) -> bool:
    if not metric.table or (metric.on and not metric.on(group.run)):
        return False
    values = (method.estimate(metric).value for method in group.pooled.methods)
    return any(value is not None and value != metric.trivial for value in values)


def _other_columns(title: str, group: Group) -> tuple[Column, ...]:
    """Columns of a table that are no metrics."""
    if title == "Speed":
        return (Column("prompts", lambda method: str(method.prompts)),)
    if title == "Replay":
        on_own_text = cell(replace(SPEEDUP, interval=False))
        return (Column("on own text", lambda method: NONE if method.is_baseline else on_own_text(method)),)
    if title == "Exact match":
        return (Column("checked prompts", lambda method: str(method.checked_prompts)),)
    if title == "Fidelity":
        return (
            *(_count(verdict) for verdict in _verdicts(group)),
            Column("failed", lambda method: str(method.fidelity.failed)),
            Column("claim", lambda method: method.exactness.replace("_", " ")),
            Column("lossless", _lossless),
        )
    return ()


def _verdicts(group: Group) -> tuple[str, ...]:
    """Numeric verdicts are rare and their column takes room from labels: it is shown only where there are some."""
    if group.run.temperature > 0:
        return ("sampled",)
    numeric = any(method.fidelity.numeric for method in group.pooled.methods)
    return ("identical", "tie", "numeric", "lossy") if numeric else ("identical", "tie", "lossy")


def _count(verdict: str) -> Column:
    return Column(verdict, lambda method: NONE if method.is_baseline else str(getattr(method.fidelity, verdict)))


def _lossless(method: MethodFigures) -> str:
    """Empty for sampled answers, since one text does not show their distribution, and for answers without verdicts."""
    if method.is_baseline or method.fidelity.sampled or method.fidelity == Fidelity():
        return NONE
    return "yes" if method.lossless else "no"
