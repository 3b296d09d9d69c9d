"""`benchctl list`: what there is to run and to judge with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click

from benchctl.bundled import PackModel

if TYPE_CHECKING:
    from benchctl.decoding.method import Method
    from benchctl.options import Option


@dataclass(frozen=True)
class _MethodLine:
    """What the listing says of a method; exactness is that of its default options."""

    name: str
    family: str
    exactness: str
    options: tuple[Option, ...]
    description: str


@dataclass(frozen=True)
class _JudgeLine:
    """What the listing says of a judge."""

    name: str
    options: tuple[Option, ...]
    description: str


@dataclass(frozen=True)
class _BenchLine:
    """What the listing says of a suite: prompts in the published file, if there is one, and embedded here."""

    name: str
    published: int | None
    embedded: int
    turns: int
    licence: str
    address: str


@dataclass(frozen=True)
class _ModelLine(PackModel):
    """What the index of the pack says of a model, and the size of its weights for people."""

    size: str = field(kw_only=True)


@click.command(name="list", no_args_is_help=True)
@click.argument("kind", type=click.Choice(["methods", "judges", "benches", "models"]))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def list_(kind: str, as_json: bool) -> None:
    """List the methods, the judges, the benches (prompt suites) or the embedded models.

    \b
    Examples:
      benchctl list methods
      benchctl list models --json
    """
    rows, columns = _LISTINGS[kind]
    lines = [asdict(row) for row in rows()]
    if as_json:
        click.echo(json.dumps(lines, indent=2))
        return
    _print_table(lines, columns)


def _methods() -> Sequence[_MethodLine]:
    from benchctl.registry import method_names

    return [_describe(name) for name in method_names()]


def _describe(name: str) -> _MethodLine:
    from benchctl.registry import build, method_class, method_options

    method_type = method_class(name)
    description = _first_line(method_type)
    return _MethodLine(name, _family(method_type), build(name).exactness, method_options(name), description)


def _family(method_type: type[Method]) -> str:
    """The base class that a method is written against: the nearest one that decoding provides."""
    families = (base.__name__ for base in method_type.__mro__ if base.__module__.startswith("benchctl.decoding"))
    return next(families, "Method")


def _first_line(owner: type[object]) -> str:
    return (owner.__doc__ or "").strip().partition("\n")[0].replace("``", "")


def _judges() -> Sequence[_JudgeLine]:
    from benchctl.registry import judge_class, judge_names, judge_options

    return [_JudgeLine(name, judge_options(name), _first_line(judge_class(name))) for name in judge_names()]


def _benches() -> Sequence[_BenchLine]:
    from benchctl.measuring.prompts.suites import SUITES

    return [
        _BenchLine(
            suite.name,
            None if suite.own else suite.prompts,
            suite.embedded_prompts,
            suite.turns,
            suite.licence,
            suite.address,
        )
        for suite in SUITES
    ]


def _models() -> Sequence[_ModelLine]:
    from benchctl.bundled import models

    return [_ModelLine(size=f"{model.bytes / 1e6:.1f} MB", **asdict(model)) for model in models()]


_LISTINGS: dict[str, tuple[Callable[[], Sequence[Any]], tuple[str, ...]]] = {
    "methods": (_methods, ("name", "family", "exactness", "description")),
    "judges": (_judges, ("name", "description")),
    "benches": (_benches, ("name", "published", "embedded", "turns", "licence")),
    "models": (_models, ("name", "role", "parameters", "size", "licence", "data")),
}


def _print_table(lines: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not lines:
        click.echo("None in this installation.")
        return
    table = Table(*columns, box=None, pad_edge=False)
    for line in lines:
        table.add_row(*(Text(_cell(line, column)) for column in columns))
    Console(highlight=False).print(table)


def _cell(line: dict[str, Any], column: str) -> str:
    value = line[column]
    if column == "description" and line.get("options"):
        options = ", ".join(f"{option['name']}={option['default']}" for option in line["options"])
        return f"{value}\n{options}"
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else str(value)
