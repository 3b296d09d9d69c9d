"""What verbs share: options from the fields of a settings dataclass (see benchctl.options.setting), and the files that
the command line names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import wraps
from glob import glob, has_magic
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from benchctl.errors import UserError
from benchctl.options import CommandLineOption

if TYPE_CHECKING:
    from benchctl.analysis.comparison import Group
    from benchctl.records.scores import Score
    from benchctl.records.writer import RunFile

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
            flags = spec.flags or (negatable if hint is bool else f"--{word}",)
            yield click.option(*flags, each.name, **details)


def _click_type(hint: Any, spec: CommandLineOption) -> click.ParamType[Any]:
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


def read_files(names: Sequence[str]) -> list[RunFile]:
    """The files of `names`, which may be patterns such as results/*.jsonl. Prints what is left out of them on stderr.

    Files of scores, which such a pattern also matches, are skipped.

    Files without generations are left out. Raises UserError where no file has any, for a pattern without a match, for a
    file that cannot be read, and for a copy of another one.
    """
    from benchctl.records.scores import is_scores
    from benchctl.records.writer import scan

    paths = [path for path in paths_of(names) if not is_scores(path)]
    if names and not paths:
        raise UserError(
            "scores_not_results",
            f"{names[0]}: contains scores, not results. Name the results file next to it, or use --scores.",
        )
    files = [scan(path) for path in paths]
    for file in files:
        for notice in file.notices:
            click.echo(f"Note: {notice}", err=True)
        if not file.rows:
            click.echo(f"Note: {file.path}: contains no generations yet and is left out.", err=True)
    full = [file for file in files if file.rows]
    if files and not full:
        raise UserError("no_generations", "No file has generations. Run `benchctl run`, or continue it with --resume.")
    for number, file in enumerate(full):
        for earlier in full[:number]:
            # A run that is read twice would count as two sessions and narrow every interval.
            if earlier.run == file.run and earlier.rows[0] == file.rows[0]:
                raise UserError(
                    "same_run_twice",
                    f"{file.path}: contains the same run as {earlier.path}, which would count twice. Name only one.",
                )
    return full


def read_scores(names: Sequence[str]) -> list[Score]:
    """The scores in files, patterns expanded; each judgement once. Raises as `read_files` does."""
    from benchctl.records.scores import once
    from benchctl.records.scores import read_scores as read

    files = [read(path) for path in paths_of(names)]
    for notice in (notice for file in files for notice in file.notices):
        click.echo(f"Note: {notice}", err=True)
    return list(once(score for file in files for score in file.scores))


def print_warnings(groups: Sequence[Group]) -> None:
    """Print the warnings about the figures on stderr, for outputs without room for them."""
    from benchctl.analysis.warnings import warnings

    for group in groups:
        for warning in warnings(group):
            click.echo(f"Warning: {warning.text}", err=True)


def paths_of(names: Sequence[str]) -> list[Path]:
    """The files that `names` mean, each once, patterns expanded. Raises UserError for a pattern without a match."""
    paths: dict[Path, Path] = {}
    for name in names:
        matches = sorted(glob(name)) if has_magic(name) and not Path(name).exists() else [name]
        if not matches:
            raise UserError(
                "no_file_matches", f"no file matches {name}. Name results files, or measure first with `benchctl run`."
            )
        for path in map(Path, matches):
            paths.setdefault(path.resolve(), path)
    return list(paths.values())


def check_comparable(groups: Sequence[Group], error: type[UserError] = UserError) -> None:
    """Raises the error, naming what differs, unless all files may be compared with each other."""
    if len(groups) > 1:
        differing = [
            f"{group.files[0].path} differs in {', '.join(each.field for each in group.differs)}"
            for group in groups[1:]
        ]
        raise error(
            "runs_not_comparable",
            f"not all files can be compared with {groups[0].files[0].path}: {'; '.join(differing)}. Name only files of "
            f"one of these {len(groups)} groups.",
        )
