"""Published files as one run: a label for each method, a session for each file."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from benchctl.errors import InvalidData, UserError
from benchctl.importing import Format
from benchctl.importing.published_answers import FAILED, Answer, answers_of, format_of
from benchctl.importing.published_judgements import Reply, replies_of, scores_of
from benchctl.importing.published_lines import AnswerLine, Line, read_lines
from benchctl.records.schema import UNKNOWN_TARGET, MethodInfo, ModelInfo, Row, Run, SuiteInfo, Totals
from benchctl.records.scores import Score

MT_BENCH = frozenset(map(str, range(81, 161)))  # its question ids
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
class _Contents:
    """The contents of all files: answers by label, and judgements."""

    answers: dict[str, list[_Given]] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)
    formats: dict[Format, None] = field(default_factory=dict)
    answered: set[tuple[int, str, str]] = field(default_factory=set)  # file, label and prompt
    latest_s: float = 0.0

    @property
    def judged(self) -> dict[str, dict[tuple[str, int], None]]:
        """The prompts and turns that were judged, by model."""
        judged: dict[str, dict[tuple[str, int], None]] = {}
        for reply in self.replies:
            for model in filter(None, (reply.model, reply.other)):
                judged.setdefault(model, {}).setdefault((reply.prompt_id, reply.turn))
        return judged

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
    contents = _Contents()
    for number, source in enumerate(sources):
        for line in read_lines(source.path):
            _take(contents, number, source, line, terms.format)
    labels = list(contents.answers) or list(contents.judged)
    if not labels:
        raise InvalidData(
            "no_answers",
            f"{', '.join(str(source.path) for source in sources)}: no answers in it. Give a file of answers.",
        )
    _check_copies(contents, sources)
    baseline = terms.baseline or labels[0]
    if baseline not in labels:
        raise UserError("unknown_baseline", f"no answers of {baseline}. There are answers of: {' '.join(labels)}.")
    labels.sort(key=lambda label: label != baseline)
    run = _run(contents, sources, labels, terms, name, command)
    rows, lost = list(_rows(contents, run)), Counter[str]()
    scores = tuple(scores_of(contents.replies, rows, baseline, lost))
    return Imported(run, tuple(row for _, row in rows), scores, tuple(_notices(contents, lost)))


def _take(contents: _Contents, number: int, source: Source, line: Line, format: Format | None) -> None:
    content = line.content
    contents.latest_s = max(contents.latest_s, content.tstamp)
    if not isinstance(content, AnswerLine):
        if format not in (None, "fastchat"):
            line.refuse(f"is a judgement, which no file of {format} has")
        if source.label:
            raise UserError(
                "labelled_judgements", f"{source.path}: judgements name their models: give no label for it."
            )
        contents.formats.setdefault("fastchat")
        contents.replies += replies_of(line, content)
        return
    used = format or format_of(line, content)
    contents.formats.setdefault(used)
    model = str(content.model_id)
    label, question = source.label or model, str(content.question_id)
    if (number, label, question) in contents.answered:
        line.refuse(f"a second answer of {label} to question {question}")
    contents.answered.add((number, label, question))
    answers = (_Given(number, model, answer) for answer in answers_of(line, content, used))
    contents.answers.setdefault(label, []).extend(answers)


def _rows(contents: _Contents, run: Run) -> Iterator[tuple[str, Row]]:
    """Answers in the order of labels and files, each with its model_id; of what was judged but is not there, rows
    without a text."""
    order, judged = count(), {} if contents.answers else contents.judged
    for method in run.methods:
        label = method.label
        alone = [_Given(0, label, Answer(prompt, turn, 0, "")) for prompt, turn in judged.get(label, ())]
        for session, model, answer in contents.answers.get(label, alone):
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
    contents: _Contents,
    sources: Sequence[Source],
    labels: Sequence[str],
    terms: Terms,
    name: str,
    command: tuple[str, ...],
) -> Run:
    judges = {reply.judge for reply in contents.replies}
    sizes = dict.fromkeys(("layers", "hidden_size", "parameters", "vocabulary", "context_tokens"), 0)
    target = terms.target or UNKNOWN_TARGET + ", ".join(sorted(contents.models(labels[0])))
    return Run(
        name=name,
        created=datetime.fromtimestamp(contents.latest_s, UTC).isoformat(timespec="seconds"),
        command=command,
        baseline=labels[0],
        target=ModelInfo(
            name=target, family="", **sizes, weights_sha256="", tokenizer_sha256="", chat_template_sha256=""
        ),
        draft=None,
        suites=(_suite(contents, sources, terms.suite),),
        methods=tuple(
            MethodInfo(label=label, name=label, options={}, exactness="lossy", reason=_CLAIM) for label in labels
        ),
        dtype="",
        device="",
        executor="",
        attention="",
        threads=0,
        temperature=_temperature(dict.fromkeys(chain.from_iterable(map(contents.models, labels)))),
        top_p=1.0,
        top_k=0,
        seed=0,
        max_new_tokens=0,
        repeats=1 + max((given.answer.choice for given in contents.given()), default=0),
        imported="+".join(contents.formats),
        order="one after another",
        machine={},
        versions={"judge": "+".join(sorted(judges))} if judges else {},
        commit="",
    )


def _suite(contents: _Contents, sources: Sequence[Source], name: str) -> SuiteInfo:
    """The hash is of the questions' ids, since the files do not contain the questions."""
    asked = [given.answer.prompt_id for given in contents.given()] or [reply.prompt_id for reply in contents.replies]
    questions = sorted(set(asked))
    usual = (
        "mt-bench" if MT_BENCH.issuperset(questions) else "spec-bench" if "spec-bench" in contents.formats else "other"
    )
    return SuiteInfo(
        name=name or usual,
        source="file",
        origin=", ".join(source.path.name for source in sources),
        sha256=hashlib.sha256("\n".join(questions).encode()).hexdigest(),
        prompts=len(questions),
    )


def _temperature(models: Iterable[str]) -> float:
    """The temperature in the model_ids, as in vicuna-7b-temperature-0.7; 0 where none has one.

    Raises UserError for two temperatures, since a run has one.
    """
    models_of: dict[float, str] = {}
    for model in models:
        if match := re.search(r"temperature-(\d+(?:\.\d+)?)", model):
            models_of.setdefault(float(match[1]), model)
    if len(models_of) > 1:
        names = ", ".join(models_of.values())
        raise UserError("several_temperatures", f"answers of different temperatures: {names}. Import them separately.")
    return next(iter(models_of), 0.0)


def _check_paths(sources: Sequence[Source]) -> None:
    """Refuse a file that is named twice: it would count as two sessions that agree, and narrow every interval."""
    seen: dict[Path, Path] = {}
    for source in sources:
        path = source.path.resolve()
        if path in seen:
            raise UserError("file_twice", f"{source.path}: is the same file as {seen[path]}. Name it once.")
        seen[path] = source.path


def _check_copies(contents: _Contents, sources: Sequence[Source]) -> None:
    """Refuse a copy of a file: no two processes take the same times to the last digit."""
    for label, answers in contents.answers.items():
        of_file: dict[int, set[Answer]] = {}
        for file, _, answer in answers:
            of_file.setdefault(file, set()).add(replace(answer, text=""))
        first: dict[frozenset[Answer], int] = {}
        for file, own in of_file.items():
            earlier = first.setdefault(frozenset(own), file)
            if earlier != file and any(answer.wall_s for answer in own):
                raise UserError(
                    "file_twice",
                    f"{sources[file].path}: has the times of {sources[earlier].path}, answer by answer, so it is a "
                    f"copy of its answers of {label}. Name only one of the two.",
                )


def _notices(contents: _Contents, lost: Counter[str]) -> Iterator[str]:
    answers = [given.answer for given in contents.given()]
    failed = sum(answer.failed for answer in answers)
    if failed:
        yield f"{failed} turns are marked {FAILED}: their numbers are those of an earlier turn and are left out."
    unknown = sum(answer.steps is None and answer.new_tokens is not None for answer in answers)
    if unknown:
        yield f"{unknown} turns have steps that fit no reading of their accept lengths: their steps are left out."
    for why, judgements in sorted(lost.items()):
        yield f"{judgements} judgements are {why} and are left out."
    unreadable = sum(reply.points is None for reply in contents.replies)
    if unreadable:
        yield f"{unreadable} judgements could not be read by their judge's script: counted, not scored."
