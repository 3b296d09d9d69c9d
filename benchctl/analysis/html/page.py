"""The content of a report for each group: recommendation, tables, pictures, warnings and how it was made."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchctl.analysis.comparison import Group, MethodFigures, SuiteFigures, by_suite
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.names import table_labels
from benchctl.analysis.plots.axes import svg
from benchctl.analysis.plots.catalogue import Request, helps, plot
from benchctl.analysis.plots.style import SIZES
from benchctl.analysis.tables.columns import BASELINE_CELL, NONE, Block, agreement_sentences, brief
from benchctl.analysis.tables.text import blocks, differing_settings, note, prompts_of
from benchctl.analysis.warnings import warnings
from benchctl.analysis.winner import summarise
from benchctl.errors import UserError
from benchctl.records.schema import ModelInfo
from benchctl.records.writer import RunFile

Facts = tuple[tuple[str, str], ...]
MAIN = "pareto"
_LEFT_OUT = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)  # the page has rules of its own
_ID = re.compile(r'( id="|url\(#|href="#)')


@dataclass(frozen=True)
class Picture:
    """`svg` is empty where these runs have no such picture, and `problem` is the reason; `is_too_much` where it is that
    they have too much for it."""

    title: str
    svg: str = ""
    problem: str = ""
    is_too_much: bool = False


def picture(name: str, group: Group, prefix: str, size: str = "screen") -> Picture:
    """The picture of this name of `benchctl plot`. `prefix` is different for each picture of a page."""
    title = helps()[name].rstrip(".")
    try:
        drawing = plot(name).draw((replace(group, differs=()),), Request(SIZES[size]))
    except UserError as error:
        is_too_much = error.id.startswith("too_many")
        return Picture(
            title,
            problem=f"{error} See `benchctl plot --{name}`." if is_too_much else str(error),
            is_too_much=is_too_much,
        )
    return Picture(title, embedded(svg(drawing.figure), prefix))


def other_pictures(group: Group, prefix: str) -> tuple[Picture, ...]:
    """The other pictures of results files, as far as these runs have them, or why they have too much for one."""
    names = [name for name in helps() if name != MAIN]
    found = (picture(name, group, f"{prefix}{name}-") for name in names)
    return tuple(each for each in found if each.svg or each.is_too_much)


def embedded(document: str, prefix: str) -> str:
    """An SVG document as an element for a page. Its ids begin with `prefix`, because several pictures share a page."""
    element = _LEFT_OUT.sub("", document[document.index("<svg") :])
    return _ID.sub(rf"\g<1>{prefix}", element)


@dataclass(frozen=True)
class Manifest:
    """What a file was made on and with; of a method its claim, its reason and what else is known of it."""

    path: str
    parts: Mapping[str, Facts]


@dataclass(frozen=True)
class Part:
    """A suite, or all suites together: its Pareto plot, and its methods by falling speed-up."""

    title: str
    picture: Picture
    methods: tuple[MethodFigures, ...]


@dataclass(frozen=True)
class Section:
    """A group of the report. `names` are the short labels, `narrow` is the Pareto plot for a phone, the first of
    `tables` is the brief one, and `suites` is empty for a single suite."""

    number: int
    name: str
    headline: str
    reasons: tuple[str, ...]
    setup: str
    differs: str
    poor: str
    names: Mapping[str, str]
    pooled: Part
    narrow: Picture
    tables: tuple[Block, ...]
    pictures: tuple[Picture, ...]
    suites: tuple[Part, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    manifests: tuple[Manifest, ...]


def section(groups: Sequence[Group], group: Group, embedded_models: frozenset[str]) -> Section:
    """The content for one of `groups`. `embedded_models` are the names of models too small for good answers."""
    number = groups.index(group) + 1
    summary = summarise(group)
    target = group.run.target
    return Section(
        number=number,
        name=_name(group),
        headline=summary.advice,
        reasons=summary.lines if summary.advice != summary.headline else summary.lines[1:],
        setup=_setup(group),
        differs=" ".join(differing_settings(group)),
        poor=f"{target.name} has {_millions(target)}: its answers are poor." if target.name in embedded_models else "",
        names=table_labels([method.label for method in group.pooled.methods]),
        pooled=_part(group, group.pooled, f"g{number}-"),
        narrow=picture(MAIN, group, f"g{number}n-", "column"),
        tables=tuple(block for block in (brief(group), *blocks(group)) if block.columns),
        pictures=other_pictures(group, f"g{number}-"),
        suites=tuple(
            _part(own, own.pooled, f"g{number}s{index}-")
            for index, own in enumerate(by_suite([group]) if len(group.suites) > 1 else ())
        ),
        notes=(note(group), *agreement_sentences(group)),
        warnings=tuple(warning.text for warning in warnings(group)),
        manifests=tuple(map(_manifest, group.files)),
    )


def table_rows(block: Block, methods: Sequence[MethodFigures]) -> list[tuple[str, list[str]]]:
    """The labels and cells of a table. The brief table has no title and all methods, others only those with figures."""
    rows = [(method.label, [column.cell(method) for column in block.columns]) for method in methods]
    return [(label, cells) for label, cells in rows if not block.title or not {NONE, BASELINE_CELL}.issuperset(cells)]


def _part(group: Group, figures: SuiteFigures, prefix: str) -> Part:
    ranked = sorted(figures.methods, key=lambda method: -(method.estimate(SPEEDUP).value or 0.0))
    return Part(group.title(figures), picture(MAIN, group, prefix), tuple(ranked))


def _name(group: Group) -> str:
    run, more = group.run, f" and {len(group.files) - 1} more" if len(group.files) > 1 else ""
    machine = run.machine.get("gpu") or run.machine.get("cpu") or run.device
    return f"{run.target_name} on {machine} ({group.files[0].path.name}{more})"


def _setup(group: Group) -> str:
    """Model, machine, prompts and sessions in one line."""
    run = group.run
    if run.imported:
        return f"{run.target.name}, imported from files of {run.imported}; {prompts_of(group)}."
    threads = f"{run.threads} thread{'s' * (run.threads != 1)}"
    machine = run.machine.get("gpu") or f"{threads} of {run.machine.get('cpu') or run.device}"
    return f"{run.target_name} with {_millions(run.target)}, {run.dtype}, on {machine}; {prompts_of(group)}."


def _millions(model: ModelInfo) -> str:
    return f"{model.parameters / 1e6:,.1f} million parameters"


def _manifest(file: RunFile) -> Manifest:
    run = file.run
    draft = (("draft", _model(run.draft)),) if run.draft else ()
    facts = (
        ("made", run.created),
        ("command", shlex.join(run.command)),
        ("target", f"{_model(run.target)}{f', kept in {run.weights}' if run.weights else ''}"),
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
