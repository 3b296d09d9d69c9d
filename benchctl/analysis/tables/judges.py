"""Tables of what judges say, the sentences on how far they agree, and what to know before believing them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from benchctl.analysis.frame.comparison import Group, MethodFigures
from benchctl.analysis.judges.figures import (
    CONSISTENCY,
    FIRST_WINS,
    LENGTH_CORRELATION,
    LONGER_WINS,
    LOSS,
    SCORE,
    SCORE_DIFFERENCE,
    TIE,
    WIN,
)
from benchctl.analysis.judges.judgements import PAIRED, Judge
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.tables.cells import NONE, Block, Column, spread

if TYPE_CHECKING:
    from benchctl.analysis.judges.agreement import Agreement
    from benchctl.analysis.judges.figures import JudgedFigures

_LOST = 0.02  # share of judgements that may be unreadable unsaid
_BLIND = 0.5  # share that the first place, or the longer answer, wins of a judge that does not look at that

Cell = Callable[[MethodFigures], str]
Show = Callable[["JudgedFigures"], str]


def judge_blocks(group: Group) -> Iterator[Block]:
    """Tables for each judge, narrow enough for labels to have room: what it says of the methods, and how it judges."""
    for judge in group.judging.judges if group.judging else ():
        figures = [found for method in group.pooled.methods if (found := of(method, judge))]
        if judge.protocol not in PAIRED:
            yield Block(f"Scores of {judge.name}", tuple(_scores(judge, figures)))
        yield Block(f"Judged by {judge.name}", tuple(_verdicts(judge, figures)))
        if judge.protocol in PAIRED:
            yield Block(f"Places, {judge.name}", tuple(_places(judge)))
        if any(found.estimate(LENGTH_CORRELATION).value is not None for found in figures):
            yield Block(f"Lengths, {judge.name}", tuple(_lengths(judge)))


def of(method: MethodFigures, judge: Judge) -> JudgedFigures | None:
    return next((found for found in method.judged if found.judge == judge), None)


def agreement_sentences(group: Group) -> Iterator[str]:
    """How far each two judges agree."""
    for found in group.judging.agreements if group.judging else ():
        yield agreement_sentence(found)


def agreement_sentence(found: Agreement) -> str:
    kappa = "no kappa, as both always say the same" if found.kappa is None else f"Cohen's kappa {found.kappa:.2f}"
    ends = f" [{found.interval.low:.2f}, {found.interval.high:.2f}]" if found.interval else ""
    pairs = "pair" if found.pairs == 1 else "pairs"
    return (
        f"{found.one.name} and {found.other.name} say the same (win, tie or loss) of {found.alike:.0%} of "
        f"{found.pairs} {pairs} of answers that both judged: {kappa}{ends}."
    )


def _scores(judge: Judge, figures: list[JudgedFigures]) -> Iterator[Column]:
    yield Column("score [95%]", _cell(judge, _estimate(SCORE, _digits(judge))))
    if any(len(found.by_turn) > 1 for found in figures):
        yield Column("by turn", _cell(judge, lambda found: "/".join(f"{mean:.3f}" for mean in found.by_turn)))


def _verdicts(judge: Judge, figures: list[JudgedFigures]) -> Iterator[Column]:
    yield Column("difference [95%]", _against(judge, _estimate(SCORE_DIFFERENCE, f"+{_digits(judge)}"), "baseline"))
    for title, metric in (("win", WIN), ("tie", TIE), ("loss", LOSS)):
        yield Column(title, _against(judge, _percent(metric)))
    if any(found.unreadable for found in figures):
        yield Column("unread", _cell(judge, lambda found: f"{found.unreadable}/{found.asked}"))
    yield Column("prompts", _cell(judge, lambda found: str(found.prompts)))
    if any(found.prompts_needed for found in figures):
        yield Column(f"±{figures[0].margin:g} needs", _against(judge, _needed))


def _places(judge: Judge) -> Iterator[Column]:
    yield Column("both orders alike [95%]", _against(judge, _estimate(CONSISTENCY, ".2f"), "baseline"))
    yield Column("first place wins [95%]", _against(judge, _estimate(FIRST_WINS, ".2f")))


def _lengths(judge: Judge) -> Iterator[Column]:
    yield Column("longer answer wins [95%]", _against(judge, _estimate(LONGER_WINS, ".2f"), "baseline"))
    yield Column("rank correlation [95%]", _against(judge, _estimate(LENGTH_CORRELATION, "+.2f")))


def _digits(judge: Judge) -> str:
    return ".2f" if judge.in_points else ".3f"


def _cell(judge: Judge, show: Show) -> Cell:
    def cell(method: MethodFigures) -> str:
        found = of(method, judge)
        return show(found) if found and found.pairs else NONE

    return cell


def _against(judge: Judge, show: Show, itself: str = NONE) -> Cell:
    """Of what sets a method against the baseline; the baseline's own cell shows `itself`."""
    return lambda method: itself if method.is_baseline else _cell(judge, show)(method)


def _estimate(metric: Metric, pattern: str) -> Show:
    return lambda found: spread(found.estimate(metric), pattern)


def _percent(metric: Metric) -> Show:
    def show(found: JudgedFigures) -> str:
        value = found.estimate(metric).value
        return NONE if value is None else f"{value:.0%}"

    return show


def _needed(found: JudgedFigures) -> str:
    return NONE if found.prompts_needed is None else f"{found.prompts_needed:,}"


def judge_cautions(group: Group) -> Iterator[str]:
    """What speaks against the judgements of a group, and what to do about it."""
    if not group.judging:
        return
    yield from group.judging.notices
    yield from _lost(group)
    for judge in group.judging.one_order:
        yield f"{judge.name} saw each pair in one order, so its liking for a place is in its figures: --orders both."
    for name in group.judging.changed_templates:
        yield f"the prompt {name} was changed between judgements: judge all answers anew with one of its versions."
    for judge in group.judging.mixed_templates:
        yield (
            f"{judge.name} judged answers by two prompts, as with their reference and without, and both count: keep "
            "the lines of one of them in the scores file (`template` names it)."
        )
    for judge in group.judging.judges:
        yield from _judge_cautions(judge, group)


def _lost(group: Group) -> Iterator[str]:
    assert group.judging is not None
    left = group.judging.left_out
    for count, why in (
        (left.changed, "are of other texts than the answers here (measured again since?)"),
        (left.gone, "are of answers that are not here"),
        (left.elsewhere, "are of methods or set against baselines that are not this comparison's"),
    ):
        if count:
            scores = "1 score" if count == 1 else f"{count} scores"
            yield f"{scores} left out, which {why}: `benchctl judge` judges what is here."


def _judge_cautions(judge: Judge, group: Group) -> Iterator[str]:
    """Habits are the judge's own: what they are seen on is listed, in one sentence for each."""
    found = [(method, figures) for method in group.pooled.methods if (figures := of(method, judge))]
    unread = sum(figures.unreadable for _, figures in found)
    if unread > _LOST * sum(figures.asked for _, figures in found):
        pairs = sum(figures.incomplete for _, figures in found)
        yield (
            f"{judge.name}: {unread} of {sum(figures.asked for _, figures in found)} replies could not be read, so "
            f"{pairs} pairs of answers have no verdict; if those are hard ones, the rest flatters. Judge again "
            "with more --tries, or ask another judge."
        )
    short = [method.label for method, figures in found if figures.asked_prompts < method.prompts]
    if short:
        yield f"{judge.name} was not asked about all prompts of {', '.join(short)}: judge the rest as well."
    for metric, names, what in (
        (FIRST_WINS, ("first", "second"), _PLACE),
        (LONGER_WINS, ("longer", "shorter"), _LENGTH),
    ):
        for name, labels in zip(names, _taken_by(metric, found), strict=True):
            if labels:
                yield what.format(judge=judge.name, name=name, labels=", ".join(labels))


_PLACE = (
    "{judge} favours the answer that stands {name} (seen on {labels}): both orders cancel that in the mean, but what "
    "it says of one pair is worth little."
)
_LENGTH = (
    "{judge} prefers the {name} answer (seen on {labels}), which may be its merit or the judge's taste: see what a "
    "judge of another kind says."
)


def _taken_by(metric: Metric, found: list[tuple[MethodFigures, JudgedFigures]]) -> tuple[list[str], list[str]]:
    """The methods on which a judge favours what the metric counts, beyond chance, and those on which the opposite."""
    above, below = list[str](), list[str]()
    for method, figures in found:
        interval = None if method.is_baseline else figures.estimate(metric).interval
        if interval and not interval.low <= _BLIND <= interval.high:
            (above if interval.low > _BLIND else below).append(method.label)
    return above, below
