"""Click options from the fields of a settings dataclass (see benchctl.options.setting)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from benchctl.cli import completion
from benchctl.options import CommandLineOption

Command = Callable[..., None]


class FiniteRange(click.FloatRange):
    """A range of finite numbers: nan passes every bound, so it is refused explicitly, and inf as well."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def options_from(kind: type[Any], argument: str) -> Callable[[Command], Command]:
    """Gives a command an option for each `setting` of the dataclass `kind` and of the dataclasses in its fields.

    The command is called with one `kind` as the keyword `argument` in place of the single values.
    """

    def add(command: Command) -> Command:
        @wraps(command)
        def gather(**values: Any) -> None:
            command(**{argument: _build(kind, values)}, **values)

        with_options: Command = gather
        for option in reversed(list(_click_options(kind))):
            with_options = option(with_options)
        return with_options

    return add


def _build(kind: type[Any], values: dict[str, Any]) -> Any:
    """A `kind`, whose values are taken out of `values`."""
    hints = get_type_hints(kind)
    own = {each.name: _build(hints[each.name], values) for each in fields(kind) if is_dataclass(hints[each.name])}
    own |= {each.name: values.pop(each.name) for each in fields(kind) if each.name in values}
    return kind(**own)


def _click_options(kind: type[Any]) -> Iterator[Callable[[Command], Command]]:
    hints = get_type_hints(kind)
    for each in fields(kind):
        hint = hints[each.name]
        if is_dataclass(hint):
            assert isinstance(hint, type)
            yield from _click_options(hint)
        elif (spec := each.metadata.get(CommandLineOption)) is not None:
            word, default = each.name.replace("_", "-"), each.default
            negatable = f"--{word}/--no-{word}" if default else f"--{word}"
            details: dict[str, Any] = {"help": spec.help, "metavar": spec.metavar, "default": default}
            details["show_default"] = default is not None and default is not False and default not in ("", ())
            if hint is bool:
                details["is_flag"] = True
            else:
                details |= {"type": _click_type(hint, spec), "multiple": get_origin(hint) is tuple}
            if spec.completion:
                details["shell_complete"] = getattr(completion, spec.completion)
            flags = spec.flags or (negatable if hint is bool else f"--{word}",)
            yield click.option(*flags, each.name, **details)


def _click_type(hint: Any, spec: CommandLineOption) -> click.ParamType[Any]:
    if spec.choices:
        return click.Choice(spec.choices)
    if get_origin(hint) is Literal:
        return click.Choice(list(get_args(hint)))
    if get_origin(hint) in (Union, UnionType, tuple):
        return _click_type(next(inner for inner in get_args(hint) if inner not in (NoneType, ...)), spec)
    if hint is Path:
        return click.Path(path_type=Path)
    if hint is float:
        least = spec.least if spec.above is None else spec.above
        return FiniteRange(least, spec.most, min_open=spec.above is not None)
    if hint is int and spec.least is None and spec.most is None:
        return click.INT
    if hint is int:
        return click.IntRange(
            None if spec.least is None else int(spec.least), None if spec.most is None else int(spec.most)
        )
    return click.STRING


def given(context: click.Context) -> Iterator[click.Parameter]:
    """The parameters that stand on the command line."""
    for parameter in context.command.params:
        if context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE:
            yield parameter


def typed(option: click.Parameter, value: Any, separator: str) -> Iterator[str]:
    """`--limit=3` for an option with a value, once for each of several values; `--watch` or `--no-watch` for a flag."""
    if isinstance(value, bool):
        yield (option.opts if value else option.secondary_opts)[0]
        return
    for each in value if isinstance(value, tuple) else (value,):
        yield f"{option.opts[0]}{separator}{each}"
