"""The tables of a comparison: a column for each metric with a table, and columns of counts and claims next to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.judges.figures import (
    CONSISTENCY,
    FIRST_WINS,
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
from benchctl.analysis.metrics.drafting import BLOCK_EFFICIENCY
from benchctl.analysis.metrics.faithfulness import TARGET_AGREEMENT, TOKEN_AGREEMENT
from benchctl.analysis.metrics.metric import Metric, all_metrics
from benchctl.analysis.metrics.speed import SPEEDUP, TOKENS_PER_S
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.stats.intervals import LEAST_PROMPTS
from benchctl.errors import UserError

NONE, BASELINE_CELL = "–", "baseline"
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
    """Columns that belong together."""

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
    """What answers the question: how fast, how faithful. Fidelity is target agreement where all methods have it."""
    compared = [method for method in group.pooled.methods if method.estimate(TOKEN_AGREEMENT).value is not None]
    teacher_forced = all(method.estimate(TARGET_AGREEMENT).value is not None for method in compared)
    fidelity = TARGET_AGREEMENT if teacher_forced else TOKEN_AGREEMENT
    columns = (*map(metric_column, (SPEEDUP, TOKENS_PER_S, fidelity)), _COUNTS["lossless"])
    return Block("", tuple(each for each in columns if any(each.cell(of) != NONE for of in group.pooled.methods)))


def by_category() -> Block:
    """What the field reports of each category (Xia et al. 2024, Spec-Bench)."""
    return Block(
        "By category", tuple(map(metric_column, (SPEEDUP, replace(BLOCK_EFFICIENCY, title="tokens per step"))))
    )


def named_columns(group: Group, names: Sequence[str]) -> Block:
    """The columns of these names, as CSV calls them. Raises UserError for a name that these results do not have."""
    known = dict(_COUNTS)
    for method in group.pooled.methods:
        known |= {each.metric.name: metric_column(each.metric) for each in method.estimates}
        for judge, metric in ((own.judge, each.metric) for own in method.judged for each in own.estimates):
            column = _judge_column(judge, f"{metric.label}, {judge.name}", _estimate(metric, metric.cell))
            known[f"{metric.name}[{judge.name}]"] = column
    if unknown := [name for name in names if name not in known]:
        raise UserError(
            "unknown_column", f"--columns {unknown[0]}: these results have no such figure. Known: {', '.join(known)}."
        )
    return Block("", tuple(known[name] for name in names))


def metric_column(metric: Metric) -> Column:
    return Column(metric.title or metric.label, cell(metric))


def cell(metric: Metric) -> Callable[[MethodFigures], str]:
    """The cell of each method in the metric's own format."""

    def text(method: MethodFigures) -> str:
        estimate = method.estimate(metric)
        # A profiled generation is compared with the method's own free one, so there the baseline has a figure too.
        itself = method.is_baseline and metric.uses_baseline and metric.interval and metric.mode != "profile"
        if itself and estimate.value is not None:
            return BASELINE_CELL
        is_speed = metric.table in _SPEED_TABLES or (metric.mode == "replay" and metric.unit == "ratio")
        if method.refused and estimate.value is not None and is_speed:
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
    if not metric.table:
        return False
    values = (method.estimate(metric).value for method in group.pooled.methods)
    return any(value is not None and value != metric.trivial for value in values)


def _other_columns(title: str, group: Group) -> tuple[Column, ...]:
    """Columns of a table that are no metrics."""
    if title == "Speed":
        return (_COUNTS["prompts"],)
    if title == "Replay":
        on_own_text = cell(replace(SPEEDUP, interval=False))
        return (Column("on own text", lambda method: NONE if method.is_baseline else on_own_text(method)),)
    if title == "Exact match":
        return (_COUNTS["checked_prompts"],)
    if title != "Fidelity":
        return ()
    # Numeric verdicts are rare: their column is shown only where there are some.
    numeric = any(method.fidelity.numeric for method in group.pooled.methods)
    verdicts = ["sampled"] if group.run.temperature > 0 else ["identical", "tie", *["numeric"] * numeric, "lossy"]
    return tuple(_COUNTS[name] for name in (*verdicts, "failed", "claim", "lossless"))


def _lossless(method: MethodFigures) -> str:
    if not method.is_compared:
        return NONE
    return "yes" if method.lossless else "no"


def _count(name: str) -> Column:
    return Column(name.replace("_", " "), lambda method: str(getattr(method, name)))


def _verdict(name: str) -> Column:
    return Column(name, lambda method: NONE if method.is_baseline else str(getattr(method.fidelity, name)))


_COUNTS = {
    **{name: _count(name) for name in ("prompts", "generations", "checked_prompts")},
    **{name: _verdict(name) for name in ("identical", "tie", "numeric", "lossy", "sampled", "unjudged")},
    "failed": Column("failed", lambda method: str(method.fidelity.failed)),
    "claim": Column("claim", lambda method: method.exactness.replace("_", " ")),
    "lossless": Column("lossless", _lossless),
}
"""Columns that are no metrics, by their names in CSV."""


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
        columns = [column("difference [95%]", _estimate(SCORE_DIFFERENCE, f"{{:+z.{digits}}}"), BASELINE_CELL)]
        for title, metric in (("win", WIN), ("tie", TIE), ("loss", LOSS)):
            columns.append(column(title, _estimate(metric, "{:.0%}", interval=False), NONE))
        if any(own.unreadable for own in figures):
            columns.append(column("unread", lambda own: f"{own.unreadable}/{own.asked}"))
        columns.append(column("prompts", lambda own: str(own.prompts)))
        if any(own.prompts_needed for own in figures):
            columns.append(column(f"±{MARGIN:g} needs", _prompts_needed, NONE))
        yield Block(f"Judged by {judge.name}", tuple(columns))
        if judge.protocol in PAIRED:
            alike = column("both orders alike [95%]", _estimate(CONSISTENCY, "{:.2f}"), BASELINE_CELL)
            first = column("first place wins [95%]", _estimate(FIRST_WINS, "{:.2f}"), NONE)
            yield Block(f"Places, {judge.name}", (alike, first))
        if any(own.estimate(LONGER_WINS).value is not None for own in figures):
            longer = column("longer answer wins [95%]", _estimate(LONGER_WINS, "{:.2f}"), BASELINE_CELL)
            yield Block(f"Lengths, {judge.name}", (longer,))


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
    return map(_agreement_sentence, group.judging.agreements if group.judging else ())


def _agreement_sentence(agreement: Agreement) -> str:
    kappa = f"Cohen's kappa {agreement.kappa:.2f}" if agreement.kappa is not None else "no kappa (one verdict only)"
    interval = agreement.interval
    ends = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
    return (
        f"{agreement.first.name} and {agreement.second.name} agree on {agreement.alike:.0%} of {agreement.pairs} "
        f"{'pair' if agreement.pairs == 1 else 'pairs'} of answers that both judged: {kappa}{ends}."
    )
