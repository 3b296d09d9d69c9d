"""Published files as one run: a label for each method, a session for each file."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from benchctl.errors import InvalidData, UserError
from benchctl.importing.answers import (
    FAILED,
    Answer,
    Format,
    Judgement,
    answers_of,
    format_of,
    is_judgement,
    judgement_of,
)
from benchctl.importing.lines import Line, read_lines
from benchctl.records import UNKNOWN_TARGET, MethodInfo, ModelInfo, Row, Run, SuiteInfo, Totals

MT_BENCH = frozenset(map(str, range(81, 161)))  # its question ids
_Key = tuple[str, str, int]  # model, prompt and turn
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
    """A run made of published files, and what could not be used of them, for the user."""

    run: Run
    rows: tuple[Row, ...]
    notices: tuple[str, ...]


class _Given(NamedTuple):
    """An answer, the number of its file and the model_id it has there: that of a judgement, whatever its label."""

    file: int
    model: str
    answer: Answer


@dataclass
class _Found:
    """What the files hold: answers by label, and judgements by what they are of."""

    answers: dict[str, list[_Given]] = field(default_factory=dict)
    judgements: dict[_Key, list[Judgement]] = field(default_factory=dict)
    formats: dict[Format, None] = field(default_factory=dict)
    answered: set[tuple[int, str, str]] = field(default_factory=set)  # file, label and prompt
    latest_s: float = 0.0

    @property
    def questions(self) -> dict[str, None]:
        """Their ids, in order."""
        answered = (given.answer.prompt_id for given in self.given())
        return dict.fromkeys(answered if self.answers else (prompt for _, prompt, _ in self.judgements))

    def given(self) -> Iterator[_Given]:
        return chain.from_iterable(self.answers.values())

    def models(self, label: str) -> list[str]:
        """The model_ids of a label's answers, or, where there are judgements alone, the model itself."""
        return list(dict.fromkeys(given.model for given in self.answers.get(label, ()))) or [label]


def gather(sources: Sequence[Source], terms: Terms, *, name: str, command: tuple[str, ...] = ()) -> Imported:
    """The answers of all files, with the scores of judgements among them.

    Raises UserError for files that cannot be read, are copies of each other or were sampled at other temperatures, and
    for a baseline that is not among them; InvalidData, with file and line, for lines that are not of the format, or
    that answer a question twice, and for files that hold no answers.
    """
    _check_paths(sources)
    found = _Found()
    for number, source in enumerate(sources):
        for line in read_lines(source.path):
            _take(found, number, source, line, terms.format)
    labels = list(found.answers) or list(dict.fromkeys(model for model, _, _ in found.judgements))
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
    return Imported(run, tuple(_rows(found, run)), tuple(_notices(found)))


def _take(found: _Found, number: int, source: Source, line: Line, format: Format | None) -> None:
    used = format or format_of(line)
    found.formats.setdefault(used)
    found.latest_s = max(found.latest_s, line.instant_s("tstamp") if "tstamp" in line else 0.0)
    if used == "fastchat" and is_judgement(line):
        if source.label:
            raise UserError(f"{source.path}: judgements name their models themselves; give the file without a label.")
        judgement = judgement_of(line)
        key = (judgement.model, judgement.prompt_id, judgement.turn)
        found.judgements.setdefault(key, []).append(judgement)
        return
    model = line.identifier("model_id")
    label = source.label or model
    answers = [_Given(number, model, answer) for answer in answers_of(line, used)]
    answered = (number, label, line.identifier("question_id"))
    if answered in found.answered:
        line.refuse(f"a second answer of {label} to question {answered[-1]}")
    found.answered.add(answered)
    found.answers.setdefault(label, []).extend(answers)


def _rows(found: _Found, run: Run) -> Iterator[Row]:
    """Answers in the order of labels and files; of what was judged but is not there, the scores alone."""
    order = count()
    for method in run.methods:
        label = method.label
        judged = [_Given(0, of, Answer(prompt, turn, 0, "")) for of, prompt, turn in found.judgements if of == label]
        for session, model, answer in found.answers.get(label, [] if found.answers else judged):
            of_it = found.judgements.get((model, answer.prompt_id, answer.turn), ())
            yield _row(run, label, session, next(order), answer, scores(of_it))


def _row(run: Run, label: str, session: int, order: int, answer: Answer, counters: Mapping[str, float]) -> Row:
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
    return replace(row, error=None, text=answer.text, totals=totals, counters=counters)


def scores(judged: Sequence[Judgement]) -> Mapping[str, float]:
    """As counters of a row: the sum of scores that could be read, how many these were, and how many could not."""
    read = [judgement.score for judgement in judged if judgement.score is not None]
    counts = {"judge_score": sum(read), "judged": len(read), "judge_unreadable": len(judged) - len(read)}
    return {name: float(count) for name, count in counts.items()} if judged else {}


def _run(
    found: _Found, sources: Sequence[Source], labels: Sequence[str], terms: Terms, name: str, command: tuple[str, ...]
) -> Run:
    judges = {judgement.judge for judgements in found.judgements.values() for judgement in judgements}
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


def _notices(found: _Found) -> Iterator[str]:
    answers = [given.answer for given in found.given()]
    failed = sum(answer.failed for answer in answers)
    if failed:
        yield f"{failed} turns are marked {FAILED}: their numbers are those of an earlier turn and are left out."
    unknown = sum(answer.steps is None and answer.new_tokens is not None for answer in answers)
    if unknown:
        yield f"{unknown} turns have steps that fit no reading of their accept lengths: their steps are left out."
    models = {given.model for given in found.given()}
    lost = sum(model not in models for model, _, _ in found.judgements) if models else 0
    if lost:
        yield f"{lost} judgements are of models without answers here and are left out."
    unreadable = sum(judgement.score is None for each in found.judgements.values() for judgement in each)
    if unreadable:
        yield f"{unreadable} judgements could not be read by their judge's script: counted, not scored."
