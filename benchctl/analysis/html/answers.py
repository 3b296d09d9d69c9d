"""The answers in a report: text, steps, and the first difference from the baseline's answer."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

import pandas as pd

from benchctl.analysis.comparison import Group
from benchctl.analysis.frame.build import pair
from benchctl.analysis.judges.judgements import answer_of, judge_of
from benchctl.records.reader import RowKey, row_key
from benchctl.records.schema import Row
from benchctl.records.scores import Score, text_sha256

MOST_OF_A_METHOD = 100
_BY_INTEREST = ("lossy", "numeric", "tie", "sampled", "identical")  # verdicts, the most interesting first
_OF_SCORE = ("order", "score", "baseline_score", "unreadable", "reply")
_TURN = ["suite", "prompt_id", "turn"]
_Item = TypeVar("_Item")
_Place = tuple[int, RowKey]
"""A row: the number of its file in the group, and its key."""


@dataclass(frozen=True)
class Answer:
    """A text and its steps: for each step the number of accepted draft tokens and of committed tokens.

    `tokens` is None where an imported file has no count. `cut` is the first character that differs from the other
    answer, counted in UTF-16 units, as in browsers; None for equal texts.
    """

    text: str
    tokens: int | None
    stop_reason: str
    steps: tuple[tuple[int, int], ...] = ()
    cut: int | None = None


@dataclass(frozen=True)
class ComparedAnswer:
    """A method's answer and the baseline's; `verdict`, `first_divergence`, `margin` and `noise` as in its row.

    `group` is a number. A judgement has the judge's name and the fields of _OF_SCORE.
    """

    group: int
    place: RowKey
    verdict: str | None
    first_divergence: int | None
    margin: float | None
    noise: float | None
    answer: Answer
    baseline: Answer
    judgements: tuple[dict[str, object], ...] = ()


def answers(number: int, group: Group) -> tuple[ComparedAnswer, ...]:
    """Up to MOST_OF_A_METHOD answers of each method, by verdict in the order of _BY_INTEREST; methods and suites take
    turns. `number` is that of the group."""
    chosen = in_turn([_of_method(group, label)[:MOST_OF_A_METHOD] for label in _labels(group)])
    wanted, rows = {place for both in chosen for place in both}, dict[_Place, Row]()
    for file_number, file in enumerate(group.files):
        for row in file.rows:
            if (place := (file_number, row_key(row))) in wanted:
                rows[place] = row
    judged = _judged(group)
    return tuple(
        _compared_answer(number, place, rows[place], rows[baseline], judged.get(place, ()))
        for place, baseline in chosen
        if place in rows and baseline in rows
    )


def answered(group: Group) -> int:
    """How many answers the group has for `answers` to choose from: one of each method to each turn."""
    return sum(len(_turns(group, label)) for label in _labels(group))


def _labels(group: Group) -> tuple[str, ...]:
    return tuple(method.label for method in group.pooled.methods if not method.is_baseline)


def _turns(group: Group, label: str) -> pd.DataFrame:
    """An answer of a method to each turn that the baseline answered too.

    Of repeats and sessions it is the first with the most interesting verdict, since a single one of them may differ.
    Disturbed rounds count too: their times are in doubt, their answers are not.
    """
    pairs = pair(group.frame.assign(round_invalid=False), label, group.run.baseline)
    ranks = {verdict: rank for rank, verdict in enumerate(_BY_INTEREST)}
    rank = pairs["verdict"].map(ranks).fillna(len(ranks))
    return pairs.loc[rank.sort_values(kind="stable").index].drop_duplicates(_TURN).sort_index()


def _of_method(group: Group, label: str) -> list[tuple[_Place, _Place]]:
    """The places of a method's answers and of the baseline's, in the order of _BY_INTEREST."""
    found: list[tuple[_Place, _Place]] = []
    turns = _turns(group, label)
    for verdict in (*_BY_INTEREST, None):
        alike = turns[turns["verdict"].isna() if verdict is None else turns["verdict"] == verdict]
        found += in_turn([_places(rows, label, group.run.baseline) for _, rows in alike.groupby("suite", sort=False)])
    return found


def _places(rows: pd.DataFrame, label: str, baseline: str) -> list[tuple[_Place, _Place]]:
    def of(label: str, file: str, repeat: str, session: str) -> list[_Place]:
        columns = zip(*(rows[name] for name in (file, *_TURN, repeat, session)), strict=True)
        return [
            (int(file), RowKey(suite, prompt_id, int(turn), label, int(repeat), int(session)))
            for file, suite, prompt_id, turn, repeat, session in columns
        ]

    baseline_repeat = "repeat_baseline" if "repeat_baseline" in rows else "repeat"
    places = of(label, "file", "repeat", "session")
    return list(zip(places, of(baseline, "file_baseline", baseline_repeat, "session_baseline"), strict=True))


def in_turn(lists: Sequence[Sequence[_Item]]) -> list[_Item]:
    """The first of each list, then the second of each, and so on: [1, 2, 3], [4] -> 1 4 2 3."""
    return [item for items in zip_longest(*lists) for item in items if item is not None]


def _judged(group: Group) -> Mapping[_Place, list[Score]]:
    """The scores of each answer, if there are judges."""
    found: dict[_Place, list[Score]] = {}
    for number, scores in enumerate(group.judging.scores if group.judging else ()):
        for score in scores:
            found.setdefault((number, answer_of(score)), []).append(score)
    return found


def _compared_answer(number: int, place: _Place, row: Row, baseline: Row, scores: Sequence[Score]) -> ComparedAnswer:
    texts = {text_sha256(row.text), text_sha256(baseline.text), ""}
    return ComparedAnswer(
        group=number,
        place=place[1],
        verdict=row.verdict,
        first_divergence=row.first_divergence,
        margin=row.margin,
        noise=row.noise,
        answer=_answer(row, baseline),
        baseline=_answer(baseline, row),
        judgements=tuple(
            {"judge": judge_of(score).name} | {name: getattr(score, name) for name in _OF_SCORE}
            for score in scores
            if {score.answer_sha256, score.baseline_sha256} <= texts
        ),
    )


def _answer(row: Row, other: Row) -> Answer:
    return Answer(
        text=row.text,
        tokens=len(row.token_ids) if row.totals is None else row.totals.new_tokens,
        stop_reason=row.stop_reason or "",
        steps=tuple(zip(row.accepted, row.committed, strict=True)) if any(row.drafted) else (),
        cut=_cut(row.text, other.text),
    )


def _cut(text: str, other: str) -> int | None:
    """Where two texts begin to differ, in UTF-16 units; None where they are equal."""
    if text == other:
        return None
    same = os.path.commonprefix((text, other))
    return len(same.encode("utf-16-le", "surrogatepass")) // 2
