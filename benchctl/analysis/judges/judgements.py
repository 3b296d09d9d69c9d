"""Scores as a table: one line per answer that was compared with the baseline's, over all orders and samples.

How judgements of a pair become one verdict: Zheng et al., Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena, 2023,
arXiv 2306.05685, section 3.4. An answer wins where it is preferred in both orders, loses where the baseline's is, and
all else is a tie. The difference is the mean over orders, so that position bias cancels.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from statistics import fmean
from typing import Final, Literal, NamedTuple, TypeVar, get_args

import pandas as pd

from benchctl.records.reader import RowKey, row_key
from benchctl.records.scores import Order, Protocol, Score, text_sha256
from benchctl.records.writer import RunFile

PAIRED: Final[tuple[Protocol, ...]] = ("pairwise", "preference")  # those that ask about two answers, in both orders


class Judge(NamedTuple):
    """Who judged, and how.

    Prompts with other words do not make another judge: one judge asks math questions with a reference, and second
    turns with the first one.
    """

    label: str
    model: str
    protocol: Protocol

    @property
    def name(self) -> str:
        """Label, model and protocol without repetition: `gpt gpt-4o pairwise`, `exact`."""
        return " ".join(dict.fromkeys(part for part in self if part))

    @property
    def in_points(self) -> bool:
        """Whether its scores are points from 1 to 10."""
        return self.protocol in ("pairwise", "single")


# Why a score fits no answer of a file, the nearest miss first: the answer's text has changed, the answer is not there,
# or the score is of another method or baseline.
Why = Literal["", "changed", "gone", "elsewhere"]
_NEAREST: Final[tuple[Why, ...]] = get_args(Why)


LeftOut = Counter[Why]  # scores without an answer here, by why


class Text(NamedTuple):
    """The hash and the length of an answer's text."""

    sha256: str
    characters: int


@dataclass
class ScoredAnswers:
    """The answers of a file, and the scores that are of them, by judge and answer."""

    file: int
    baseline: str
    texts: Mapping[RowKey, Text]
    labels: frozenset[str]
    by_answer: dict[tuple[Judge, RowKey], list[Score]] = field(default_factory=dict)

    def add(self, score: Score) -> None:
        self.by_answer.setdefault((judge_of(score), answer_of(score)), []).append(score)

    def baseline_keys(self, key: RowKey) -> list[RowKey]:
        """The baseline's answers to the same turn: the one of the same repeat and session.

        Where the baseline shares no session with the method, as in imported files, those of all its sessions.
        """
        if self._sessions.get(key.label, frozenset()) & self._sessions.get(self.baseline, frozenset()):
            own = key._replace(label=self.baseline)
            return [own] if own in self.texts else []
        return self._of_baseline.get(key[:3], [])

    def why_not(self, score: Score) -> Why:
        """Why a score fits no answer here; "" for one that does."""
        key = answer_of(score)
        if score.baseline not in ("", self.baseline) or score.label not in self.labels:
            return "elsewhere"
        baselines = self.baseline_keys(key) if score.baseline else []
        if key not in self.texts or (score.baseline and not baselines):
            return "gone"
        theirs = ("", *(self.texts[each].sha256 for each in baselines))
        same_baseline = not score.baseline or score.baseline_sha256 in theirs
        return "" if same_baseline and score.answer_sha256 in ("", self.texts[key].sha256) else "changed"

    def length(self, key: RowKey, sha256: str) -> int | None:
        """In characters; None where the text that was judged is unknown."""
        return self.texts[key].characters if sha256 and key in self.texts else None

    @cached_property
    def _sessions(self) -> dict[str, frozenset[int]]:
        return sets((key.label, key.session) for key in self.texts)

    @cached_property
    def _of_baseline(self) -> dict[tuple[object, ...], list[RowKey]]:
        """By suite, prompt and turn."""
        keys: dict[tuple[object, ...], list[RowKey]] = {}
        for key in self.texts:
            if key.label == self.baseline:
                keys.setdefault(key[:3], []).append(key)
        return keys


def judge_of(score: Score) -> Judge:
    return Judge(score.judge, score.model, score.protocol)


def answer_of(score: Score) -> RowKey:
    return RowKey(score.suite, score.prompt_id, score.turn, score.label, score.repeat, score.session)


def share_out(files: Sequence[RunFile], scores: Sequence[Score]) -> list[list[Score]]:
    """For each file those of `scores` that belong to its answers.

    A score that belongs to no file goes to the one that it misses by least, so that a warning counts it once.
    """
    shared: list[list[Score]] = [[] for _ in files]
    answers = [_answers(number, file) for number, file in enumerate(files)] if scores else []
    for score in scores:
        reasons = [each.why_not(score) for each in answers]
        nearest = reasons.index(min(reasons, key=_NEAREST.index))
        for number, reason in enumerate(reasons):
            if not reason or number == nearest:
                shared[number].append(score)
    return shared


def _answers(number: int, file: RunFile) -> ScoredAnswers:
    rows = (row for row in file.rows if row.mode == "free" and not row.error and row.repeat >= 0)
    texts = {row_key(row): Text(text_sha256(row.text), len(row.text)) for row in rows}
    return ScoredAnswers(number, file.run.baseline, texts, frozenset(method.label for method in file.run.methods))


_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value", bound=Hashable)


def sets(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, frozenset[_Value]]:
    """The values of each key."""
    values_of: dict[_Key, set[_Value]] = {}
    for key, value in pairs:
        values_of.setdefault(key, set()).add(value)
    return {key: frozenset(values) for key, values in values_of.items()}


class JudgedPair(NamedTuple):
    """A method's answer and the baseline's.

    `score` and `baseline_score` are means over orders and samples, None where a judge gave none. `difference` is score
    minus baseline score; `verdict` is 1, 0 or -1 for a win, a tie or a loss. `whole`: in every order asked,
    at least one judgement could be read. Otherwise there is no verdict, since one order contains the judge's
    position bias. Of `asked` judgements (0 where the texts are `identical`) `unreadable` could not be read. Of two
    `orders`, `decided` had a winner, which stood first in `first_won` of them; `consistent` is 1 where both orders gave
    the same verdict. Lengths are in characters, None where unknown.
    """

    file: int
    suite: str
    prompt_id: str
    turn: int
    label: str
    repeat: int
    session: int
    judge: str
    score: float | None
    baseline_score: float | None
    difference: float
    verdict: int
    whole: bool
    identical: bool
    asked: int
    unreadable: int
    length: int | None
    baseline_length: int | None
    orders: int = 0
    consistent: int = 0
    decided: int = 0
    first_won: int = 0


@dataclass
class Judged:
    """The judged pairs of some files.

    `templates` has the hashes of the prompts used, by judge and prompt name; `orders` the orders asked, by judge. The
    judges in `mixed` judged one answer by several prompts, such as with its reference and without.
    """

    pairs: pd.DataFrame
    judges: tuple[Judge, ...]
    left_out: LeftOut
    templates: Mapping[tuple[str, str], frozenset[str]]
    orders: Mapping[str, frozenset[Order]]
    mixed: frozenset[str]


def judged(files: Sequence[RunFile], scores: Sequence[Sequence[Score]]) -> Judged:
    """The scores of each of `files` as pairs of answers; several scores of one judgement count once.

    Scores of generations that failed, or of warm-up, or whose text is not the one that was judged, are left out.
    """
    left_out = LeftOut()
    answers = [_answers(number, file) for number, file in enumerate(files)]
    for own, of_file in zip(answers, scores, strict=True):
        for score in of_file:
            if why := own.why_not(score):
                left_out[why] += 1
            else:
                own.add(score)
    known = [score for of_file in answers for own in of_file.by_answer.values() for score in own]
    orders = sets((judge_of(score).name, score.order) for score in known if score.order)
    named = ((judge_of(score).name, score.template.partition("@")) for score in known)
    pairs = [pair for of_file in answers for pair in _pairs(of_file, orders)]
    return Judged(
        pairs=pd.DataFrame(pairs, columns=list(JudgedPair._fields)),
        judges=tuple(dict.fromkeys(map(judge_of, known))),
        left_out=left_out,
        templates=sets(((judge, name), sha256) for judge, (name, _, sha256) in named),
        orders=orders,
        mixed=frozenset(
            judge.name
            for of_file in answers
            for (judge, _), own in of_file.by_answer.items()
            if len({score.template.partition("@")[0] for score in own if not score.identical}) > 1
        ),
    )


def _pairs(answers: ScoredAnswers, orders: Mapping[str, frozenset[Order]]) -> Iterator[JudgedPair]:
    for (judge, key), scores in answers.by_answer.items():
        if judge.protocol == "single":
            yield _single(answers, judge, key, scores)
        else:
            yield _pair(answers, judge, key, scores, orders.get(judge.name, frozenset()) or frozenset({""}))


def _pair(
    answers: ScoredAnswers, judge: Judge, key: RowKey, scores: Sequence[Score], asked: frozenset[Order]
) -> JudgedPair:
    """Of two answers judged together. Identical ones differ by 0, whether or not they have scores."""
    first = scores[0]
    read = {order: [score for score in scores if score.order == order and not score.unreadable] for order in asked}
    whole = first.identical or all(read.values())
    given = {order: _scores(of_order) for order, of_order in read.items()}
    pairs = list(chain(*given.values()))
    differences = {order: fmean(own - theirs for own, theirs in both) for order, both in given.items() if both}
    signs = {order: _sign(difference) for order, difference in differences.items()}
    first_won = sum(sign == (-1 if order == "baseline_first" else 1) for order, sign in signs.items())
    alike = len(set(signs.values())) == 1
    compared = len(asked) if whole and not first.identical else 0
    return JudgedPair(
        answers.file,
        *key[:6],
        judge.name,
        score=fmean(own for own, _ in pairs) if pairs else first.score,
        baseline_score=fmean(theirs for _, theirs in pairs) if pairs else first.baseline_score,
        difference=fmean(differences.values()) if differences and not first.identical else 0.0,
        verdict=next(iter(signs.values())) if alike and not first.identical else 0,
        whole=whole,
        identical=first.identical,
        asked=0 if first.identical else len(scores),
        unreadable=sum(bool(score.unreadable) for score in scores),
        orders=compared,
        consistent=int(compared == 2 and alike),
        decided=sum(map(abs, signs.values())) if compared == 2 else 0,
        first_won=first_won if compared == 2 else 0,
        length=answers.length(key, first.answer_sha256),
        baseline_length=answers.length(next(iter(answers.baseline_keys(key)), key), first.baseline_sha256),
    )


def _single(answers: ScoredAnswers, judge: Judge, key: RowKey, scores: Sequence[Score]) -> JudgedPair:
    """Of answers judged alone, compared with the baseline's score of the same turn."""
    baselines = list(chain(*(answers.by_answer.get((judge, each), ()) for each in answers.baseline_keys(key))))
    own, theirs = ([score.score for score in each if score.score is not None] for each in (scores, baselines))
    texts = {score.answer_sha256 for score in (*scores, *baselines)}
    identical = key.label == answers.baseline or (len(texts) == 1 and texts != {""})
    whole = bool(own and theirs)
    difference = fmean(own) - fmean(theirs) if whole and not identical else 0.0
    baseline_key = answer_of(baselines[0]) if baselines else key
    return JudgedPair(
        answers.file,
        *key[:6],
        judge.name,
        score=fmean(own) if own else None,
        baseline_score=fmean(theirs) if theirs else None,
        difference=difference,
        verdict=_sign(difference),
        whole=whole,
        identical=identical,
        asked=len(scores),
        unreadable=sum(bool(score.unreadable) for score in scores),
        length=answers.length(key, scores[0].answer_sha256),
        baseline_length=answers.length(baseline_key, baselines[0].answer_sha256 if baselines else ""),
    )


def _scores(scores: Sequence[Score]) -> list[tuple[float, float]]:
    """The two scores of those judgements that have them."""
    return [
        (each.score, each.baseline_score)
        for each in scores
        if each.score is not None and each.baseline_score is not None
    ]


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
