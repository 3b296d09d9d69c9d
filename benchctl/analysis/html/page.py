"""The content of a report for each group: texts, tables, pictures, acceptance, latency, warnings and the manifest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchctl.analysis.comparison import POOLED, Group, MethodFigures, SuiteFigures
from benchctl.analysis.html.picture import Picture, pictures, pooled_first
from benchctl.analysis.metrics.faithfulness import TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP, TPOT, TTFT
from benchctl.analysis.names import short_labels
from benchctl.analysis.plots.latency import times
from benchctl.analysis.plots.pareto import Look, look_of
from benchctl.analysis.tables.acceptance import Acceptance, acceptances
from benchctl.analysis.tables.columns import Block, agreement_sentences, cell
from benchctl.analysis.tables.text import blocks, heading, note
from benchctl.analysis.warnings import warnings
from benchctl.analysis.winner import fastest, sentence
from benchctl.records.schema import ModelInfo
from benchctl.records.writer import RunFile

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Spread:
    """TPOT of a method's generations on one suite: quantiles in ms, and their places in percent of the scale,
    which goes from 0 to `scale_ms`.

    `tpot` and `ttft` are the figures of the tables: of all tokens together, not of the middle generation.
    """

    suite: str
    label: str
    quantiles_ms: tuple[float, ...]
    places: tuple[float, ...]
    scale_ms: float
    tpot: str
    ttft: str
    generations: int


def spreads(group: Group) -> tuple[Spread, ...]:
    """Of every method with steps that were timed, on every suite."""
    found = []
    for figures in group.suites:
        for method in figures.methods:
            timed = times(group, method.label)
            of_suite = timed if figures.suite == POOLED else timed[timed["suite"] == figures.suite]
            tpot_ms = (1e3 * of_suite[TPOT.name]).dropna()
            if len(tpot_ms):
                found.append((figures.suite, method, tuple(tpot_ms.quantile(list(_QUANTILES))), len(tpot_ms)))
    most = max((quantiles[-1] for _, _, quantiles, _ in found), default=0.0)
    return tuple(
        Spread(
            suite=suite,
            label=method.label,
            quantiles_ms=quantiles,
            places=tuple(round(100 * quantile / most, 2) if most else 0.0 for quantile in quantiles),
            scale_ms=most,
            tpot=cell(TPOT)(method),
            ttft=cell(TTFT)(method),
            generations=generations,
        )
        for suite, method, quantiles, generations in found
    )


Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Manifest:
    """What a file was made on and with; of a method its claim, its reason and what else is known of it."""

    path: str
    parts: Mapping[str, Facts]


@dataclass(frozen=True)
class Section:
    """A group of the report. `suites` has all suites together first; `numbers`, `short` and `looks` are by label."""

    number: int
    name: str
    group: Group
    heading: tuple[str, ...]
    fastest: str
    verdicts: tuple[str, ...]
    note: str
    suites: tuple[SuiteFigures, ...]
    numbers: Mapping[str, int]
    short: Mapping[str, str]
    looks: Mapping[str, Look]
    pictures: tuple[Picture, ...]
    tables: tuple[Block, ...]
    acceptances: tuple[Acceptance, ...]
    spreads: tuple[Spread, ...]
    warnings: tuple[str, ...]
    manifests: tuple[Manifest, ...]


def section(groups: Sequence[Group], group: Group) -> Section:
    number, winner = groups.index(group) + 1, fastest(group)
    return Section(
        number=number,
        name=_name(group),
        group=group,
        heading=tuple(heading(groups, group)),
        fastest=sentence(group, winner) if winner else "",
        verdicts=(*_verdicts(group), *agreement_sentences(group)),
        note=note(group),
        suites=pooled_first(group),
        numbers={method.label: index for index, method in enumerate(group.methods)},
        short=short_labels([method.label for method in group.methods]),
        looks={method.label: look_of(group, method) for method in group.pooled.methods},
        pictures=pictures(number, group),
        tables=blocks(group),
        acceptances=tuple(acceptances(number, group)),
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


def _manifest(file: RunFile) -> Manifest:
    run = file.run
    draft = (("draft", _model(run.draft)),) if run.draft else ()
    facts = (
        ("made", run.created),
        ("command", " ".join(run.command)),
        ("target", _model(run.target)),
        *draft,
        *((name.replace("_", " "), str(getattr(run, name))) for name in _SETTINGS),
        ("modes", ", ".join(run.modes)),
        ("commit", run.commit or "not known"),
        ("schema version", str(run.schema_version)),
        *((("imported from", run.imported),) if run.imported else ()),
    )
    suites = tuple(
        (suite.name, f"{suite.prompts} prompts, {suite.source}, {suite.origin}, sha256 {suite.sha256[:16]}")
        for suite in run.suites
    )
    methods = tuple(
        (method.label, "; ".join(filter(None, (method.exactness.replace("_", " "), method.reason,
                                               method.unsupported and f"not measured: {method.unsupported}",
                                               method.modules_sha256 and f"modules {method.modules_sha256[:16]}"))))
        for method in run.methods
    )  # fmt: skip
    parts = {"Run": facts, "Prompts": suites, "Methods and their claims": methods}
    return Manifest(str(file.path), parts | {"Machine": _facts(run.machine), "Versions": _facts(run.versions)})


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
