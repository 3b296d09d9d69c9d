"""Reports made in code, and what a parser of HTML finds in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fixtures_records import DRAFTED, KOALA, MT_BENCH, RUN, usual_rows, write

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.html.report import report
from benchctl.records.schema import Row, Run
from benchctl.records.writer import read

HOSTILE = "\"'><script>hacked=1</script><img src=x onerror='hacked=1'><!-- \u2028 &amp; </script> ]]> 😀"
TWO_SUITES = replace(RUN, suites=(KOALA, MT_BENCH))


def two_suites() -> list[Row]:
    return [replace(row, suite=suite) for suite in ("koala", "mt-bench") for row in usual_rows()]


def hostile_file(tmp_path: Path) -> Path:
    """A file in which everything that a user or a model may have written tries to be more than text."""
    label = f"{DRAFTED[:-1]},x={HOSTILE}]"
    rows = [
        replace(row, prompt_id=f"{row.prompt_id}{HOSTILE}", text=f"{row.label} says {HOSTILE}") for row in usual_rows()
    ]
    rows = [replace(row, label=label) if row.label == DRAFTED else row for row in rows]
    methods = tuple(
        replace(method, label=label) if method.label == DRAFTED else replace(method, reason=HOSTILE)
        for method in RUN.methods
    )
    run = replace(RUN, methods=methods, command=("benchctl", HOSTILE), machine={**RUN.machine, "cpu": HOSTILE})
    return write(tmp_path / "hostile.jsonl", rows, run)


def groups_of(
    tmp_path: Path, rows: Sequence[Row] | None = None, run: Run = RUN, name: str = "run"
) -> tuple[Group, ...]:
    """Through a file of this name."""
    return compare([read(write(tmp_path / f"{name}.jsonl", usual_rows() if rows is None else rows, run))])


@cache
def usual_groups() -> tuple[Group, ...]:
    """Of the usual rows; made once, as a comparison takes as long as the rest of a test."""
    with TemporaryDirectory() as folder:
        return groups_of(Path(folder))


@cache
def usual_page() -> str:
    return page_of(usual_groups())


def page_of(groups: Sequence[Group]) -> str:
    return report(groups, frozenset(), made="Made in a test.").html


@dataclass
class Element:
    name: str
    attributes: dict[str, str | None]
    text: str = ""


@dataclass
class Parsed:
    elements: list[Element] = field(default_factory=list)

    def named(self, name: str) -> list[Element]:
        return [element for element in self.elements if element.name == name]

    @property
    def answers(self) -> dict[str, Any]:
        """What the JSON of the page holds."""
        island = next(element for element in self.named("script") if element.attributes.get("id") == "answers")
        found: dict[str, Any] = json.loads(island.text)
        return found


class _Parser(HTMLParser):
    """Every element with the text in it, down to the elements inside that are text themselves, such as <span>."""

    def __init__(self) -> None:
        super().__init__()
        self.parsed = Parsed()
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.parsed.elements.append(element)
        if tag not in ("meta", "input", "wbr", "br", "link", "img"):
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].name == tag, f"</{tag}> closes <{self._open[-1].name}>"
        self._open.pop()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parsed.elements.append(Element(tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data


def parse(page: str) -> Parsed:
    """Raises AssertionError where a tag closes another than the one that is open."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    assert parser._open == []
    return parser.parsed
