"""What an import held, by label: the figures that a reader checks against the published ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchctl.records.schema import Row
from benchctl.records.scores import Score


@dataclass(frozen=True)
class Sums:
    """Of one label: how many answers, and their tokens, steps and seconds, each over the answers that tell it.

    Every ratio is of sums over answers that tell both of its sides; None where none does. `scores` are the mean scores
    of single answers, turn by turn.
    """

    answers: int
    new_tokens: int
    tokens_per_s: float | None
    tokens_per_step: float | None
    scores: tuple[float, ...]


def sums_of(rows: Sequence[Row], scores: Sequence[Score] = ()) -> dict[str, Sums]:
    """By label, in the order of the rows."""
    labels = dict.fromkeys(row.label for row in rows)
    return {
        label: _sums([row for row in rows if row.label == label], [score for score in scores if score.label == label])
        for label in labels
    }


def _sums(rows: Sequence[Row], scores: Sequence[Score]) -> Sums:
    totals = [row.totals for row in rows if row.totals is not None]
    times = [(of.new_tokens, of.wall_s) for of in totals if of.new_tokens is not None and of.wall_s is not None]
    steps = [(of.new_tokens, of.steps) for of in totals if of.new_tokens is not None and of.steps is not None]
    points: dict[int, list[float]] = {}
    for score in scores:
        if score.protocol == "single" and score.score is not None:
            points.setdefault(score.turn, []).append(score.score)
    return Sums(
        answers=len(totals),
        new_tokens=sum(of.new_tokens or 0 for of in totals),
        tokens_per_s=_ratio(times),
        tokens_per_step=_ratio(steps),
        scores=tuple(fmean(points[turn]) for turn in sorted(points)),
    )


def _ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    below = sum(under for _, under in pairs)
    return sum(over for over, _ in pairs) / below if below else None
