"""Scores that are computed: of each answer alone, and of each but once."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.judging.items import Item, as_graded
from benchctl.judging.judge import GradingJudge
from benchctl.judging.pairs import Pair
from benchctl.records.schema import Row
from benchctl.records.scores import Score


class Grades:
    """Grades answers; the baseline's answer is set beside every label's, and repeats are often equal."""

    def __init__(self, judge: GradingJudge) -> None:
        self._judge = judge
        self._known: dict[object, float | None] = {}

    def score(self, item: Item, now: str) -> Score | None:
        """The score of an item; None where there is nothing to grade by."""
        pair = item.pair
        mine, theirs = self._grade(pair, pair.rows), self._grade(pair, pair.others)
        if pair.identical:
            mine = theirs  # equal texts may be of other tokens, and the score is of the text
        return None if mine is None or theirs is None else as_graded(item, mine, theirs, now)

    def _grade(self, pair: Pair, rows: Sequence[Row]) -> float | None:
        row = rows[-1]
        talk = tuple((each.text, each.token_ids) for each in rows)
        key = (pair.file, row.suite, row.prompt_id, row.turn, talk)
        if key not in self._known:
            self._known[key] = self._judge.grade(pair.run, rows, pair.question(rows, ()))
        return self._known[key]
