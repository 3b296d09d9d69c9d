"""From the rows of a results file to the judgements to be made of its answers, and the scores that they become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from benchctl.errors import UserError
from benchctl.judging.judge import Judge, Question
from benchctl.judging.reply_cache import Outcome
from benchctl.records.reader import RowKey, row_key
from benchctl.records.schema import Row, Run
from benchctl.records.scores import Order, Score, text_sha256
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


def pairs_of(file: RunFile, prompts: Prompts, baseline: str, left_out: Counter[str], *, alone: bool) -> Iterator[Pair]:
    """The answers of a file to judge: those of the free rows that did not fail, of every planned repeat and
    session. A repeat that was measured again (see measuring.plan) has one answer: of its first try that can be judged.

    `alone` takes every answer alone, and those of the baseline; else each is compared with that of `baseline` to the
    same turn, repeat and session. Answers that cannot be judged are counted in `left_out`, by what they lack. Raises
    UserError where the file has no answer of `baseline`, nothing to judge, or a prompt that `prompts` does not have.
    """
    free = (row for row in file.rows if row.mode == "free" and row.repeat >= 0)
    rows = {row_key(row): row for row in free if row.error is None}
    _check_labels(file, rows, baseline)
    judged, lacking, shown = set[RowKey](), dict[RowKey, str](), set[RowKey]()
    for key in sorted(rows, key=lambda key: key.repeat // file.run.repeats):
        planned = key._replace(repeat=key.repeat % file.run.repeats)
        if planned in judged or key.label == baseline:
            continue
        baseline_key = key._replace(label=baseline)
        mine, theirs = _talk(rows, key), _talk(rows, baseline_key)
        if mine is None or theirs is None:
            lacking.setdefault(planned, "an earlier turn" if mine is None else "the baseline's answer")
            continue
        if file.run.imported and not all(row.text for row in (*mine, *theirs)):
            lacking.setdefault(planned, "a text")
            continue
        judged.add(planned)
        # A score alone is compared with that of the baseline's answer of the same try.
        for each, talk in ((key, mine), (baseline_key, theirs))[: 2 if alone else 1]:
            if each not in shown:
                shown.add(each)
                yield Pair(file.path, file.run, talk, () if alone else theirs, _prompt(file.path, prompts, each))
    left_out.update(why for planned, why in lacking.items() if planned not in judged)


def _check_labels(file: RunFile, rows: Mapping[RowKey, Row], baseline: str) -> None:
    labels = dict.fromkeys(key.label for key in rows)
    if labels and baseline not in labels:
        raise UserError(
            "unknown_baseline",
            f"{file.path}: has no answers of the baseline '{baseline}'. Its labels: {', '.join(labels)}. "
            "Name one of them by --baseline-label, or measure the baseline with them.",
        )
    if len(labels) < 2:
        raise UserError(
            "nothing_to_judge",
            f"{file.path}: has no answers of a method that could be judged. Measure one with `benchctl run`.",
        )


def _talk(rows: Mapping[RowKey, Row], key: RowKey) -> tuple[Row, ...] | None:
    """The rows of this turn and of those before it; None where one is missing."""
    turns = [rows.get(key._replace(turn=turn)) for turn in range(key.turn + 1)]
    return None if None in turns else tuple(row for row in turns if row is not None)


def _prompt(path: Path, prompts: Prompts, key: RowKey) -> Prompt:
    prompt = prompts.get((key.suite, key.prompt_id))
    if prompt is None or len(prompt.turns) <= key.turn:
        raise UserError(
            "other_prompts",
            f"{path}: answers turn {key.turn + 1} of prompt {key.prompt_id} of {key.suite}, which the prompts do not "
            "have. Give the ones it was measured with (BENCHCTL_DATA, --source).",
        )
    return prompt


def check_same_prompts(files: Sequence[RunFile]) -> None:
    """Raises UserError where a suite of one name has other prompts in one file than in another."""
    first: dict[str, tuple[Path, str]] = {}
    for file in files:
        for suite in file.run.suites:
            earlier, other = first.setdefault(suite.name, (file.path, suite.sha256))
            if other != suite.sha256:
                raise UserError(
                    "other_prompts",
                    f"{suite.name}: its prompts in {file.path} differ from those in {earlier} ({suite.sha256[:8]} and "
                    f"{other[:8]}), so their judgements could not be compared. Judge the two separately.",
                )


ORDERS: tuple[Order, ...] = ("baseline_first", "baseline_second")


@dataclass(frozen=True)
class Item:
    """A judgement to be made; `blank` is its score with everything but how it turns out."""

    pair: Pair
    blank: Score

    @property
    def question(self) -> Question:
        """What to ask: the answers in the order in which they are shown."""
        mine, theirs = self.pair.rows, self.pair.others
        swapped = self.blank.order == "baseline_first"
        return self.pair.question(theirs if swapped else mine, mine if swapped else theirs)


def items_of(label: str, judge: Judge, pair: Pair, samples: int, template: str) -> Iterator[Item]:
    """The judgements of a pair by a prepared judge, which scores call `label`: one for each order and sample, or just
    one where the two answers are equal."""
    pairwise = judge.protocol == "pairwise"
    alike = pairwise and pair.identical
    for order in ORDERS if pairwise and not alike else ("",):
        for sample in range(1 if alike else samples):
            yield Item(pair, _blank(label, judge, pair, order, sample, template))


def with_outcome(item: Item, outcome: Outcome, *, cost_usd: float | None, shared: bool, now: str) -> Score:
    """The score of an item that a judge was asked about. `shared` says that an earlier score carries the bill."""
    first, second = (*(outcome.scores or ()), None, None)[:2]
    swapped = item.blank.order == "baseline_first"
    cached = shared or not outcome.fresh
    return replace(
        item.blank,
        score=second if swapped else first,
        baseline_score=(first if swapped else second) if item.blank.baseline else None,
        unreadable=outcome.unreadable,
        tries=outcome.tries,
        reply=outcome.reply,
        prompt_tokens=0 if cached else sum(kept.prompt_tokens or 0 for kept in outcome.fresh),
        reply_tokens=0 if cached else sum(kept.reply_tokens or 0 for kept in outcome.fresh),
        cost_usd=0.0 if cached else cost_usd,
        cached=cached,
        judged_at=now,
    )


def _blank(label: str, judge: Judge, pair: Pair, order: Order, sample: int, template: str) -> Score:
    row, other = pair.row, pair.others[-1] if pair.others else None
    by_target = pair.run.target.name if judge.protocol == "likelihood" else ""
    return Score(
        suite=row.suite,
        prompt_id=row.prompt_id,
        turn=row.turn,
        label=row.label,
        repeat=row.repeat,
        session=row.session,
        baseline="" if other is None else other.label,
        judge=label,
        model=judge.model_id or by_target,
        protocol=judge.protocol,
        template=template,
        order=order,
        sample=sample,
        score=None,
        baseline_score=None,
        identical=pair.identical,
        unreadable="" if pair.identical and judge.protocol == "pairwise" else "not judged yet",
        answer_sha256=text_sha256(row.text),
        baseline_sha256="" if other is None else text_sha256(other.text),
        judged_at="",
    )
