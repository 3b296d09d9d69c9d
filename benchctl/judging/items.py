"""The judgements to be made of pairs of answers, and the scores that they become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchctl.judging.asking import Outcome
from benchctl.judging.judge import Judge, Question
from benchctl.judging.pairs import Pair
from benchctl.records.schema import Run
from benchctl.records.scores import Order, Score, ScoreKey, score_key, text_sha256

BOTH_ORDERS: tuple[Order, ...] = ("baseline_first", "baseline_second")


@dataclass(frozen=True)
class Item:
    """A judgement to be made; `blank` is its score with everything but how it turns out."""

    pair: Pair
    blank: Score

    @property
    def place(self) -> tuple[Path, ScoreKey]:
        """Where its score will be: the results file that it is beside, and what names it there."""
        return self.pair.file, score_key(self.blank)

    @property
    def question(self) -> Question:
        """What to ask: the answers in the order in which they are shown."""
        mine, theirs = self.pair.rows, self.pair.others
        swapped = self.blank.order == "baseline_first"
        return self.pair.question(theirs if swapped else mine, mine if swapped else theirs)


@dataclass(frozen=True)
class JudgeName:
    """A judge that is prepared, and how scores name it."""

    label: str
    judge: Judge

    def model(self, run: Run) -> str:
        """What it asks or computes with; the likelihood of answers is under the target of their run, by default."""
        return self.judge.model_id or (run.target.name if self.judge.protocol == "likelihood" else "")


def items_of(name: JudgeName, pair: Pair, orders: Sequence[Order], samples: int, template: str) -> Iterator[Item]:
    """The judgements of a pair: one for each order and sample, or just one where the two answers are equal."""
    pairwise = name.judge.protocol == "pairwise"
    alike = pairwise and pair.identical
    for order in orders if pairwise and not alike else ("",):
        for sample in range(1 if alike else samples):
            yield Item(pair, _blank(name, pair, order, sample, template))


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


def as_tie(item: Item, now: str) -> Score:
    """The score of a pair of equal answers, about which nobody is asked."""
    return replace(item.blank, cost_usd=0.0, judged_at=now)


def as_graded(item: Item, score: float, baseline_score: float, now: str) -> Score:
    """The score of an item that was computed."""
    return replace(
        item.blank, score=score, baseline_score=baseline_score, unreadable="", tries=1, cost_usd=0.0, judged_at=now
    )


def _blank(name: JudgeName, pair: Pair, order: Order, sample: int, template: str) -> Score:
    row, other = pair.row, pair.others[-1] if pair.others else None
    identical = pair.identical
    return Score(
        suite=row.suite,
        prompt_id=row.prompt_id,
        turn=row.turn,
        label=row.label,
        repeat=row.repeat,
        session=row.session,
        baseline="" if other is None else other.label,
        judge=name.label,
        model=name.model(pair.run),
        protocol=name.judge.protocol,
        template=template,
        order=order,
        sample=sample,
        score=None,
        baseline_score=None,
        identical=identical,
        unreadable="" if identical and name.judge.protocol == "pairwise" else "not judged yet",
        answer_sha256=text_sha256(row.text),
        baseline_sha256="" if other is None else text_sha256(other.text),
        judged_at="",
    )
