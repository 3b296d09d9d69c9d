"""Scores beside the answers that they are of: none is of another text than the one that was judged."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeVar

from benchctl.errors import UserError
from benchctl.recordfile import RunFile
from benchctl.rowkeys import RowKey, row_key
from benchctl.scores import Protocol, Score, text_sha256

PAIRED: Final[tuple[Protocol, ...]] = ("pairwise", "preference")  # those that ask about two answers, in both orders


class Judge(NamedTuple):
    """Who judged, and how. Prompts that differ in their text do not make another judge: one asks math questions with a
    reference, and second turns with the first one."""

    label: str
    model: str
    protocol: Protocol

    @property
    def name(self) -> str:
        """Each part that says something new: `gpt gpt-4o pairwise`, `exact`."""
        return " ".join(dict.fromkeys(part for part in self if part))

    @property
    def in_points(self) -> bool:
        """Whether its scores are points from 1 to 10."""
        return self.protocol in ("pairwise", "single")


Why = Literal["", "changed", "gone", "elsewhere"]  # a score is of no answer of a file, the nearest miss first
_NEAREST: Final[tuple[Why, ...]] = ("", "changed", "gone", "elsewhere")


@dataclass
class LeftOut:
    """Scores that are of no answer here: their answer is `gone`, has `changed` since, or was set against another
    baseline (`elsewhere`)."""

    gone: int = 0
    changed: int = 0
    elsewhere: int = 0

    def count(self, why: Why) -> None:
        self.gone += why == "gone"
        self.changed += why == "changed"
        self.elsewhere += why == "elsewhere"


@dataclass(frozen=True)
class Text:
    """What is kept of an answer's text."""

    sha256: str
    characters: int | None


@dataclass
class ScoredAnswers:
    """The answers of a file, and the scores that are of them, by judge and answer."""

    file: int
    baseline: str
    texts: Mapping[RowKey, Text]
    labels: frozenset[str] = frozenset()
    by_answer: dict[tuple[Judge, RowKey], list[Score]] = field(default_factory=dict)

    def baseline_keys(self, key: RowKey) -> list[RowKey]:
        """The baseline's answers to the same turn: that of the same repeat and session, or those of all its sessions
        where it shares none with the method, as in files of other programs."""
        if self._sessions.get(key.label, frozenset()) & self._sessions.get(self.baseline, frozenset()):
            own = key._replace(label=self.baseline)
            return [own] if own in self.texts else []
        return self._of_baseline.get(key[:3], [])

    def beside(self, judge: Judge, key: RowKey) -> list[Score]:
        """The judge's scores of the baseline's answers by themselves."""
        return [score for other in self.baseline_keys(key) for score in self.by_answer.get((judge, other), ())]

    def why_not(self, score: Score) -> Why:
        """Why a score is of no answer here; "" for one that is."""
        key = answer_of(score)
        if score.baseline not in ("", self.baseline) or score.label not in self.labels:
            return "elsewhere"
        others = self.baseline_keys(key) if score.baseline else []
        if key not in self.texts or (score.baseline and not others):
            return "gone"
        same = not score.baseline or any(self._is(other, score.baseline_sha256) for other in others)
        return "" if same and self._is(key, score.answer_sha256) else "changed"

    def length(self, key: RowKey, sha256: str) -> int | None:
        """In characters; None where the text that was judged is unknown."""
        return self.texts[key].characters if sha256 and key in self.texts else None

    def _is(self, key: RowKey, sha256: str) -> bool:
        return sha256 in ("", self.texts[key].sha256)

    @cached_property
    def _sessions(self) -> dict[str, frozenset[int]]:
        return sets((key.label, key.session) for key in self.texts)

    @cached_property
    def _of_baseline(self) -> dict[tuple[object, ...], list[RowKey]]:
        """By suite, prompt and turn."""
        found: dict[tuple[object, ...], list[RowKey]] = {}
        for key in self.texts:
            if key.label == self.baseline:
                found.setdefault(key[:3], []).append(key)
        return found


def judge_of(score: Score) -> Judge:
    return Judge(score.judge, score.model, score.protocol)


def answer_of(score: Score) -> RowKey:
    return RowKey(score.suite, score.prompt_id, score.turn, score.label, score.repeat, score.session)


def alone(scores: Iterable[Score]) -> ScoredAnswers:
    """Scores without the answers that they are of, of which no lengths are known.

    Raises UserError for scores of two texts of one answer, or against two baselines, and for single answers alone,
    which name no baseline.
    """
    scores, texts = list(scores), dict[RowKey, Text]()
    for score in scores:
        key = answer_of(score)
        for each, sha256 in ((key, score.answer_sha256), (key._replace(label=score.baseline), score.baseline_sha256)):
            if each.label and texts.setdefault(each, Text(sha256, None)).sha256 != sha256:
                raise UserError(
                    f"the scores are of two texts of {each.label} on {each.suite}/{each.prompt_id}, so they are of two "
                    "runs: name the results files that they are of."
                )
    baselines = dict.fromkeys(score.baseline for score in scores if score.baseline)
    if len(baselines) != 1:
        names = " and ".join(baselines) or "none"
        raise UserError(f"the scores name as their baselines: {names}. Name the results files that they are of.")
    found = ScoredAnswers(0, next(iter(baselines)), texts)
    for score in scores:
        found.by_answer.setdefault((judge_of(score), answer_of(score)), []).append(score)
    return found


def take(number: int, file: RunFile, scores: Iterable[Score], left_out: LeftOut) -> ScoredAnswers:
    """The answers of a file and the scores that are of them; the others are counted in `left_out`."""
    found = _answers(number, file)
    for score in scores:
        if why := found.why_not(score):
            left_out.count(why)
        else:
            found.by_answer.setdefault((judge_of(score), answer_of(score)), []).append(score)
    return found


def share_out(files: Sequence[RunFile], scores: Sequence[Score]) -> list[list[Score]]:
    """For each file those of `scores` that are of its answers. One that is of none is given to the file that it misses
    by least, and to no other, so that it is told of once."""
    shared: list[list[Score]] = [[] for _ in files]
    answers = [_answers(number, file) for number, file in enumerate(files)] if scores else []
    for score in scores:
        why = [one.why_not(score) for one in answers]
        nearest = why.index(min(why, key=_NEAREST.index))
        for number, reason in enumerate(why):
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
    found: dict[_Key, set[_Value]] = {}
    for key, value in pairs:
        found.setdefault(key, set()).add(value)
    return {key: frozenset(values) for key, values in found.items()}
