"""Tables of what judges say, and sentences on how far they agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.judges.agreement import Agreement
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
    JudgedFigures,
)
from benchctl.analysis.judges.judgements import PAIRED, Judge
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.tables.columns import NONE, Block, Column, spread

_Show = Callable[[JudgedFigures], str]


def judge_blocks(group: Group) -> Iterator[Block]:
    """Tables for each judge, narrow enough for labels to have room: what it says of the methods, and how it judges."""
    for judge in group.judging.judges if group.judging else ():
        figures = [own for method in group.pooled.methods if (own := _of(method, judge))]
        if judge.protocol not in PAIRED:
            yield Block(f"Scores of {judge.name}", tuple(_scores(judge, figures)))
        yield Block(f"Judged by {judge.name}", tuple(_judged_verdicts(judge, figures)))
        if judge.protocol in PAIRED:
            yield Block(
                f"Places, {judge.name}",
                (
                    Column("both orders alike [95%]", _compared(judge, _estimate(CONSISTENCY, "{:.2f}"), "baseline")),
                    Column("first place wins [95%]", _compared(judge, _estimate(FIRST_WINS, "{:.2f}"))),
                ),
            )
        if any(own.estimate(LENGTH_CORRELATION).value is not None for own in figures):
            yield Block(
                f"Lengths, {judge.name}",
                (
                    Column("longer answer wins [95%]", _compared(judge, _estimate(LONGER_WINS, "{:.2f}"), "baseline")),
                    Column("rank correlation [95%]", _compared(judge, _estimate(LENGTH_CORRELATION, "{:+.2f}"))),
                ),
            )


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


def _of(method: MethodFigures, judge: Judge) -> JudgedFigures | None:
    return next((figures for figures in method.judged if figures.judge == judge), None)


def _scores(judge: Judge, figures: list[JudgedFigures]) -> Iterator[Column]:
    yield Column("score [95%]", _cell(judge, _estimate(SCORE, "{:.2f}" if judge.in_points else "{:.3f}")))
    if any(len(own.by_turn) > 1 for own in figures):
        yield Column("by turn", _cell(judge, lambda own: "/".join(f"{mean:.3f}" for mean in own.by_turn)))


def _judged_verdicts(judge: Judge, figures: list[JudgedFigures]) -> Iterator[Column]:
    difference = _estimate(SCORE_DIFFERENCE, "{:+.2f}" if judge.in_points else "{:+.3f}")
    yield Column("difference [95%]", _compared(judge, difference, "baseline"))
    for title, metric in (("win", WIN), ("tie", TIE), ("loss", LOSS)):
        yield Column(title, _compared(judge, _percent(metric)))
    if any(own.unreadable for own in figures):
        yield Column("unread", _cell(judge, lambda own: f"{own.unreadable}/{own.asked}"))
    yield Column("prompts", _cell(judge, lambda own: str(own.prompts)))
    if any(own.prompts_needed for own in figures):
        needed: _Show = lambda own: NONE if own.prompts_needed is None else f"{own.prompts_needed:,}"  # noqa: E731
        yield Column(f"±{MARGIN:g} needs", _compared(judge, needed))


def _cell(judge: Judge, show: _Show) -> Callable[[MethodFigures], str]:
    def cell(method: MethodFigures) -> str:
        own = _of(method, judge)
        return show(own) if own and own.pairs else NONE

    return cell


def _compared(judge: Judge, show: _Show, of_baseline: str = NONE) -> Callable[[MethodFigures], str]:
    """A cell of what compares a method with the baseline; the baseline's own cell shows `of_baseline`."""
    return lambda method: of_baseline if method.is_baseline else _cell(judge, show)(method)


def _estimate(metric: Metric, pattern: str) -> _Show:
    return lambda own: spread(own.estimate(metric), pattern)


def _percent(metric: Metric) -> _Show:
    def show(own: JudgedFigures) -> str:
        value = own.estimate(metric).value
        return NONE if value is None else f"{value:.0%}"

    return show
