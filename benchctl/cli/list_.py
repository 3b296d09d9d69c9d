"""`benchctl list`: the methods, engines, judges, suites and embedded models of this installation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

_Line = dict[str, Any]  # what --json prints of a method, engine, judge, suite or model


@click.command(name="list", no_args_is_help=True)
@click.argument("kind", type=click.Choice(["methods", "engines", "judges", "suites", "models"]))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def list_(kind: str, as_json: bool) -> None:
    """List the methods, engines, judges, suites or models of this installation.

    \b
    Examples:
      benchctl list methods
      benchctl list models --json
    """
    lines_of, columns = _LISTINGS[kind]
    lines = lines_of()
    if as_json:
        click.echo(json.dumps(lines, indent=2))
    else:
        _print_table(lines, columns)


def _methods() -> list[_Line]:
    from benchctl.registry import METHODS, build, method_class, names

    return [
        {
            "name": name,
            # The nearest base class that decoding provides.
            "family": next(
                (base.__name__ for base in kind.__mro__ if base.__module__.startswith("benchctl.decoding")), "Method"
            ),
            "exactness": build(name).exactness,  # that of the default options
            **_described(kind),
        }
        for name, kind in ((name, method_class(name)) for name in names(METHODS))
    ]


def _plugins(group: str) -> list[_Line]:
    """Engines or judges."""
    from benchctl.registry import class_of, names

    return [{"name": name, **_described(class_of(group, name))} for name in names(group)]


def _described(owner: type[object]) -> _Line:
    """The options, and the first line of the docstring."""
    from benchctl.options import options_of

    description = (owner.__doc__ or "").strip().partition("\n")[0].replace("``", "")
    return {"options": list(map(asdict, options_of(owner))), "description": description}


def _suites() -> list[_Line]:
    from benchctl.measuring.prompts.suites import SUITES

    return [
        {
            "name": suite.name,
            "published": None if suite.own else suite.prompts,
            "embedded": suite.embedded_prompts or None,
            "turns": suite.turns,
            "licence": suite.licence,
            "address": suite.address,
        }
        for suite in SUITES
    ]


def _models() -> list[_Line]:
    from benchctl.bundled import models

    return [{**asdict(model), "size": f"{model.bytes / 1e6:.1f} MB"} for model in models()]


_LISTINGS: dict[str, tuple[Callable[[], list[_Line]], tuple[str, ...]]] = {
    "methods": (_methods, ("name", "family", "exactness", "description")),
    "engines": (partial(_plugins, "benchctl.engines"), ("name", "description")),
    "judges": (partial(_plugins, "benchctl.judges"), ("name", "description")),
    "suites": (_suites, ("name", "published", "embedded", "turns", "licence")),
    "models": (_models, ("name", "role", "parameters", "size", "licence", "data")),
}


def _print_table(lines: Sequence[_Line], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False)
    for line in lines:
        cells = [
            "–" if line[key] is None else format(line[key], "," if isinstance(line[key], int) else "")
            for key in columns
        ]
        if line.get("options"):
            cells[-1] += "\n" + ", ".join(f"{option['name']}={option['default']}" for option in line["options"])
        table.add_row(*map(Text, cells))
    Console(highlight=False).print(table)
