"""Published files as one run: a label for each method, a session for each file."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from benchctl.errors import InvalidData, UserError
from benchctl.importing import Format
from benchctl.importing.benchmarks import read_requests
from benchctl.importing.published_answers import FAILED, Answer, answers_of, format_of
from benchctl.importing.published_judgements import Reply, replies_of, scores_of
from benchctl.importing.published_lines import AnswerLine, Line, not_as_published, read_lines
from benchctl.importing.requests import UNEXPLAINED, Requests
from benchctl.records.schema import UNKNOWN_TARGET, MethodInfo, ModelInfo, Row, Run, SuiteInfo, Totals
from benchctl.records.scores import Score

MT_BENCH = frozenset(map(str, range(81, 161)))  # its question ids
_FAILED_TURNS = f"turns are marked {FAILED}: their numbers are those of an earlier turn and are left out."
_FAILED_REQUESTS = "requests failed."
_ODD_STEPS = "turns have steps that fit no reading of their accept lengths: their steps are left out."
_DAY_S = 86_400.0  # the longest time to a first token in records
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
    served: dict[str, list[Requests]] = field(default_factory=dict)  # files of serving benchmarks by label
    left_out: Counter[str] = field(default_factory=Counter)
    latest_s: float = 0.0

    @property
    def judged(self) -> dict[str, dict[tuple[str, int], None]]:
        """The prompts and turns that were judged, by model."""
        judged: dict[str, dict[tuple[str, int], None]] = {}
        for reply in self.replies:
            for model in filter(None, (reply.model, reply.other)):
                judged.setdefault(model, {}).setdefault((reply.prompt_id, reply.turn))
        return judged

    @property
    def order(self) -> str:
        most = [requests.at_once for files in self.served.values() for requests in files]
        if None in most:
            return "an unknown number at once"
        return (
            f"up to {at_once} at once" if (at_once := max(filter(None, most), default=1)) > 1 else "one after another"
        )

    def given(self) -> Iterator[_Given]:
        return chain.from_iterable(self.answers.values())

    def models(self, label: str) -> list[str]:
        """The model_ids of a label's answers, or, where there are judgements alone, the model itself."""
        return list(dict.fromkeys(given.model for given in self.answers.get(label, ()))) or [label]


def gather(sources: Sequence[Source], terms: Terms, *, name: str, command: tuple[str, ...] = ()) -> Imported:
    """The answers of all files, and the scores of judgements among them.

    Raises UserError for files that cannot be read, are copies of each other, were sampled at other temperatures or
    measured with other loads or prompts, for files without a label that need one, and for a baseline that is not among
    them; InvalidData, with file and line, for lines that are not of the format, or that answer a question twice, and
    for files that hold no answers.
    """
    _check_paths(sources)
    contents = _Contents()
    for number, source in enumerate(sources):
        if (requests := read_requests(source.path, terms.format)) is not None:
            _take_requests(contents, number, source, requests)
            continue
        for line in read_lines(source.path):
            _take(contents, number, source, line, terms.format)
    labels = list(contents.answers) or list(contents.judged)
    if not labels:
        raise InvalidData(
            "no_answers",
            f"{', '.join(str(source.path) for source in sources)}: no answers in it. Give a file of answers.",
        )
    _check_copies(contents, sources)
    _check_served(contents)
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
    for answer in answers_of(line, content, used):
        contents.answers.setdefault(label, []).append(_Given(number, model, answer))
        if answer.error:
            contents.left_out[_FAILED_TURNS] += 1
        elif answer.steps is None and answer.new_tokens is not None:
            contents.left_out[_ODD_STEPS] += 1


def _take_requests(contents: _Contents, number: int, source: Source, requests: Requests) -> None:
    """Requests with the same prompt are its repeats, in the order of the file."""
    label = source.label or requests.name
    if not label or (not source.label and label in contents.answers):
        raise UserError(
            "needs_a_label",
            f"{source.path}: {f'another file is labelled {label} too' if label else 'does not name its model'}. Write "
            f"LABEL={source.path}: files with the same LABEL are sessions of one method.",
        )
    contents.formats.setdefault(requests.format)
    contents.latest_s = max(contents.latest_s, requests.written_s)
    contents.served.setdefault(label, []).append(requests)
    contents.left_out += requests.left_out
    contents.left_out[_FAILED_REQUESTS] += sum(bool(answer.error) for answer in requests.answers)
    choices: Counter[tuple[str, int]] = Counter()
    answers = requests.answers
    if requests.left_out[UNEXPLAINED]:  # those whose every step drafted would stay, and their acceptance is higher
        answers = tuple(replace(answer, steps=None, drafted=None, accepted=None) for answer in answers)
    for answer in answers:
        times_s = [time_s for time_s in (0.0, answer.ttft_s, answer.wall_s, _DAY_S) if time_s is not None]
        if times_s != sorted(times_s) or answer.ttft_s == 0:
            problem = f"prompt {answer.prompt_id}: its first token came after {answer.ttft_s} s, the last after "
            raise not_as_published(source.path, 1, f"{problem}{answer.wall_s} s")
        key = (answer.prompt_id, answer.turn)
        given = _Given(number, requests.name or label, replace(answer, choice=choices[key]))
        contents.answers.setdefault(label, []).append(given)
        choices[key] += 1


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
    failed = bool(answer.error)
    totals = Totals(
        new_tokens=answer.new_tokens,
        steps=answer.steps,
        wall_s=answer.wall_s,
        drafted=answer.drafted,
        accepted=answer.accepted,
    )
    return Row(
        suite=run.suites[0].name,
        prompt_id=answer.prompt_id,
        turn=answer.turn,
        label=label,
        repeat=answer.choice,
        session=session,
        order=order,
        prompt_tokens=answer.prompt_tokens,
        text="" if failed else answer.text,
        ttft_s=None if failed else answer.ttft_s,
        totals=None if failed else totals,
        error=answer.error or None,
    )


def _run(
    contents: _Contents,
    sources: Sequence[Source],
    labels: Sequence[str],
    terms: Terms,
    name: str,
    command: tuple[str, ...],
) -> Run:
    judges = {reply.judge for reply in contents.replies}
    sizes: dict[str, Any] = dict.fromkeys(("layers", "hidden_size", "parameters", "vocabulary", "context_tokens"), 0)
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
        order=contents.order,
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
    """The temperature in the model_ids, as in vicuna-7b-temperature-0.7 or sps-temp-1.0; 0 where none has one.

    Raises UserError for two temperatures, since a run has one.
    """
    models_of: dict[float, str] = {}
    for model in models:
        if match := re.search(r"temp(?:erature)?-(\d+(?:\.\d+)?(?:e-?\d+)?)", model):
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


def _check_served(contents: _Contents) -> None:
    """Refuse serving benchmarks of other loads, of which one had no request that waited for another, and of other
    prompts under the same id. Raises UserError."""
    loads = [(label, requests.at_once) for label, files in contents.served.items() for requests in files]
    alone = [label for label, most in loads if most == 1]
    if alone and len(alone) < len(loads):
        other, most = next(load for load in loads if load[1] != 1)
        raise UserError(
            "other_load",
            f"a file of {other} had {most or 'an unknown number of'} requests at once, and one of {alone[0]} one: "
            "their times are not comparable. Measure all with one request at a time.",
        )
    tokens: dict[tuple[str, int], int] = {}
    remedy = "Measure all with the same data set and the same seed."
    for label in contents.served:
        answers = [given.answer for given in contents.answers.get(label, ())]
        if tokens and not any((answer.prompt_id, answer.turn) in tokens for answer in answers):
            raise UserError("other_prompts", f"{label}: none of its prompts is in an earlier file. {remedy}")
        for answer in answers:
            if not answer.prompt_tokens or answer.turn:  # later turns follow answers, which may differ in length
                continue
            first = tokens.setdefault((answer.prompt_id, answer.turn), answer.prompt_tokens)
            if first != answer.prompt_tokens:
                raise UserError(
                    "other_prompts",
                    f"{label}: prompt {answer.prompt_id} has {answer.prompt_tokens} tokens, and {first} in an earlier "
                    f"file. {remedy}",
                )


def _notices(contents: _Contents, lost: Counter[str]) -> Iterator[str]:
    yield from (f"{count} {why}" for why, count in contents.left_out.items() if count)
    if contents.served:
        files = [requests for each in contents.served.values() for requests in each]
        formats = ", ".join(dict.fromkeys(requests.format for requests in files))
        yield (
            f"files of {formats} hold no token ids, so answers are not compared; steps and drafted tokens are known "
            "only where the server reported them for the request."
        )
        if any(requests.at_once != 1 for requests in files):
            most = [str(requests.at_once or "?") for requests in files]
            yield f"Most requests at once, by file: {', '.join(most)}. Their times include waiting for each other."
    for why, judgements in sorted(lost.items()):
        yield f"{judgements} judgements are {why} and are left out."
    unreadable = sum(reply.points is None for reply in contents.replies)
    if unreadable:
        yield f"{unreadable} judgements could not be read by their judge's script: counted, not scored."
