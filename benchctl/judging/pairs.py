"""From the rows of a results file to what is to be judged: answers beside the baseline's, and what they answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchctl.errors import UserError
from benchctl.judging.judge import Question
from benchctl.records.reader import RowKey, row_key
from benchctl.records.schema import Row, Run
from benchctl.records.writer import RunFile

# MT-Bench's judge gets the reference answers of these; elsewhere a reference is one good answer of many.
WITH_REFERENCE = frozenset({"math", "reasoning", "coding"})


class Prompt(Protocol):
    """What judging needs to know of a prompt."""

    @property
    def turns(self) -> tuple[str, ...]: ...
    @property
    def reference(self) -> tuple[str, ...]: ...
    @property
    def category(self) -> str: ...


Prompts = Mapping[tuple[str, str], Prompt]  # by suite and prompt id


@dataclass(frozen=True)
class Pair:
    """An answer and the baseline's to the same turn, each with the answers to the turns before it, last ones last.

    `others` is empty where answers are judged alone.
    """

    file: Path
    run: Run
    rows: tuple[Row, ...]
    others: tuple[Row, ...]
    prompt: Prompt

    @property
    def row(self) -> Row:
        return self.rows[-1]

    @property
    def identical(self) -> bool:
        return bool(self.others) and self.row.text == self.others[-1].text

    def question(self, first: Sequence[Row], second: Sequence[Row]) -> Question:
        """What to ask about these answers, shown in this order."""
        turns = self.row.turn + 1
        reference = self.prompt.reference[:turns] if self.prompt.category in WITH_REFERENCE else ()
        suite = next(suite for suite in self.run.suites if suite.name == self.row.suite)
        return Question(
            turns=self.prompt.turns[:turns],
            first=tuple(row.text for row in first),
            second=tuple(row.text for row in second),
            reference=reference if len(reference) == turns and all(map(str.strip, reference)) else (),
            exact_answer=suite.exact_answer(self.row.prompt_id, self.row.turn),
        )


@dataclass(frozen=True)
class FilePairs:
    """What of a results file is to be judged, and how many answers cannot be, by reason."""

    path: Path
    run: Run
    baseline: str
    pairs: tuple[Pair, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def pairs_of(file: RunFile, prompts: Prompts, baseline: str, *, alone: bool) -> FilePairs:
    """The answers of a file to judge: those of the free rows that did not fail, of every planned repeat and
    session. A further repeat has the answers of the one that it measures again, of which only the times were in doubt
    (see measuring.plan).

    `alone` takes every answer, the baseline's too, for itself; else each is set beside that of `baseline` to the same
    turn, repeat and session. Raises UserError where the file has no answer of `baseline`, nothing to judge, or answers
    a prompt that `prompts` does not have.
    """
    planned = (row for row in file.rows if row.mode == "free" and 0 <= row.repeat < file.run.repeats)
    rows = {row_key(row): row for row in planned if row.error is None}
    _check_labels(file, rows, baseline)
    left_out: Counter[str] = Counter()
    pairs = []
    for key in rows:
        if key.label == baseline and not alone:
            continue
        mine, theirs = _talk(rows, key), _talk(rows, key._replace(label=baseline))
        if mine is None or (theirs is None and not alone):
            left_out["an earlier turn" if mine is None else "the baseline's answer"] += 1
            continue
        others = () if alone else theirs or ()
        pairs.append(Pair(file.path, file.run, mine, others, _prompt(file.path, prompts, key)))
    return FilePairs(file.path, file.run, baseline, tuple(pairs), dict(left_out))


def check_baseline(files: Sequence[RunFile], label: str) -> None:
    """Raises UserError where a file was not measured with the label that is to be its baseline; "" is its own."""
    for file in files:
        labels = [method.label for method in file.run.methods]
        if label and label not in labels:
            raise UserError(
                f"{file.path}: holds no answers of the baseline '{label}' that --baseline-label names. Name one of its "
                f"labels: {', '.join(labels)}."
            )


def _check_labels(file: RunFile, rows: Mapping[RowKey, Row], baseline: str) -> None:
    labels = dict.fromkeys(key.label for key in rows)
    if not labels:
        raise UserError(f"{file.path}: holds no answers that could be judged. Measure with `benchctl run` first.")
    if baseline not in labels:
        raise UserError(
            f"{file.path}: holds no answers of the baseline '{baseline}'. Its labels: {', '.join(labels)}. "
            "Name one of them by --baseline-label, or measure the baseline beside them."
        )
    if len(labels) == 1:
        raise UserError(f"{file.path}: holds answers of the baseline alone. Measure a method beside it.")


def _talk(rows: Mapping[RowKey, Row], key: RowKey) -> tuple[Row, ...] | None:
    """The rows of this turn and of those before it; None where one is missing."""
    found = [rows.get(key._replace(turn=turn)) for turn in range(key.turn + 1)]
    return None if None in found else tuple(row for row in found if row is not None)


def _prompt(path: Path, prompts: Prompts, key: RowKey) -> Prompt:
    prompt = prompts.get((key.suite, key.prompt_id))
    if prompt is None or len(prompt.turns) <= key.turn:
        raise UserError(
            f"{path}: answers turn {key.turn + 1} of prompt {key.prompt_id} of {key.suite}, which the prompts do not "
            "have. Give the ones it was measured with (BENCHCTL_DATA, --source)."
        )
    return prompt


def check_same_prompts(files: Sequence[RunFile]) -> None:
    """Raises UserError where a suite of one name has other prompts in one file than in another."""
    first: dict[str, tuple[Path, str]] = {}
    for file, name, digest in _suites(files):
        earlier, other = first.setdefault(name, (file, digest))
        if other != digest:
            raise UserError(
                f"{name}: its prompts in {file} differ from those in {earlier} ({digest[:8]} and {other[:8]}), so "
                "their judgements could not be set side by side. Judge the two apart."
            )


def _suites(files: Sequence[RunFile]) -> Iterator[tuple[Path, str, str]]:
    for file in files:
        for suite in file.run.suites:
            yield file.path, suite.name, suite.sha256
