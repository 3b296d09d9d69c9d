"""Published judgements of FastChat (lm-sys/FastChat, fastchat/llm_judge) as scores, with the replies they rest on.

A judgement of one answer (model, turn, score, judgment) becomes a single score; one of two (model_1, model_2,
g1_winner, g2_winner, their judgments) a preference for each order: model_1's answer stands first in g1, the other's in
g2.
FastChat keeps no points of a pair, whatever its prompt asked for: so 1.0 and 0.0 say who was preferred, and 0.5 a tie.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from benchctl.importing.published_lines import Line, OneJudged, TwoJudged
from benchctl.records.schema import Row
from benchctl.records.scores import Order, Score, text_sha256

_JUDGE: Final = "fastchat"
_Key = tuple[str, str, int]  # model, prompt and turn
_UNREADABLE: Final = -1  # FastChat's score where the judge's reply held none
_POINTS: Final[Mapping[str, float]] = {"model_1": 1.0, "tie": 0.5, "model_2": 0.0}  # for model_1; "error" has none


@dataclass(frozen=True)
class Reply:
    """A judgement of `model`'s answer to one turn, alone ("" for `other`) or compared with `other`'s.

    `points` are the answer's score, or 1, 0.5 or 0 in a comparison; None where nothing could be read. `first` stood
    first. `prompt` is what the judge was shown, with the answers in it ("" where the file lacks it).
    """

    model: str
    other: str
    first: str
    prompt_id: str
    turn: int
    judge: str
    template: str
    points: float | None
    prompt: str
    text: str
    judged_at: str

    def of_other(self) -> "Reply":
        """The same judgement as one of the other answer."""
        points = None if self.points is None else 1 - self.points
        return replace(self, model=self.other, other=self.model, points=points)

    def shows(self, answer: str) -> bool:
        """Whether it can be about that answer."""
        return not self.prompt or not answer or answer.strip() in self.prompt


def replies_of(line: Line, content: OneJudged | TwoJudged) -> Iterator[Reply]:
    """The judgements in a line. Raises InvalidData for what is none of FastChat's."""
    judge, template = ([content.judge, ""] if isinstance(content.judge, str) else [*content.judge, "", ""])[:2]
    usual = Reply(
        model=str(content.model if isinstance(content, OneJudged) else content.model_1),
        other="",
        first="",
        prompt_id=str(content.question_id),
        turn=content.turn - 1,
        judge=judge,
        template=template,
        points=None,
        prompt="",
        text="",
        judged_at=datetime.fromtimestamp(content.tstamp, UTC).isoformat(timespec="seconds"),
    )
    if isinstance(content, OneJudged):
        if content.score != _UNREADABLE and content.score < 1:
            line.refuse(f"score is {content.score:g}, but should be from 1 to 10, or -1")
        points = None if content.score == _UNREADABLE else content.score
        yield replace(usual, points=points, prompt=content.user_prompt, text=content.judgment)
        return
    usual = replace(usual, other=str(content.model_2))
    if usual.model == usual.other:
        line.refuse(f"model_1 and model_2 are both '{usual.model}'")
    games = (
        (usual.model, content.g1_winner, content.g1_user_prompt, content.g1_judgment),
        (usual.other, content.g2_winner, content.g2_user_prompt, content.g2_judgment),
    )
    for first, winner, prompt, text in games:
        if winner:
            yield replace(usual, first=first, points=_POINTS.get(winner), prompt=prompt, text=text)


def scores_of(
    replies: Iterable[Reply], rows: Iterable[tuple[str, Row]], baseline: str, lost: Counter[str]
) -> Iterator[Score]:
    """The scores of the answers in `rows`, each with its model_id; of two answers one must be the
    baseline's. Judgements that are of no answer here are counted in `lost`, by why. FastChat judges the first of
    several answers."""
    rows_of: dict[_Key, list[Row]] = {}
    for model, row in rows:
        if row.repeat == 0 and row.error is None:
            rows_of.setdefault((model, row.prompt_id, row.turn), []).append(row)
    samples: Counter[tuple[object, ...]] = Counter()
    for reply in replies:
        for turned, row, other in _judged_rows(reply, rows_of, baseline, lost):
            score = _score(turned, row, other)
            key = (score.label, score.session, score.prompt_id, score.turn, score.model, score.template, score.order)
            yield replace(score, sample=samples[key])
            samples[key] += 1


def _judged_rows(
    reply: Reply, rows_of: Mapping[_Key, list[Row]], baseline: str, lost: Counter[str]
) -> list[tuple[Reply, Row, Row | None]]:
    """The rows that a reply is of, each with the baseline's where it judged two, and the reply as seen from there."""
    own, others = (rows_of.get((model, reply.prompt_id, reply.turn), []) for model in (reply.model, reply.other))
    if not own or (reply.other and not others):
        lost["of models without answers here"] += 1
        return []
    if reply.other and all(row.label != baseline for row in others):
        reply, own, others = reply.of_other(), others, own
    methods = [row for row in own if not (reply.other and row.label == baseline)]
    other = next((row for row in others if row.label == baseline), None) if reply.other else None
    if not methods or (reply.other and other is None):
        lost["of two answers, neither or both of them the baseline's,"] += 1
        return []
    texts = [other.text] if other else []
    shown = [(reply, row, other) for row in methods if all(map(reply.shows, [row.text, *texts]))]
    lost.update({"of other texts than the answers here": 1} if not shown else {})
    return shown


def _score(reply: Reply, row: Row, baseline: Row | None) -> Score:
    """A reply as the score of the answer in `row`, compared with that in `baseline` where it judged two."""
    texts = [row.text, *([baseline.text] if baseline else [])]
    hashes = [text_sha256(text) if all(texts) else "" for text in texts]
    identical = baseline is not None and all(texts) and row.text == baseline.text
    points = None if identical else reply.points
    order: Order = "baseline_first" if reply.first == reply.other else "baseline_second"
    return Score(
        suite=row.suite,
        prompt_id=row.prompt_id,
        turn=row.turn,
        label=row.label,
        repeat=row.repeat,
        session=row.session,
        baseline=baseline.label if baseline else "",
        judge=_JUDGE,
        model=reply.judge,
        protocol="preference" if baseline else "single",
        template=reply.template,
        order=order if baseline and not identical else "",
        score=points,
        baseline_score=None if points is None or baseline is None else 1 - points,
        identical=identical,
        unreadable="" if identical or points is not None else "its judge's script found no verdict in the reply",
        tries=1,
        reply=reply.text,
        answer_sha256=hashes[0],
        baseline_sha256=hashes[1] if baseline else "",
        judged_at=reply.judged_at,
    )
