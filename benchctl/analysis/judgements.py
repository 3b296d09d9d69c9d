"""Scores as a table: one line per answer that was set against the baseline's, whatever its orders and repetitions.

How judgements of a pair become one verdict is Zheng et al.: Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena,
2023, arXiv 2306.05685, section 3.4: an answer wins where it is preferred in both orders, loses where the other is, and
all else is a tie. Its difference is the mean over orders, so that what a judge likes about a place cancels.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from benchctl.analysis.scored_answers import Judge, LeftOut, ScoredAnswers, alone, answer_of, judge_of, sets, take
from benchctl.recordfile import RunFile
from benchctl.rowkeys import RowKey
from benchctl.scores import Order, Score


class JudgedPair(NamedTuple):
    """An answer beside the baseline's. `score` and `baseline_score` are means over orders and samples, None where a
    judge gave none; `difference` is theirs, and `verdict` 1, 0 or -1 for a win, a tie or a loss.

    `whole` says whether at least one judgement could be read in every order asked: otherwise there is no verdict, for
    one order alone has the judge's liking for a place in it. `asked` judgements there were, of which `unreadable` could
    not be read; none where the texts are `identical`. Of two `orders` `decided` had a winner, which stood first in
    `first_won` of them; `consistent` is 1 where both said the same. Lengths are in characters, None where unknown.
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
    orders: int
    consistent: int
    decided: int
    first_won: int
    length: int | None
    baseline_length: int | None


@dataclass
class Judged:
    """What the scores of some files come to. `templates` has the hashes of the prompts asked with, by judge and name of
    the prompt; `orders` the orders asked, by judge. Those in `mixed` judged an answer by more than one prompt, such as
    with its reference and without."""

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
    found = [take(number, *both, left_out) for number, both in enumerate(zip(files, scores, strict=True))]
    return _judged(found, left_out)


def from_scores(scores: Iterable[Score]) -> Judged:
    """The same without results files. Raises UserError where scores are of several runs: see scored_answers.alone."""
    return _judged([alone(scores)], LeftOut())


def _judged(found: Sequence[ScoredAnswers], left_out: LeftOut) -> Judged:
    scores = [score for part in found for answers in part.by_answer.values() for score in answers]
    orders = sets((judge_of(score).name, score.order) for score in scores if score.order)
    named = ((judge_of(score).name, score.template.partition("@")) for score in scores)
    pairs = [pair for part in found for pair in _pairs(part, orders)]
    return Judged(
        pairs=pd.DataFrame(pairs, columns=list(JudgedPair._fields)),
        judges=tuple(dict.fromkeys(map(judge_of, scores))),
        left_out=left_out,
        templates=sets(((judge, name), sha256) for judge, (name, _, sha256) in named),
        orders=orders,
        mixed=frozenset(
            judge.name
            for part in found
            for (judge, _), answers in part.by_answer.items()
            if len({score.template.partition("@")[0] for score in answers if not score.identical}) > 1
        ),
    )


def _pairs(found: ScoredAnswers, orders: Mapping[str, frozenset[Order]]) -> Iterator[JudgedPair]:
    for (judge, key), scores in found.by_answer.items():
        if judge.protocol == "single":
            yield _single(found, judge, key, scores)
        else:
            yield _pair(found, judge, key, scores, orders.get(judge.name, frozenset()) or frozenset({""}))


def _pair(
    found: ScoredAnswers, judge: Judge, key: RowKey, scores: Sequence[Score], asked: frozenset[Order]
) -> JudgedPair:
    """Of two answers judged together. Identical ones differ by 0, whether or not they have scores."""
    first = scores[0]
    read = {order: [score for score in scores if score.order == order and not score.unreadable] for order in asked}
    whole = first.identical or all(read.values())
    both = [pair for scores in read.values() for pair in _scores(scores)]
    differences = [fmean(one - other for one, other in given) for given in map(_scores, read.values()) if given]
    signs = [_sign(difference) for difference in differences]
    compared = len(asked) if whole and not first.identical else 0
    return JudgedPair(
        *_place(found, judge, key),
        score=fmean(one for one, _ in both) if both else first.score,
        baseline_score=fmean(other for _, other in both) if both else first.baseline_score,
        difference=fmean(differences) if differences and not first.identical else 0.0,
        verdict=signs[0] if len(set(signs)) == 1 and not first.identical else 0,
        whole=whole,
        identical=first.identical,
        asked=0 if first.identical else len(scores),
        unreadable=sum(bool(score.unreadable) for score in scores),
        orders=compared,
        consistent=int(compared == 2 and len(set(signs)) == 1),
        decided=sum(map(abs, signs)) if compared == 2 else 0,
        first_won=sum(_first_won(order, _scores(read[order])) for order in asked) if compared == 2 else 0,
        length=found.length(key, first.answer_sha256),
        baseline_length=found.length(next(iter(found.baseline_keys(key)), key), first.baseline_sha256),
    )


def _single(found: ScoredAnswers, judge: Judge, key: RowKey, scores: Sequence[Score]) -> JudgedPair:
    """Of answers judged by themselves, set against the baseline's score of the same turn."""
    beside = found.beside(judge, key)
    own, other = ([score.score for score in each if score.score is not None] for each in (scores, beside))
    texts = {score.answer_sha256 for score in (*scores, *beside)}
    identical = key.label == found.baseline or (len(texts) == 1 and texts != {""})
    whole = bool(own and other)
    difference = fmean(own) - fmean(other) if whole and not identical else 0.0
    baseline_key = answer_of(beside[0]) if beside else key
    return JudgedPair(
        *_place(found, judge, key),
        score=fmean(own) if own else None,
        baseline_score=fmean(other) if other else None,
        difference=difference,
        verdict=_sign(difference),
        whole=whole,
        identical=identical,
        asked=len(scores),
        unreadable=sum(bool(score.unreadable) for score in scores),
        orders=0,
        consistent=0,
        decided=0,
        first_won=0,
        length=found.length(key, scores[0].answer_sha256),
        baseline_length=found.length(baseline_key, beside[0].answer_sha256 if beside else ""),
    )


def _place(found: ScoredAnswers, judge: Judge, key: RowKey) -> tuple[int, str, str, int, str, int, int, str]:
    return found.file, key.suite, key.prompt_id, key.turn, key.label, key.repeat, key.session, judge.name


def _scores(scores: Sequence[Score]) -> list[tuple[float, float]]:
    """The two scores of those judgements that have them."""
    return [
        (one.score, one.baseline_score) for one in scores if one.score is not None and one.baseline_score is not None
    ]


def _first_won(order: Order, scores: Sequence[tuple[float, float]]) -> bool:
    sign = _sign(fmean(one - other for one, other in scores))
    return sign == (-1 if order == "baseline_first" else 1)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
