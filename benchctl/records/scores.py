"""What judging writes and analysis reads: next to a results file, a JSONL file with a Score per judgement.

Each line says all that it rests on, so that it can be read alone; a file may hold those of several judges.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from benchctl.errors import InvalidData
from benchctl.records.labels import current_label
from benchctl.records.reader import valid, whole_lines
from benchctl.records.schema import Amount, Count, not_finite, to_line
from benchctl.records.writer import LineFile

SCORES_VERSION: Final = 1
SUFFIX: Final = ".scores.jsonl"

Protocol = Literal["pairwise", "preference", "single", "likelihood", "exact"]
Order = Literal["baseline_first", "baseline_second", ""]
Sha256 = Annotated[str, Meta(pattern="^([0-9a-f]{64})?(?!\n)$")]  # or ""; in Python "$" also matches before a newline

_SINGLE = "single"
_SCALE = (1.0, 10.0)  # of scores that a judge was asked for
_PAIRED = ("pairwise", "preference")  # in both orders
_UNSCALED = ("preference", "likelihood", "exact")


@dataclass(frozen=True, kw_only=True)
class Score:
    """One judgement of an answer; docs/file-format.md explains each field. Higher scores are better.

    The answer is that of the free row of the same suite, prompt, turn, label, repeat and session in the results file
    next to it; `baseline` is the label of the answer it was compared with. A score is of no other texts than those of
    `answer_sha256` and `baseline_sha256`.

    `pairwise` has both scores, from 1 to 10, for each `order` of the two answers; `preference`, of imported files
    alone, has 1.0 and 0.0, or 0.5 each for a tie; `single` has `score` alone, from 1 to 10, and no baseline;
    `likelihood` has both, in mean log-likelihood per token; `exact` has both, 1.0 or 0.0. Of two `identical` texts no
    judge was asked. Where no reply could be read `unreadable` says why, and there are no scores.
    """

    kind: Literal["score"] = "score"
    schema_version: Literal[1] = SCORES_VERSION
    suite: str
    prompt_id: str
    turn: Count
    label: str
    repeat: int
    session: Count
    baseline: str
    judge: str
    model: str
    protocol: Protocol
    template: str
    order: Order
    sample: Count = 0
    score: float | None
    baseline_score: float | None
    identical: bool = False
    unreadable: str = ""
    tries: Count = 0
    reply: str = ""
    answer_sha256: Sha256
    baseline_sha256: Sha256
    prompt_tokens: Count = 0
    reply_tokens: Count = 0
    cost_usd: Amount | None = None
    cached: bool = False
    judged_at: str

    def __post_init__(self) -> None:
        numbers = (self.score, self.baseline_score, self.cost_usd)
        if problem := not_finite(numbers) or _context_problem(self) or _scores_problem(self):
            raise ValueError(problem)


def _context_problem(score: Score) -> str:
    single = score.protocol == _SINGLE
    if single == bool(score.baseline) or bool(score.baseline_sha256) != (not single and score.answer_sha256 != ""):
        return "every protocol but single names a baseline and its answer"
    if bool(score.order) != (score.protocol in _PAIRED and not score.identical):
        return "an order is that of two answers shown to a judge"
    if score.identical != (not single and score.answer_sha256 == score.baseline_sha256 != ""):
        return "identical is what two equal texts are, and no others"
    return "the baseline is not judged against itself" if score.label == score.baseline else ""


def _scores_problem(score: Score) -> str:
    scores = [score.score] if score.protocol == _SINGLE else [score.score, score.baseline_score]
    if score.protocol == _SINGLE and score.baseline_score is not None:
        return "single has no baseline_score"
    if score.unreadable or (score.identical and score.protocol in _PAIRED):
        return "" if scores == [None] * len(scores) else "nothing was read, so there can be no scores"
    known = [value for value in scores if value is not None]
    if len(known) < len(scores):
        return "a judgement that could be read has all its scores"
    if score.identical and score.score != score.baseline_score:
        return "identical answers have the same score"
    if score.protocol not in _UNSCALED and not all(_SCALE[0] <= value <= _SCALE[1] for value in known):
        return "a judge scores from 1 to 10"
    if score.protocol == "preference" and known not in ([1.0, 0.0], [0.5, 0.5], [0.0, 1.0]):
        return "a preference is 1.0 and 0.0, or 0.5 each"
    return "exact is 1.0 or 0.0" if score.protocol == "exact" and not set(known) <= {0.0, 1.0} else ""


_KEY = (
    *("suite", "prompt_id", "turn", "label", "repeat", "session", "baseline", "judge", "model", "protocol", "template"),
    *("order", "sample", "answer_sha256", "baseline_sha256"),
)


def score_key(score: Score) -> tuple[object, ...]:
    """What names a judgement. No two lines of a file share it, but that one that could not be read may be asked for
    again: the later line then takes the place of the earlier one."""
    return tuple(getattr(score, name) for name in _KEY)


def text_sha256(text: str) -> str:
    """How scores name an answer's text. Half a surrogate pair, which has no place in UTF-8, is three bytes of it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def once(scores: Iterable[Score]) -> tuple[Score, ...]:
    """Each judgement once, though several files hold it: the last that could be read, or the last."""
    by_key: dict[object, Score] = {}
    for score in scores:
        key = score_key(score)
        if key not in by_key or by_key[key].unreadable or not score.unreadable:
            by_key[key] = score
    return tuple(by_key.values())


@dataclass(frozen=True)
class ScoreFile:
    """A scores file as read. `whole_bytes` is its length up to the last whole line; `notices` are for the user."""

    path: Path
    scores: Sequence[Score] = ()
    notices: tuple[str, ...] = ()
    whole_bytes: int = 0


def scores_path(results: Path | str) -> Path:
    """Where the scores of a results file are: `first.scores.jsonl` next to `first.jsonl`."""
    results = Path(results)
    return results.with_name(results.name.removesuffix(".jsonl") + SUFFIX)


def is_scores(path: Path | str) -> bool:
    """Whether a file is named like one of scores."""
    return Path(path).name.endswith(SUFFIX)


def read_scores(path: Path | str) -> ScoreFile:
    """The scores of a file; a torn last line, as a kill leaves it, is dropped with a notice. A file may be empty. Of an
    unreadable one that was asked for again the last line counts.

    Raises UserError for a file that cannot be read, and InvalidData, with file and line, for a line that is no score,
    is of a newer version, cannot be true (see Score) or is there twice though it could be read.
    """
    path = Path(path)
    lines, notices = whole_lines(path)
    by_key: dict[object, Score] = {}
    lines_of: dict[object, int] = {}
    for number, line in enumerate(lines, 1):
        score = _with_current_labels(valid(Score, path, number, line, SCORES_VERSION))
        key = score_key(score)
        if (earlier := by_key.pop(key, None)) and not earlier.unreadable:
            raise InvalidData(
                "line_twice",
                f"{path}:{number}: the same judgement as line {lines_of[key]}. Remove one of the two lines.",
            )
        by_key[key], lines_of[key] = score, number
    return ScoreFile(path, tuple(by_key.values()), notices, sum(map(len, lines)))


def _with_current_labels(score: Score) -> Score:
    label, baseline = current_label(score.label), current_label(score.baseline)
    is_current = (label, baseline) == (score.label, score.baseline)
    return score if is_current else replace(score, label=label, baseline=baseline)


class ScoreWriter(LineFile):
    """Appends scores to the file next to a results file, and keeps it locked while it is entered.

    An existing file is continued: a torn last line is cut off, with a notice, and `stored` contains the scores so far.
    Entering raises UserError if the file is being written or cannot be, and what `read_scores` raises.
    """

    def __init__(self, path: Path | str, *, notify: Callable[[str], None] = lambda notice: None) -> None:
        instead = "Judge results in a folder that may be written."
        full = "Judgements so far are kept; make room and judge again."
        super().__init__(Path(path), writer="`benchctl judge`", instead=instead, full=full)
        self.stored = ScoreFile(self.path)
        self._notify = notify

    def begin(self) -> None:
        """Read what is judged already."""
        self.stored = read_scores(self.path)
        for notice in self.stored.notices:
            self._notify(notice)
        self.cut(self.stored.whole_bytes)

    def append(self, *scores: Score) -> None:
        """Hand scores to the system at once. Raises as `append_lines` does."""
        self.append_lines(b"".join(map(to_line, scores)))
