"""A comparison as text: the answer first, then what a reader may ask for."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import Literal

from benchctl.analysis.comparison import Group, MethodFigures, SuiteFigures
from benchctl.analysis.machines import pooled_speedups
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.names import label_lines, short_labels, table_labels
from benchctl.analysis.tables import acceptance
from benchctl.analysis.tables.acceptance import acceptances, position_name
from benchctl.analysis.tables.columns import (
    BASELINE_CELL,
    NONE,
    Block,
    agreement_sentences,
    brief,
    by_category,
    judge_blocks,
    metric_blocks,
    named_columns,
)
from benchctl.analysis.tables.export import to_csv, to_json
from benchctl.analysis.tables.grids import Grid, Paragraph, Parts, Row, markdown, terminal, tex
from benchctl.analysis.warnings import Warning, warnings
from benchctl.analysis.winner import summarise
from benchctl.errors import UserError
from benchctl.records.schema import Run

Format = Literal["table", "md", "csv", "json", "tex"]
WIDTH, _UNLIMITED = 80, 10_000
_MOST_WARNINGS = 3
_ACCEPTANCE_HEAD = ("method", "acceptance rate [95%]", "of drafted rows", "accepted per step", "committed per step")
_ACCEPTANCE_NOTE = (
    "By position: percent of the steps that drafted. conditional: of those that accepted all positions before; "
    "unconditional: of all; histogram: that accepted exactly so many tokens. In a tree a position is a depth, and the "
    "acceptance rate counts its depth, not its rows."
)


@dataclass(frozen=True)
class View:
    """What is shown of a comparison as a table, md or tex.

    full      all tables, and the warnings with their advice
    by_suite  each suite, and not only all suites together
    columns   names of the columns of the first table, as in CSV; default: the brief ones
    names     label or short label -> what to call it
    """

    full: bool = False
    by_suite: bool = False
    columns: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    width: int = WIDTH


def render(groups: Sequence[Group], format: Format = "table", view: View = View()) -> str:
    """A comparison as text, without a newline at its end. CSV and JSON are the same in every view.

    Raises UserError for a column or a label of the view that the comparison does not have.
    """
    if format == "csv":
        return to_csv(groups)
    if format == "json":
        return to_json(groups)
    _check_names(groups, view)
    view = view if format == "table" else replace(view, width=_UNLIMITED)
    parts = [part for group in groups for part in _parts(groups, group, view)]
    return _written([*parts, *_machines(groups, view)], format, view)


def render_acceptance(groups: Sequence[Group], format: Format = "table", view: View = View()) -> str:
    """The acceptance of every method that drafts, as `render`. Raises UserError where no method drafted anything."""
    drafting = [each for number, group in enumerate(groups, 1) for each in acceptances(number, group, group.suites)]
    if not drafting:
        raise UserError("no_drafts", "no method drafted a token. Measure one that does: benchctl list methods.")
    if format in ("csv", "json"):
        return acceptance.to_csv(drafting) if format == "csv" else acceptance.to_json(drafting)
    _check_names(groups, view)
    parts: list[Paragraph | Grid] = []
    for number, group in enumerate(groups, 1):
        names, title = _names(group, view), f"group {number}" if len(groups) > 1 else ""
        shown = {group.title(suite) for suite in (group.suites if view.by_suite else (group.pooled,))}
        of_group = [each for each in drafting if each.group == number and each.suite in shown]
        if not of_group:
            continue
        positions = range(max((len(each.histogram) for each in of_group), default=0))
        named, by_position = defaultdict[str, list[Row]](list), defaultdict[str, list[Row]](list)
        for each in of_group:
            name = f"refused: {names[each.label]}" if each.refused else names[each.label]
            named[each.suite].append((name, *each.named_cells))
            for first, row in zip((name, "", ""), each.position_rows, strict=True):
                by_position[each.suite].append((first, *row, *[""] * (len(positions) + 1 - len(row))))
        parts.append(Grid(title, _ACCEPTANCE_HEAD, _frozen(named)))
        parts.append(Grid(title, ("method", "% drafts", *map(position_name, positions)), _frozen(by_position)))
    return _written([*parts, Paragraph((_ACCEPTANCE_NOTE,), "note")], format, view)


def _frozen(sections: Mapping[str, Sequence[Row]]) -> dict[str, tuple[Row, ...]]:
    return {name: tuple(rows) for name, rows in sections.items()}


def _written(parts: Parts, format: Format, view: View) -> str:
    if format == "table":
        return terminal(parts, view.width)
    return markdown(parts) if format == "md" else tex(parts)


def _check_names(groups: Sequence[Group], view: View) -> None:
    known = {name for group in groups for names in _called(group).items() for name in (names[0], *names[1])}
    for group in groups if view.names else ():
        for name, times in Counter(_names(group, view).values()).items():
            if times > 1:
                raise UserError("name_twice", f"--name: {times} labels are called {name!r}. Give each its own name.")
    for label in view.names:
        if label not in known:
            labels = " ".join(dict.fromkeys(label for group in groups for label in _called(group)))
            raise UserError("unknown_label", f"--name {label}: these files have no such label. They have: {labels}.")


def _called(group: Group) -> dict[str, tuple[str, str]]:
    """Of each label what tables call it, and its short label."""
    labels = [method.label for method in group.pooled.methods]
    shown, short = table_labels(labels), short_labels(labels)
    return {label: (shown[label], short[label]) for label in labels}


def _names(group: Group, view: View) -> dict[str, str]:
    """What to call each label."""
    return {
        label: next((view.names[name] for name in (label, *names) if name in view.names), names[0])
        for label, names in _called(group).items()
    }


def _parts(groups: Sequence[Group], group: Group, view: View) -> Iterator[Paragraph | Grid]:
    """The answer of a group, and in the full view everything else."""
    names = _names(group, view)
    above = _heading(groups, group) if view.full else _brief_heading(groups, group, view.width)
    yield Paragraph(tuple(above))
    table = named_columns(group, view.columns) if view.columns else brief(group)
    if table.columns:
        yield _grid(table, group, view, names, ranked=True)
        if group.categories:
            of_category = replace(table, title="By category") if view.columns else by_category()
            yield _grid(of_category, group, view, names, ranked=True, sections=group.categories)
    elif not view.full:  # imported scores have no figures but those of the judge
        yield from (_grid(block, group, view, names) for block in judge_blocks(group))
    yield Paragraph(summarise(group, names).lines, "finding")
    found = warnings(group)
    if not view.full:
        by_id: dict[str, Warning] = {}
        for warning in found:
            by_id.setdefault(warning.id, warning)
        shown = list(by_id.values())[:_MOST_WARNINGS]
        lines = [warning.line(names, view.width) for warning in shown]
        if more := len(found) - len(lines):
            lines.append(f"{more} more warning{'s' * (more > 1)}: --full")
        if lines:
            yield Paragraph(tuple(lines), "warning")
        return
    for block in blocks(group):
        grid = _trimmed(_grid(block, group, view, names))
        if grid.sections:
            yield grid
    yield Paragraph((note(group), *agreement_sentences(group)), "note")
    if renamed := tuple(
        f"{name}: {label}" for label, name in names.items() if name not in (label, " ".join(label_lines(label)))
    ):
        yield Paragraph(("Labels:", *renamed))
    if found:
        yield Paragraph(tuple(f"Warning: {warning.text}" for warning in found), "warning")


def _machines(groups: Sequence[Group], view: View) -> Iterator[Paragraph | Grid]:
    """What several machines show together."""
    if not (pooled := pooled_speedups(groups)):
        return
    names = {label: name for group in groups for label, name in _names(group, view).items()}
    sections: dict[str, list[tuple[str, ...]]] = {}
    for each in pooled:
        sections.setdefault(each.of, []).append(
            (
                names[each.label],
                str(len(each.each)),
                f"{each.value:.2f}x [{each.interval.low:.2f}, {each.interval.high:.2f}]",
                f"{min(each.each):.2f}x to {max(each.each):.2f}x",
            )
        )
    rows = {f"as {of}" if len(sections) > 1 else "": tuple(lines) for of, lines in sections.items()}
    yield Grid("Several machines", ("method", "machines", "speed-up [95%]", "of each"), rows)
    yield Paragraph(("Geometric mean and its interval. A single machine may lie outside of it.",), "note")


def _grid(
    block: Block,
    group: Group,
    view: View,
    names: Mapping[str, str],
    *,
    ranked: bool = False,
    sections: Sequence[SuiteFigures] = (),
) -> Grid:
    """`ranked`: the baseline, then lossless methods, then the others, each by falling speed-up. `sections`: by default
    the suites of the view."""

    def rank(method: MethodFigures) -> tuple[bool, bool, float]:
        return not method.is_baseline, not method.lossless, -(method.estimate(SPEEDUP).value or 0.0)

    return Grid(
        block.title,
        ("method", *(column.title for column in block.columns)),
        {
            group.title(suite): tuple(
                (names[method.label], *(column.cell(method) for column in block.columns))
                for method in (sorted(suite.methods, key=rank) if ranked else suite.methods)
            )
            for suite in (sections or (group.suites if view.by_suite else (group.pooled,)))
        },
    )


def _trimmed(grid: Grid) -> Grid:
    """Without columns and rows that contain nothing."""
    empty = {NONE, BASELINE_CELL}
    rows = [row for rows in grid.sections.values() for row in rows]
    kept = [at for at in range(len(grid.head)) if at == 0 or any(row[at] not in empty for row in rows)]
    sections = {
        name: tuple(tuple(row[at] for at in kept) for row in rows if not empty.issuperset(row[1:]))
        for name, rows in grid.sections.items()
    }
    return Grid(
        grid.title, tuple(grid.head[at] for at in kept), {name: rows for name, rows in sections.items() if rows}
    )


def blocks(group: Group) -> tuple[Block, ...]:
    """All tables of a group."""
    return (*metric_blocks(group), *judge_blocks(group))


def _number(groups: Sequence[Group], group: Group) -> str:
    return f"Group {groups.index(group) + 1} of {len(groups)}: " if len(groups) > 1 else ""


def _heading(groups: Sequence[Group], group: Group) -> Iterator[str]:
    """The files of a group, what sets it apart from the first group, its baseline and settings."""
    names = ", ".join(str(file.path) for file in group.files)
    yield f"{_number(groups, group) or 'Files: '}{names}; {prompts_of(group)}."
    yield from differing_settings(group)
    executor = "" if group.run.imported else f", {group.run.executor} executor"
    yield f"Baseline {group.run.baseline} on {_settings(group.run)}{executor}."


def differing_settings(group: Group) -> Iterator[str]:
    """Why a group is not comparable with the first one."""
    if group.differs:
        differing = "; ".join(f"{each.field} is {each.second} (group 1: {each.first})" for each in group.differs)
        yield f"Not comparable with group 1: {differing}."


def _brief_heading(groups: Sequence[Group], group: Group, width: int) -> Iterator[str]:
    """Files and prompts; then target, machine and sampling."""
    number = _number(groups, group)
    path = group.files[0].path
    files = f"{path.name} and {len(group.files) - 1} more" if len(group.files) > 1 else str(path)
    prompts = f": {prompts_of(group)}"
    if len(number) + len(files) + len(prompts) > width:
        files = path.name if len(group.files) == 1 else f"{len(group.files)} files"
    yield f"{number}{files}{prompts}"
    yield from wrap(_settings(group.run), width)
    yield from differing_settings(group)


def prompts_of(group: Group) -> str:
    """Example: `5 suites (4 embedded), 80 prompts, 1 session`."""
    suites = [group.title(suite) for suite in (group.suites[:-1] or group.suites)]
    samples = sum("(embedded)" in suite for suite in suites)
    embedded = f" ({'' if samples == len(suites) else f'{samples} '}embedded)" if samples else ""
    named = suites[0] if len(suites) == 1 else f"{len(suites)} suites{embedded}"
    prompts, sessions = max(method.prompts for method in group.pooled.methods), group.sessions
    return f"{named}, {prompts} prompt{'s' * (prompts != 1)}, {sessions} session{'s' * (sessions != 1)}"


def note(group: Group) -> str:
    """How the figures and their intervals are computed."""
    sessions = f" and {group.sessions} sessions" if group.sessions > 1 else ", one session"
    batches = " Times are those of whole batches." if group.run.batch_size > 1 else ""
    return (
        "Ratios of sums over the prompts that both the method and the baseline answered; "
        f"[95% interval over prompts{sessions}].{batches} Methods are compared with each other at "
        "95% confidence, with Holm's correction."
    )


def _settings(run: Run) -> str:
    if run.imported:
        return f"{run.target.name}, imported from files of {run.imported}"
    threads = "1 thread" if run.threads == 1 else f"{run.threads} threads"
    batches = f", batches of up to {run.batch_size}" if run.batch_size > 1 else ""
    top_p, top_k = (f", top-p {run.top_p:g}" if run.top_p < 1 else ""), (f", top-k {run.top_k}" if run.top_k else "")
    sampling = f"temperature {run.temperature:g}{top_p}{top_k}" if run.temperature else "greedy"
    weights = f", {run.weights} weights" if run.weights else ""
    weights += ", run by transformers" if run.executor == "transformers" else ""
    filled = f" after {run.context_fill} tokens of filler" if run.context_fill else ""
    return (
        f"{run.target.name} ({run.target.layers} layers{weights}), {run.dtype}, {run.device}, {threads}{batches}, "
        f"{sampling}, up to {run.max_new_tokens} new tokens{filled}"
    )
