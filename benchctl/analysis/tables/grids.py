"""Paragraphs and grids, of which a comparison as text consists: for a terminal, in Markdown and in LaTeX."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = tuple[str, ...]
Kind = Literal["plain", "finding", "note", "warning"]
_SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"}
_SPECIAL |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "±": r"$\pm$"}
_BETWEEN = 2  # characters between two columns
_STYLES: Final[dict[Kind, str]] = {"plain": "", "finding": "green", "note": "dim", "warning": "yellow"}


@dataclass(frozen=True)
class Paragraph:
    """Lines of text; a terminal shows each `kind` in a colour."""

    lines: tuple[str, ...]
    kind: Kind = "plain"


@dataclass(frozen=True)
class Grid:
    """A table with a row for each method, which begins with its name. Several `sections` have their names as titles."""

    title: str
    head: Row
    sections: Mapping[str, tuple[Row, ...]]


Parts = Sequence[Paragraph | Grid]


def markdown(parts: Parts) -> str:
    return "\n\n".join(text for part in parts for text in _markdown(part))


def tex(parts: Parts) -> str:
    """Tables for the package booktabs, and paragraphs as comments."""
    return "\n".join(line for part in parts for line in (*_tex(part), ""))


def _markdown(part: Paragraph | Grid) -> Iterator[str]:
    if isinstance(part, Paragraph):
        yield "\n".join(f"* {line}" for line in part.lines) if part.kind == "warning" else "\n\n".join(part.lines)
        return
    for name, rows in part.sections.items():
        if title := ", ".join(filter(None, (part.title, name if len(part.sections) > 1 else ""))):
            yield f"**{title}**"
        rule = ("---", *("---:" for _ in part.head[1:]))
        cells = ([cell.replace("|", "\\|") for cell in row] for row in (part.head, rule, *rows))
        yield "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _tex(part: Paragraph | Grid) -> Iterator[str]:
    if isinstance(part, Paragraph):
        yield from (f"% {line}" for text in part.lines for line in text.splitlines())
        return
    if part.title:
        yield f"% {part.title}"
    yield f"\\begin{{tabular}}{{l{'r' * (len(part.head) - 1)}}}"
    yield "\\toprule"
    yield _tex_row(part.head)
    for name, rows in part.sections.items():
        yield "\\midrule"
        if len(part.sections) > 1:
            yield f"\\multicolumn{{{len(part.head)}}}{{l}}{{\\emph{{{_escaped(name)}}}}} \\\\"
        yield from map(_tex_row, rows)
    yield from ("\\bottomrule", "\\end{tabular}")


def _tex_row(cells: Row) -> str:
    """`1.42x [1.31, 1.55]` becomes `$1.42\\times$ [1.31, 1.55]`; a sign is one of mathematics."""
    figures = (re.sub(r"(?<![\w.])([-+])(?=\d)", r"$\1$", _escaped(cell)) for cell in cells[1:])
    figures = (re.sub(r"(\d+\.\d+)x", r"$\1\\times$", cell) for cell in figures)
    return f"{' & '.join((_escaped(cells[0]), *figures))} \\\\"


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)


def terminal(parts: Parts, width: int) -> str:
    """Text with colours, which click.echo drops where there is no terminal."""
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=True, highlight=False)
    for part in parts:
        if isinstance(part, Paragraph):
            for line in part.lines:
                console.print(Text(line, style=_STYLES[part.kind]))
            console.print()
            continue
        if part.title:
            console.print(Text(part.title, style="bold"))
        widths = _widths(part, width // 2)
        for columns in _fitting(widths, width):
            room = max(widths[0], width - sum(_BETWEEN + widths[at] for at in columns))
            console.print(_table(part, columns, room), soft_wrap=True)  # a narrower terminal wraps it, not a word
            console.print()
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _widths(grid: Grid, most: int) -> list[int]:
    """Characters that each column needs at least: for heads the longest word, for figures the longest one, for names
    the longest word or `most`."""
    rows = [row for rows in grid.sections.values() for row in rows]
    names = [cell_len(word) + bool(at) for row in rows for at, word in enumerate(row[0].split())]
    figures = [
        max(*(cell_len(word) for word in title.split()), *(cell_len(row[at]) for row in rows))
        for at, title in enumerate(grid.head)
    ]
    return [min(max([*names, len(grid.head[0])]), most), *figures[1:]]


def _fitting(widths: Sequence[int], width: int) -> list[range]:
    """The columns of each table: as few tables of equal size as fit next to the names."""
    for count in range(1, len(widths)):
        size = -(-(len(widths) - 1) // count)
        tables = [range(first, min(first + size, len(widths))) for first in range(1, len(widths), size)]
        if all(widths[0] + sum(_BETWEEN + widths[at] for at in columns) <= width for columns in tables):
            break
    return tables


def _table(grid: Grid, columns: Sequence[int], room: int) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    heads = [[grid.head[0]], *(grid.head[at].split() for at in columns)]
    lines = max(map(len, heads))
    for number, words in enumerate(heads):
        at_bottom = "\n".join([""] * (lines - len(words)) + words)
        table.add_column(at_bottom, justify="right" if number else "left", no_wrap=True)
    for name, rows in grid.sections.items():
        if len(grid.sections) > 1:
            table.add_row(_name(name, room, "italic"))
        for row in rows:
            table.add_row(_name(row[0], room), *(Text(row[at]) for at in columns))
        table.add_section()
    return table


def _name(name: str, room: int, style: str = "") -> Text:
    """A name on as many lines as it needs, each of at most so many cells of a terminal; some letters take two."""
    wide = max(1, max((cell_len(letter) for letter in name), default=1))
    return Text("\n".join(wrap(name, max(1, room // wide), subsequent_indent=" ", break_on_hyphens=False)), style)
