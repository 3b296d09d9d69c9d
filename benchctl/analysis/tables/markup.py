"""Paragraphs and grids, of which a comparison as text consists, in Markdown and in LaTeX."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Row = tuple[str, ...]
Kind = Literal["plain", "finding", "note", "warning"]
_SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"}
_SPECIAL |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "±": r"$\pm$"}


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
        yield "\n".join(f"| {' | '.join(row)} |" for row in (part.head, rule, *rows))


def _tex(part: Paragraph | Grid) -> Iterator[str]:
    if isinstance(part, Paragraph):
        yield from (f"% {line}" for line in part.lines)
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
