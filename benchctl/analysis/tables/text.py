"""A comparison as text: tables for the terminal and as Markdown, CSV and JSON, with what to know about it."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchctl.analysis.frame.comparison import Group, compare
from benchctl.analysis.frame.sessions import note
from benchctl.analysis.gate import Gates
from benchctl.analysis.judges.figures import with_judgements
from benchctl.analysis.stats.winner import fastest, sentence
from benchctl.analysis.tables.cells import Block, Column
from benchctl.analysis.tables.columns import BRIEF, blocks
from benchctl.analysis.tables.export import to_csv, to_json
from benchctl.analysis.tables.judges import agreement_sentences
from benchctl.analysis.warnings import cautions
from benchctl.records.schema import Run
from benchctl.records.writer import read

Format = Literal["table", "brief", "md", "csv", "json"]
WIDTH = 80
_BETWEEN = 2  # characters between two columns


def summary(paths: Sequence[Path | str], format: Format = "table", width: int = WIDTH) -> str:
    """The figures of results files as text. `table` and `brief`, one table of all suites together, have colours, which
    click.echo drops where there is no terminal.

    Raises UserError for files that cannot be read or hold no generations.
    """
    return render(with_judgements(compare([read(path) for path in paths])), format, width)


def render(
    groups: Sequence[Group],
    format: Format = "table",
    width: int = WIDTH,
    floor: float = 0.0,
    gates: Gates | None = None,
) -> str:
    """A comparison as text, without a newline at its end. No difference in speed below `floor` is called one. What it
    was held to is in the JSON; beside the tables it is told on stderr."""
    if format == "csv":
        return to_csv(groups)
    if format == "json":
        return to_json(groups, floor, gates)
    return _markdown(groups, floor) if format == "md" else _terminal(groups, width, floor, brief=format == "brief")


def heading(groups: Sequence[Group], group: Group) -> Iterator[str]:
    """What a group is of: its files, what sets it apart from the first, its baseline and settings."""
    if len(groups) > 1:
        names = ", ".join(str(file.path) for file in group.files)
        yield f"Group {groups.index(group) + 1} of {len(groups)}: {names}"
    if group.differs:
        differing = "; ".join(f"{found.field} is {found.other}, there {found.one}" for found in group.differs)
        yield f"Not comparable with group 1: {differing}."
    yield f"Baseline {group.run.baseline} on {_settings(group.run)}."


def _settings(run: Run) -> str:
    if run.imported:
        return f"{run.target.name}, imported from files of {run.imported}"
    threads = "1 thread" if run.threads == 1 else f"{run.threads} threads"
    batches = f", batches of up to {run.batch_size}" if run.batch_size > 1 else ""
    filled = f" behind {run.context_fill} tokens of filler" if run.context_fill else ""
    return (
        f"{run.target.name} ({run.target.layers} layers), {run.executor} executor, {run.dtype}, {run.device}, "
        f"{threads}{batches}, {_sampling(run)}, up to {run.max_new_tokens} new tokens{filled}"
    )


def _sampling(run: Run) -> str:
    if run.temperature == 0:
        return "greedy"
    top_p = f", top-p {run.top_p:g}" if run.top_p < 1 else ""
    top_k = f", top-k {run.top_k}" if run.top_k else ""
    return f"temperature {run.temperature:g}{top_p}{top_k}"


def _terminal(groups: Sequence[Group], width: int, floor: float, *, brief: bool) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=True, highlight=False)
    for group in groups:
        for line in heading(groups, group):
            console.print(Text(line))
        for block in (BRIEF,) if brief else blocks(group):
            console.print()
            console.print(_table(block, replace(group, suites=(group.pooled,)) if brief else group, width))
        console.print()
        console.print(Text(note(group), style="dim"))
        for agreed in agreement_sentences(group):
            console.print()
            console.print(Text(agreed))
        if winner := fastest(group, floor):
            console.print()
            console.print(Text(sentence(group, winner), style="green"))
        console.print()
        for caution in cautions(group, floor):
            console.print(Text(f"Note: {caution}", style="yellow"))
        console.print()
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _table(block: Block, group: Group, width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    room = width - sum(_BETWEEN + _widest(group, column) for column in block.columns)
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


def _widest(group: Group, column: Column) -> int:
    cells = (column.cell(method) for suite in group.suites for method in suite.methods)
    return max(len(text) for text in (*column.title.split(), *cells))


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


def _markdown(groups: Sequence[Group], floor: float) -> str:
    return "\n\n".join("\n\n".join(_markdown_parts(groups, group, floor)) for group in groups)


def _markdown_parts(groups: Sequence[Group], group: Group, floor: float) -> Iterator[str]:
    yield from heading(groups, group)
    columns = [column for block in blocks(group) for column in block.columns]
    for suite in group.suites:
        yield f"**{group.title(suite)}**"
        lines = [["method", *(column.title for column in columns)], ["---", *("---:" for _ in columns)]]
        lines += [[f"`{method.label}`", *(column.cell(method) for column in columns)] for method in suite.methods]
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines)
    yield note(group)
    yield from agreement_sentences(group)
    if winner := fastest(group, floor):
        yield sentence(group, winner)
    if found := cautions(group, floor):
        yield "\n".join(f"* {caution}" for caution in found)
