"""A comparison as text: tables for the terminal and as Markdown, with what to know about it."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.tables.columns import Block, agreement_sentences, brief, judge_blocks, metric_blocks
from benchctl.analysis.warnings import warnings
from benchctl.analysis.winner import fastest, sentence
from benchctl.records.schema import Run
from benchctl.records.writer import read

Format = Literal["table", "brief", "md", "csv", "json"]
WIDTH = 80
_BETWEEN = 2  # characters between two columns


def summary(paths: Sequence[Path | str], format: Format = "table", width: int = WIDTH) -> str:
    """The figures of results files as text, see `render`.

    Raises UserError for files that cannot be read or hold no generations.
    """
    return render(compare([read(path) for path in paths], ()), format, width)


def render(groups: Sequence[Group], format: Format = "table", width: int = WIDTH) -> str:
    """A comparison as text, without a newline at its end.

    `table` and `brief`, one table of all suites together, have colours, which click.echo drops where there is no
    terminal.
    """
    from benchctl.analysis.tables.export import to_csv, to_json

    if format == "csv":
        return to_csv(groups)
    if format == "json":
        return to_json(groups)
    if format == "md":
        return "\n\n".join(part for group in groups for part in _markdown(groups, group))
    return _terminal(groups, width, is_brief=format == "brief")


def blocks(group: Group) -> tuple[Block, ...]:
    """All tables of a group."""
    return (*metric_blocks(group), *judge_blocks(group))


def heading(groups: Sequence[Group], group: Group) -> Iterator[str]:
    """The files of a group, what sets it apart from the first group, its baseline and settings."""
    if len(groups) > 1:
        names = ", ".join(str(file.path) for file in group.files)
        yield f"Group {groups.index(group) + 1} of {len(groups)}: {names}"
    if group.differs:
        differing = "; ".join(f"{each.field} is {each.second}, there {each.first}" for each in group.differs)
        yield f"Not comparable with group 1: {differing}."
    yield f"Baseline {group.run.baseline} on {_settings(group.run)}."


def note(group: Group) -> str:
    """How the figures and their intervals are computed."""
    sessions = f", repeats and {group.sessions} sessions" if group.sessions > 1 else " and repeats of one session"
    return (
        "Ratios of sums over the prompts that both the method and the baseline answered; "
        f"[95% interval, paired jackknife over prompts{sessions}]."
    )


def _settings(run: Run) -> str:
    if run.imported:
        return f"{run.target.name}, imported from files of {run.imported}"
    threads = "1 thread" if run.threads == 1 else f"{run.threads} threads"
    batches = f", batches of up to {run.batch_size} (times are those of whole batches)" if run.batch_size > 1 else ""
    top_p, top_k = (f", top-p {run.top_p:g}" if run.top_p < 1 else ""), (f", top-k {run.top_k}" if run.top_k else "")
    sampling = f"temperature {run.temperature:g}{top_p}{top_k}" if run.temperature else "greedy"
    filled = f" behind {run.context_fill} tokens of filler" if run.context_fill else ""
    return (
        f"{run.target.name} ({run.target.layers} layers), {run.executor} executor, {run.dtype}, {run.device}, "
        f"{threads}{batches}, {sampling}, up to {run.max_new_tokens} new tokens{filled}"
    )


def _terminal(groups: Sequence[Group], width: int, *, is_brief: bool) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=True, highlight=False)
    for group in groups:
        for line in heading(groups, group):
            console.print(Text(line))
        shown = replace(group, suites=(group.pooled,)) if is_brief else group
        for block in (brief(group),) if is_brief else blocks(group):
            console.print()
            console.print(_table(block, shown, width))
        console.print()
        console.print(Text(note(group), style="dim"))
        for agreement in agreement_sentences(group):
            console.print()
            console.print(Text(agreement))
        if winner := fastest(group):
            console.print()
            console.print(Text(sentence(group, winner), style="green"))
        console.print()
        for warning in warnings(group):
            console.print(Text(f"Warning: {warning.text}", style="yellow"))
        console.print()
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _table(block: Block, group: Group, width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    methods = [method for suite in group.suites for method in suite.methods]
    texts = ((*column.title.split(), *map(column.cell, methods)) for column in block.columns)
    room = width - sum(_BETWEEN + max(map(len, of_column)) for of_column in texts)
    lines = max(2, *(len(column.title.split()) for column in block.columns))
    table.add_column(_at_bottom([block.title, "method"], lines), overflow="fold")
    for column in block.columns:
        table.add_column(_at_bottom(column.title.split(), lines), justify="right", no_wrap=True)
    for suite in group.suites:
        if len(group.suites) > 1:
            table.add_row(Text(group.title(suite), style="italic"))
        for method in suite.methods:
            label = _filled(method.label_lines, room)
            table.add_row(Text(label), *(Text(column.cell(method)) for column in block.columns))
        table.add_section()
    return table


def _filled(parts: Sequence[str], room: int) -> str:
    """A method's name and its options, as many on each line as `room` characters hold."""
    lines = [parts[0]]
    for option in parts[1:]:
        if len(lines[-1]) + 1 + len(option) <= room:
            lines[-1] += f" {option}"
        else:
            lines.append(f" {option}")
    return "\n".join(lines)


def _at_bottom(words: Sequence[str], lines: int) -> str:
    return "\n".join(["" for _ in range(lines - len(words))] + list(words))


def _markdown(groups: Sequence[Group], group: Group) -> Iterator[str]:
    yield from heading(groups, group)
    columns = [column for block in blocks(group) for column in block.columns]
    for suite in group.suites:
        yield f"**{group.title(suite)}**"
        lines = [["method", *(column.title for column in columns)], ["---", *("---:" for _ in columns)]]
        lines += [[f"`{method.label}`", *(column.cell(method) for column in columns)] for method in suite.methods]
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines)
    yield note(group)
    yield from agreement_sentences(group)
    if winner := fastest(group):
        yield sentence(group, winner)
    if of_group := warnings(group):
        yield "\n".join(f"* {warning.text}" for warning in of_group)
