"""What a report says of each group, ready to be laid out: words, tables, pictures, warnings and the manifest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.html.picture import Picture, pictures, pooled_first
from benchctl.analysis.html.views import Accepted, Spread, accepted, spreads
from benchctl.analysis.metrics.faithfulness import TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.plots.pareto import Look, look_of
from benchctl.analysis.plots.words import short_labels
from benchctl.analysis.tables.columns import cell
from benchctl.analysis.tables.judges import agreement_sentences
from benchctl.analysis.tables.text import blocks, heading, note
from benchctl.analysis.warnings import warnings
from benchctl.analysis.winner import fastest, sentence
from benchctl.records.schema import ModelInfo
from benchctl.records.writer import RunFile

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Method:
    """A method as the toggles name it, and its number among the group's."""

    number: int
    label: str
    short: str
    look: Look


@dataclass(frozen=True)
class Suite:
    name: str
    title: str


@dataclass(frozen=True)
class Line:
    """Of a table: a method, by its number and label, and its cells."""

    method: int
    label: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Of a table: the lines of one suite."""

    suite: Suite
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Manifest:
    """What a file was made on and with; `methods` has label, claim, reason and what else is known of it."""

    path: str
    facts: Facts
    machine: Facts
    versions: Facts
    suites: Facts
    methods: Facts


@dataclass(frozen=True)
class Section:
    """A group of the report."""

    number: int
    name: str
    baseline: str
    heading: tuple[str, ...]
    fastest: str
    verdicts: tuple[str, ...]
    note: str
    methods: tuple[Method, ...]
    suites: tuple[Suite, ...]
    pictures: tuple[Picture, ...]
    tables: tuple[Table, ...]
    accepted: tuple[Accepted, ...]
    spreads: tuple[Spread, ...]
    warnings: tuple[str, ...]
    manifests: tuple[Manifest, ...]


def section(groups: Sequence[Group], group: Group) -> Section:
    number = groups.index(group) + 1
    winner = fastest(group)
    short = short_labels([method.label for method in group.methods])
    figures = {method.label: method for method in group.pooled.methods}
    return Section(
        number=number,
        name=_name(group),
        baseline=group.run.baseline,
        heading=tuple(heading(groups, group)),
        fastest=sentence(group, winner) if winner else "",
        verdicts=(*_verdicts(group), *agreement_sentences(group)),
        note=note(group),
        methods=tuple(
            Method(index, method.label, short[method.label], look_of(group, figures[method.label]))
            for index, method in enumerate(group.methods)
            if method.label in figures
        ),
        suites=tuple(Suite(suite.suite, group.title(suite)) for suite in pooled_first(group)),
        pictures=pictures(number, group),
        tables=tuple(_tables(group)),
        accepted=accepted(number, group),
        spreads=spreads(group),
        warnings=tuple(warning.text for warning in warnings(group)),
        manifests=tuple(map(_manifest, group.files)),
    )


def _name(group: Group) -> str:
    run = group.run
    return f"{run.target.name} on {run.machine.get('gpu') or run.machine.get('cpu') or run.device}"


def _verdicts(group: Group) -> Iterator[str]:
    """How many prompts and sessions there were, then of each method what it gains and what that costs."""
    prompts, sessions = max(method.prompts for method in group.pooled.methods), group.sessions
    suites = ", ".join(group.title(suite) for suite in (group.suites[:-1] or group.suites))
    times = "1 session" if sessions == 1 else f"{sessions} sessions"
    yield f"{prompts} prompts ({suites}), {times}."
    for method in group.pooled.methods:
        if not method.is_baseline:
            yield f"{method.label}: {cell(SPEEDUP)(method)}; {_answers(group, method)}."


def _answers(group: Group, method: MethodFigures) -> str:
    found = method.fidelity
    judged = found.identical + found.tie + found.numeric + found.lossy
    failed = f"; {found.failed} generations failed" if found.failed else ""
    if not judged:
        sampled = f"{found.sampled} sampled answers, which one text alone cannot judge"
        return (sampled if found.sampled else "how far its answers are the target's is not known") + failed
    same = f"{found.identical} of {judged} answers are the baseline's"
    ties = f", {found.tie} more up to ties" if found.tie else ""
    rounded = f", {found.numeric} more up to rounding" if found.numeric else ""
    agreement = method.estimate(TOKEN_AGREEMENT).value
    lost = f", token agreement {agreement:.3f}" if found.lossy and agreement is not None else ""
    badge = "lossless: " if method.lossless else ""
    return f"{badge}{same}{ties}{rounded}{lost}{failed}"


def _tables(group: Group) -> Iterator[Table]:
    numbers = {method.label: number for number, method in enumerate(group.methods)}
    for block in blocks(group):
        yield Table(
            block.title,
            tuple(column.title for column in block.columns),
            tuple(
                Part(
                    Suite(suite.suite, group.title(suite)),
                    tuple(
                        Line(
                            numbers[method.label], method.label, tuple(column.cell(method) for column in block.columns)
                        )
                        for method in suite.methods
                    ),
                )
                for suite in pooled_first(group)
            ),
        )


def _manifest(file: RunFile) -> Manifest:
    run = file.run
    draft = (("draft", _model(run.draft)),) if run.draft else ()
    return Manifest(
        path=str(file.path),
        facts=(
            ("made", run.created),
            ("command", " ".join(run.command)),
            ("target", _model(run.target)),
            *draft,
            *((name.replace("_", " "), str(getattr(run, name))) for name in _SETTINGS),
            ("modes", ", ".join(run.modes)),
            ("commit", run.commit or "not known"),
            ("schema version", str(run.schema_version)),
            *((("imported from", run.imported),) if run.imported else ()),
        ),
        machine=_facts(run.machine),
        versions=_facts(run.versions),
        suites=tuple(
            (suite.name, f"{suite.prompts} prompts, {suite.source}, {suite.origin}, sha256 {suite.sha256[:16]}")
            for suite in run.suites
        ),
        methods=tuple(
            (method.label, "; ".join(filter(None, (method.exactness.replace("_", " "), method.reason,
                                                   method.unsupported and f"not measured: {method.unsupported}",
                                                   method.modules_sha256 and f"modules {method.modules_sha256[:16]}"))))
            for method in run.methods
        ),
    )  # fmt: skip


_SETTINGS = (
    *("dtype", "device", "executor", "attention", "threads", "batch_size", "temperature", "top_p", "top_k", "seed"),
    *("max_new_tokens", "repeats", "order", "context_fill"),
)


def _model(model: ModelInfo) -> str:
    return (
        f"{model.name} ({model.family}, {model.parameters:,} parameters, {model.layers} layers), "
        f"weights {model.weights_sha256[:16]}, tokenizer {model.tokenizer_sha256[:16]}"
    )


def _facts(found: Mapping[str, object]) -> Facts:
    return tuple((name.replace("_", " "), _shown(value)) for name, value in found.items())


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "not known" if value is None else str(value)
