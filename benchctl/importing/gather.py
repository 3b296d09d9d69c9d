"""Published files as one run: a label for each method, a session for each file."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from benchctl.errors import InvalidData, UserError
from benchctl.importing.answers import FAILED, Answer, Format, answers_of, format_of, is_judgement
from benchctl.importing.judgements import ByModel, Lost, Reply, replies_of, scores_of
from benchctl.importing.lines import Line, read_lines
from benchctl.records.schema import UNKNOWN_TARGET, MethodInfo, ModelInfo, Row, Run, SuiteInfo, Totals
from benchctl.records.scores import Score

MT_BENCH = frozenset(map(str, range(81, 161)))  # its question ids
_Numbers = tuple[str, int, int, int | None, int | None, float | None]  # all that tells one answer from another
_CLAIM = "an imported file claims nothing that could be held against its answers"


@dataclass(frozen=True)
class Source:
    """A file to import; without a `label` its answers are labelled by their model_id."""

    path: Path
    label: str = ""


@dataclass(frozen=True)
class Terms:
    """How to read files and what to call what they hold. `format` None is told from each line; without a `suite` it is
    named after the questions, without a `baseline` that is the first label, without a `target` it is unknown, and said
    to be that of the baseline's model_ids."""

    format: Format | None = None
    suite: str = ""
    baseline: str = ""
    target: str = ""


@dataclass(frozen=True)
class Imported:
    """A run made of published files, the scores of its answers, and what could not be used of them, for the user."""

    run: Run
    rows: tuple[Row, ...]
    scores: tuple[Score, ...]
    notices: tuple[str, ...]


class _Given(NamedTuple):
    """An answer, the number of its file and the model_id it has there: that of a judgement, whatever its label."""

    file: int
    model: str
    answer: Answer


@dataclass
class _Found:
    """What the files hold: answers by label, and judgements."""

    answers: dict[str, list[_Given]] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)
    formats: dict[Format, None] = field(default_factory=dict)
    answered: set[tuple[int, str, str]] = field(default_factory=set)  # file, label and prompt
    latest_s: float = 0.0

    @property
    def questions(self) -> dict[str, None]:
        """Their ids, in order."""
        answered = (given.answer.prompt_id for given in self.given())
        return dict.fromkeys(answered if self.answers else (reply.prompt_id for reply in self.replies))

    @property
    def judged(self) -> dict[str, dict[tuple[str, int], None]]:
        """The prompts and turns that were judged, by model."""
        found: dict[str, dict[tuple[str, int], None]] = {}
        for reply in self.replies:
            for model in filter(None, (reply.model, reply.other)):
                found.setdefault(model, {}).setdefault((reply.prompt_id, reply.turn))
        return found

    def given(self) -> Iterator[_Given]:
        return chain.from_iterable(self.answers.values())

    def models(self, label: str) -> list[str]:
        """The model_ids of a label's answers, or, where there are judgements alone, the model itself."""
        return list(dict.fromkeys(given.model for given in self.answers.get(label, ()))) or [label]


def gather(sources: Sequence[Source], terms: Terms, *, name: str, command: tuple[str, ...] = ()) -> Imported:
    """The answers of all files, and the scores of judgements among them.

    Raises UserError for files that cannot be read, are copies of each other or were sampled at other temperatures, and
    for a baseline that is not among them; InvalidData, with file and line, for lines that are not of the format, or
    that answer a question twice, and for files that hold no answers.
    """
    _check_paths(sources)
    found = _Found()
    for number, source in enumerate(sources):
        for line in read_lines(source.path):
            _take(found, number, source, line, terms.format)
    labels = list(found.answers) or list(found.judged)
    if not labels:
        raise InvalidData(
            f"{', '.join(str(source.path) for source in sources)}: no answers in it. Give a file of answers."
        )
    _check_copies(found, sources)
    baseline = terms.baseline or labels[0]
    if baseline not in labels:
        raise UserError(f"no answers of {baseline}. There are those of: {' '.join(labels)}.")
    labels.sort(key=lambda label: label != baseline)
    run = _run(found, sources, labels, terms, name, command)
    rows, lost = list(_rows(found, run)), Lost()
    scores = tuple(scores_of(found.replies, ByModel(rows), baseline, lost))
    return Imported(run, tuple(row for _, row in rows), scores, tuple(_notices(found, lost)))


def _take(found: _Found, number: int, source: Source, line: Line, format: Format | None) -> None:
    used = format or format_of(line)
    found.formats.setdefault(used)
    found.latest_s = max(found.latest_s, line.instant_s("tstamp") if "tstamp" in line else 0.0)
    if used == "fastchat" and is_judgement(line):
        if source.label:
            raise UserError(f"{source.path}: judgements name their models themselves; give the file without a label.")
        found.replies += replies_of(line)
        return
    model = line.identifier("model_id")
    label = source.label or model
    answers = [_Given(number, model, answer) for answer in answers_of(line, used)]
    answered = (number, label, line.identifier("question_id"))
    if answered in found.answered:
        line.refuse(f"a second answer of {label} to question {answered[-1]}")
    found.answered.add(answered)
    found.answers.setdefault(label, []).extend(answers)


def _rows(found: _Found, run: Run) -> Iterator[tuple[str, Row]]:
    """Answers in the order of labels and files, each with its model_id; of what was judged but is not there, rows
    without a text."""
    order, judged = count(), {} if found.answers else found.judged
    for method in run.methods:
        label = method.label
        alone = [_Given(0, label, Answer(prompt, turn, 0, "")) for prompt, turn in judged.get(label, ())]
        for session, model, answer in found.answers.get(label, alone):
            yield model, _row(run, label, session, next(order), answer)


def _row(run: Run, label: str, session: int, order: int, answer: Answer) -> Row:
    row = Row(
        suite=run.suites[0].name,
        prompt_id=answer.prompt_id,
        turn=answer.turn,
        label=label,
        repeat=answer.choice,
        session=session,
        order=order,
        prompt_tokens=0,
        error="the program that wrote this file failed on this turn",
    )
    if answer.failed:
        return row
    totals = Totals(new_tokens=answer.new_tokens, steps=answer.steps, wall_s=answer.wall_s)
    return replace(row, error=None, text=answer.text, totals=totals)


def _run(
    found: _Found, sources: Sequence[Source], labels: Sequence[str], terms: Terms, name: str, command: tuple[str, ...]
) -> Run:
    judges = {reply.judge for reply in found.replies}
    return Run(
        name=name,
        created=datetime.fromtimestamp(found.latest_s, UTC).isoformat(timespec="seconds"),
        command=command,
        baseline=labels[0],
        target=_target(terms.target or UNKNOWN_TARGET + ", ".join(sorted(found.models(labels[0])))),
        draft=None,
        suites=(_suite(found, sources, terms.suite),),
        methods=tuple(
            MethodInfo(label=label, name=label, options={}, exactness="lossy", reason=_CLAIM) for label in labels
        ),
        dtype="",
        device="",
        executor="",
        attention="",
        threads=0,
        temperature=_temperature(dict.fromkeys(chain.from_iterable(map(found.models, labels)))),
        top_p=1.0,
        top_k=0,
        seed=0,
        max_new_tokens=0,
        repeats=1 + max((given.answer.choice for given in found.given()), default=0),
        imported="+".join(found.formats),
        order="one after another",
        machine={},
        versions={"judge": "+".join(sorted(judges))} if judges else {},
        commit="",
    )


def _target(name: str) -> ModelInfo:
    return ModelInfo(
        name=name,
        family="",
        layers=0,
        hidden_size=0,
        parameters=0,
        vocabulary=0,
        context_tokens=0,
        weights_sha256="",
        tokenizer_sha256="",
        chat_template_sha256="",
    )


def _suite(found: _Found, sources: Sequence[Source], name: str) -> SuiteInfo:
    """The questions' ids stand for the questions, which the files do not hold."""
    questions = sorted(found.questions)
    told = "mt-bench" if MT_BENCH.issuperset(questions) else "spec-bench" if "spec-bench" in found.formats else "other"
    return SuiteInfo(
        name=name or told,
        source="file",
        origin=", ".join(source.path.name for source in sources),
        sha256=hashlib.sha256("\n".join(questions).encode()).hexdigest(),
        prompts=len(questions),
    )


def _temperature(models: Iterable[str]) -> float:
    """As these programs write it into a model_id: vicuna-7b-temperature-0.7. Where none tells it, they were greedy.

    Raises UserError for models of two temperatures, for a run has one.
    """
    told: dict[float, str] = {}
    for model in models:
        if found := re.search(r"temperature-(\d+(?:\.\d+)?)", model):
            told.setdefault(float(found[1]), model)
    if len(told) > 1:
        raise UserError(f"answers of different temperatures: {', '.join(told.values())}. Import them apart.")
    return next(iter(told), 0.0)


def _check_paths(sources: Sequence[Source]) -> None:
    """A file that is read twice would count as two sessions that agree, and narrow every interval."""
    seen: dict[Path, Path] = {}
    for source in sources:
        place = source.path.resolve()
        if place in seen:
            raise UserError(f"{source.path}: is the same file as {seen[place]}. Name it once.")
        seen[place] = source.path


def _check_copies(found: _Found, sources: Sequence[Source]) -> None:
    """So would a copy of it: no two processes take the same times to the last digit."""
    for label, answers in found.answers.items():
        numbers: dict[int, list[_Numbers]] = {}
        for file, _, answer in answers:
            told = (answer.prompt_id, answer.turn, answer.choice, answer.new_tokens, answer.steps, answer.wall_s)
            numbers.setdefault(file, []).append(told)
        first: dict[frozenset[_Numbers], int] = {}
        for file, all_told in numbers.items():
            earlier = first.setdefault(frozenset(all_told), file)
            if earlier != file and any(told[-1] for told in all_told):
                raise UserError(
                    f"{sources[file].path}: has the times of {sources[earlier].path}, answer by answer, so it is a "
                    f"copy of its answers of {label}. Name only one of the two."
                )


def _notices(found: _Found, lost: Lost) -> Iterator[str]:
    answers = [given.answer for given in found.given()]
    failed = sum(answer.failed for answer in answers)
    if failed:
        yield f"{failed} turns are marked {FAILED}: their numbers are those of an earlier turn and are left out."
    unknown = sum(answer.steps is None and answer.new_tokens is not None for answer in answers)
    if unknown:
        yield f"{unknown} turns have steps that fit no reading of their accept lengths: their steps are left out."
    if lost.strange:
        yield f"{lost.strange} judgements are of models without answers here and are left out."
    if lost.apart:
        yield f"{lost.apart} judgements are of two answers, neither or both of them the baseline's, and are left out."
    if lost.changed:
        yield f"{lost.changed} judgements were shown other texts than the answers here and are left out."
    unreadable = sum(reply.points is None for reply in found.replies)
    if unreadable:
        yield f"{unreadable} judgements could not be read by their judge's script: counted, not scored."
