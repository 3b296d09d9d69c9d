"""The content of a report for each group: texts, tables, pictures, acceptance, latency, warnings and the manifest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from benchctl.analysis.comparison import POOLED, Group, MethodFigures, SuiteFigures
from benchctl.analysis.frame.rows import POSITIONS
from benchctl.analysis.html.picture import Picture, pictures, pooled_first
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE, MEAN_ACCEPTED
from benchctl.analysis.metrics.faithfulness import TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP, TPOT, TTFT
from benchctl.analysis.plots.latency import times
from benchctl.analysis.plots.pareto import Look, look_of
from benchctl.analysis.plots.style import short_labels
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.tables.acceptance import Acceptance, acceptances
from benchctl.analysis.tables.columns import agreement_sentences, cell, spread
from benchctl.analysis.tables.text import blocks, heading, note
from benchctl.analysis.warnings import warnings
from benchctl.analysis.winner import fastest, sentence
from benchctl.records.schema import ModelInfo
from benchctl.records.writer import RunFile

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Bar:
    """A share of drafts at a position: its bar, both ends of its interval if it has one, and `dot`, a second share."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    dot: float | None = None


@dataclass(frozen=True)
class Accepted:
    """A method that drafts, on one suite. `positions` has conditional shares, with unconditional ones as dots."""

    method: int
    suite: str
    title: str
    label: str
    rate: str
    mean: str
    positions: tuple[Bar, ...]
    histogram: tuple[Bar, ...]


@dataclass(frozen=True)
class Spread:
    """TPOT of a method's generations on one suite: quantiles in ms, and their places in percent of the scale,
    which goes from 0 to `scale_ms`.

    `tpot` and `ttft` are the figures of the tables: of all tokens together, not of the middle generation.
    """

    method: int
    suite: str
    title: str
    label: str
    quantiles_ms: tuple[float, ...]
    places: tuple[float, ...]
    scale_ms: float
    tpot: str
    ttft: str
    generations: int


def accepted(number_of_group: int, group: Group) -> tuple[Accepted, ...]:
    """Of every method that drafts, on every suite."""
    suites = {group.title(figures): figures for figures in group.suites}
    labels = [method.label for method in group.methods]
    return tuple(
        _accepted(each, labels, suites[each.suite].suite, suites[each.suite].methods)
        for each in acceptances(number_of_group, group)
    )


def spreads(group: Group) -> tuple[Spread, ...]:
    """Of every method with steps that were timed, on every suite."""
    times = {method.label: _times(group, method.label) for method in group.pooled.methods}
    found = [
        (figures, method, _of_suite(times[method.label], figures.suite))
        for figures in group.suites
        for method in figures.methods
    ]
    most = max((float(of_suite.quantile(_QUANTILES[-1])) for _, _, of_suite in found if len(of_suite)), default=0.0)
    return tuple(
        _spread(group, figures, method, of_suite, most) for figures, method, of_suite in found if len(of_suite)
    )


def _accepted(each: Acceptance, labels: list[str], suite: str, methods: tuple[MethodFigures, ...]) -> Accepted:
    method = next(method for method in methods if method.label == each.label)
    both = zip(each.conditional, each.unconditional, strict=True)
    return Accepted(
        method=labels.index(each.label),
        suite=suite,
        title=each.suite,
        label=each.label,
        rate=spread(method.estimate(ACCEPTANCE_RATE), "{:.3f}"),
        mean=cell(MEAN_ACCEPTED)(method),
        positions=tuple(_bar(position, share, dot.value) for position, (share, dot) in enumerate(both, 1)),
        histogram=tuple(_bar(accepted, share) for accepted, share in enumerate(each.histogram)),
    )


def _bar(position: int, share: Estimate, dot: float | None = None) -> Bar:
    name = f"{position}+" if position == POSITIONS else str(position)
    interval = share.interval
    return Bar(name, share.value, interval.low if interval else None, interval.high if interval else None, dot)


def _times(group: Group, label: str) -> pd.Series:
    """TPOT in ms of the generations that a method's figures rest on, by their suites."""
    return (1e3 * times(group, label).set_index("suite")[TPOT.name]).dropna()


def _of_suite(times: pd.Series, suite: str) -> pd.Series:
    return times if suite == POOLED else times[times.index == suite]


def _spread(group: Group, figures: SuiteFigures, method: MethodFigures, times: pd.Series, most: float) -> Spread:
    quantiles = tuple(float(times.quantile(part)) for part in _QUANTILES)
    return Spread(
        method=[known.label for known in group.methods].index(method.label),
        suite=figures.suite,
        title=group.title(figures),
        label=method.label,
        quantiles_ms=quantiles,
        places=tuple(round(100 * quantile / most, 2) if most else 0.0 for quantile in quantiles),
        scale_ms=most,
        tpot=cell(TPOT)(method),
        ttft=cell(TTFT)(method),
        generations=len(times),
    )


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
