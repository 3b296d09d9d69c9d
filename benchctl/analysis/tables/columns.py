"""The tables of a comparison: a column for each metric with a table, and columns of counts and claims next to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.frame.build import Fidelity
from benchctl.analysis.judges.figures import (
    CONSISTENCY,
    FIRST_WINS,
    LENGTH_CORRELATION,
    LONGER_WINS,
    LOSS,
    MARGIN,
    SCORE,
    SCORE_DIFFERENCE,
    TIE,
    WIN,
    Agreement,
    JudgedFigures,
)
from benchctl.analysis.judges.judgements import PAIRED, Judge
from benchctl.analysis.metrics.faithfulness import EXACT_MATCH, TOKEN_AGREEMENT
from benchctl.analysis.metrics.metric import Metric, all_metrics
from benchctl.analysis.metrics.speed import SPEEDUP, TOKENS_PER_S
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.stats.intervals import LEAST_PROMPTS

NONE = "–"
_Show = Callable[[JudgedFigures], str]
_SPEED_TABLES = ("Speed", "Speed-up variants")
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
        if method.refused and estimate.value is not None and metric.table in _SPEED_TABLES:
            return f"refused {spread(estimate, metric.cell, metric.scale, interval=False)}"
        few = f"n/a ({method.prompts} prompt{'s' * (method.prompts != 1)})" if method.prompts < LEAST_PROMPTS else ""
        return spread(estimate, metric.cell, metric.scale, interval=metric.interval, without=few or "[n/a]")

    return text


def spread(estimate: Estimate, pattern: str, scale: float = 1, *, interval: bool = True, without: str = "[n/a]") -> str:
    """A value by a pattern such as "{:.2f}x", by default with its interval, or `without` one: `1.50x [1.40, 1.60]`."""
    if estimate.value is None:
        return NONE
    value = pattern.format(estimate.value * scale)
    if not interval:
        return value
    bare = pattern[: pattern.index("}") + 1]  # without the unit
    ends = estimate.interval
    return f"{value} [{bare}, {bare}]".format(ends.low * scale, ends.high * scale) if ends else f"{value} {without}"


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
    if title != "Fidelity":
        return ()
    # Numeric verdicts are rare and their column takes room from labels: it is shown only where there are some.
    numeric = any(method.fidelity.numeric for method in group.pooled.methods)
    verdicts = ("identical", "tie", "numeric", "lossy") if numeric else ("identical", "tie", "lossy")
    return (
        *(_count(verdict) for verdict in (("sampled",) if group.run.temperature > 0 else verdicts)),
        Column("failed", lambda method: str(method.fidelity.failed)),
        Column("claim", lambda method: method.exactness.replace("_", " ")),
        Column("lossless", _lossless),
    )


def _count(verdict: str) -> Column:
    return Column(verdict, lambda method: NONE if method.is_baseline else str(getattr(method.fidelity, verdict)))


def _lossless(method: MethodFigures) -> str:
    """Empty for sampled answers, since one text does not show their distribution, and for answers without verdicts."""
    if method.is_baseline or method.fidelity.sampled or method.fidelity == Fidelity():
        return NONE
    return "yes" if method.lossless else "no"


def judge_blocks(group: Group) -> Iterator[Block]:
    """Tables for each judge, narrow enough for labels to have room: its figures for the methods, and its biases."""
    for judge in group.judging.judges if group.judging else ():
        figures = [own for method in group.pooled.methods if (own := _of(method, judge))]
        column, digits = partial(_judge_column, judge), "2f" if judge.in_points else "3f"
        if judge.protocol not in PAIRED:
            columns = [column("score [95%]", _estimate(SCORE, f"{{:.{digits}}}"))]
            if any(len(own.by_turn) > 1 for own in figures):
                columns.append(column("by turn", lambda own: "/".join(f"{mean:.3f}" for mean in own.by_turn)))
            yield Block(f"Scores of {judge.name}", tuple(columns))
        columns = [column("difference [95%]", _estimate(SCORE_DIFFERENCE, f"{{:+.{digits}}}"), "baseline")]
        for title, metric in (("win", WIN), ("tie", TIE), ("loss", LOSS)):
            columns.append(column(title, _estimate(metric, "{:.0%}", interval=False), NONE))
        if any(own.unreadable for own in figures):
            columns.append(column("unread", lambda own: f"{own.unreadable}/{own.asked}"))
        columns.append(column("prompts", lambda own: str(own.prompts)))
        if any(own.prompts_needed for own in figures):
            columns.append(column(f"±{MARGIN:g} needs", _prompts_needed, NONE))
        yield Block(f"Judged by {judge.name}", tuple(columns))
        if judge.protocol in PAIRED:
            alike = column("both orders alike [95%]", _estimate(CONSISTENCY, "{:.2f}"), "baseline")
            first = column("first place wins [95%]", _estimate(FIRST_WINS, "{:.2f}"), NONE)
            yield Block(f"Places, {judge.name}", (alike, first))
        if any(own.estimate(LENGTH_CORRELATION).value is not None for own in figures):
            longer = column("longer answer wins [95%]", _estimate(LONGER_WINS, "{:.2f}"), "baseline")
            ranks = column("rank correlation [95%]", _estimate(LENGTH_CORRELATION, "{:+.2f}"), NONE)
            yield Block(f"Lengths, {judge.name}", (longer, ranks))


def _judge_column(judge: Judge, title: str, show: _Show, of_baseline: str = "") -> Column:
    """A judge's figures, or with `of_baseline` that as the baseline's own cell: the others are compared with it."""

    def cell(method: MethodFigures) -> str:
        if of_baseline and method.is_baseline:
            return of_baseline
        own = _of(method, judge)
        return show(own) if own and own.pairs else NONE

    return Column(title, cell)


def _of(method: MethodFigures, judge: Judge) -> JudgedFigures | None:
    return next((figures for figures in method.judged if figures.judge == judge), None)


def _estimate(metric: Metric, pattern: str, *, interval: bool = True) -> _Show:
    return lambda own: spread(own.estimate(metric), pattern, interval=interval)


def _prompts_needed(own: JudgedFigures) -> str:
    return NONE if own.prompts_needed is None else f"{own.prompts_needed:,}"


def agreement_sentences(group: Group) -> Iterator[str]:
    """How far each two judges agree."""
    return map(agreement_sentence, group.judging.agreements if group.judging else ())


def agreement_sentence(agreement: Agreement) -> str:
    kappa = f"Cohen's kappa {agreement.kappa:.2f}" if agreement.kappa is not None else "no kappa (one verdict only)"
    interval = agreement.interval
    ends = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
    return (
        f"{agreement.first.name} and {agreement.second.name} give the same verdict (win, tie or loss) to "
        f"{agreement.alike:.0%} of {agreement.pairs} {'pair' if agreement.pairs == 1 else 'pairs'} of answers that "
        f"both judged: {kappa}{ends}."
    )
