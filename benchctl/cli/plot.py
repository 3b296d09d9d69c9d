"""`benchctl plot`: pictures of the figures in results files."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from benchctl.analysis.plots.catalogue import helps
from benchctl.cli.options import options_from
from benchctl.options import setting

if TYPE_CHECKING:
    from benchctl.records.writer import RunFile

_ASKED: Final = "benchctl.pictures"  # key of the context: the pictures that the command line names
_FLAGS: Final = {"suites": "--suite", "by_suite": "--by-suite", "methods": "--method"}  # others: -- and their name


def _ask(context: click.Context, flag: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        context.meta.setdefault(_ASKED, []).append(flag.name)


def _picture_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each picture."""
    for name, text in reversed(helps().items()):
        command = click.option(
            f"--{name.replace('_', '-')}", name, is_flag=True, expose_value=False, callback=_ask, help=text
        )(command)
    return command


@dataclass(frozen=True)
class _Output:
    """Where a picture goes, and its look."""

    out: Path | None = setting(
        None, "Picture to write: .png, .svg or .pdf.  [default: results/ and the name of the picture, .png]"
    )
    size: Literal["screen", "column"] = setting(
        "screen", "7.2 inches wide; or one column of a paper (3.35 x 3 inches at most, text of 7 points or more)."
    )


@dataclass(frozen=True)
class _Options:
    """What a picture may use."""

    suites: tuple[str, ...] = setting((), "Use this suite only. May be repeated.", flags=("--suite",), metavar="NAME")
    by_suite: bool = setting(False, "Draw a panel for each suite, instead of all suites together.")
    methods: tuple[str, ...] = setting(
        (),
        "Draw this method only: a label, or a name for all its labels. May be repeated.",
        flags=("--method",),
        metavar="LABEL",
    )
    quality: Literal["target-agreement", "agreement", "verdict", "quality", "exact"] | None = setting(
        None,
        "Vertical axis of --pareto: agreement with the target token by token (target-agreement), up to the first "
        "difference (agreement), answers that are the target's own (verdict), a judge's score (quality), or correct "
        "answers (exact, where prompts have exact answers).  [default: target-agreement, or agreement where it was "
        "not measured]",
        metavar="NAME",
    )
    judge: str = setting("", "The judge for --quality quality: its name or a part of it.", metavar="NAME")
    by: str = setting("", "Option along which --sweep goes.  [default: most values]", metavar="OPTION")


@click.command()
@click.argument("files", nargs=-1, metavar="[FILES]...")
@_picture_flags
@options_from(_Output, "output")
@options_from(_Options, "options")
@click.pass_context
def plot(context: click.Context, output: _Output, options: _Options, files: tuple[str, ...]) -> None:
    """Draw one picture of results files (by default results/*.jsonl), all their suites together.

    Runs that cannot be compared, because a setting differs, get a panel each. Sampled answers cannot be compared token
    by token, so --pareto leaves sampled runs out. An option that the picture does not use is an error.

    \b
    Examples:
      benchctl plot --pareto
      benchctl plot --pareto results/first.jsonl --out first.svg
      benchctl plot --pareto --by-suite --out suites.png
      benchctl plot --pareto --quality exact results/tasks.jsonl
      benchctl plot --pareto --quality quality --judge gpt results/first.jsonl
      benchctl plot --acceptance --suite koala --size column --out paper.pdf
      benchctl plot --latency --method two_model results/first.jsonl
      benchctl plot --waterfall results/profiled.jsonl
      benchctl plot --sweep --method two_model --by draft_tokens
    """
    asked = context.meta.get(_ASKED, [])
    if len(asked) != 1:
        raise click.UsageError(f"name one picture: {', '.join(f'--{name}' for name in helps())}.")
    from benchctl.analysis.comparison import by_suite, compare, only_suites
    from benchctl.analysis.plots import catalogue
    from benchctl.analysis.plots.axes import check_image, save
    from benchctl.analysis.plots.style import SIZES
    from benchctl.analysis.warnings import warnings
    from benchctl.cli.options import read_files

    (name,) = asked
    picture = catalogue.plot(name)
    for option, value in vars(options).items():
        if value and option not in picture.options:
            raise click.UsageError(f"--{name} does not use {_FLAGS.get(option, f'--{option}')}.")
    if options.judge and options.quality != "quality":
        raise click.UsageError("--judge needs --quality quality.")
    out = output.out or Path(f"results/{name}.png")
    check_image(out)
    style = SIZES[output.size]
    request = catalogue.Request(style, options.methods, options.quality or "", options.judge, options.by)
    runs = read_files(files or ("results/*.jsonl",))
    runs = only_suites(runs, options.suites) if options.suites else runs
    runs = _greedy(runs) if picture.needs_greedy(request) else runs
    groups = compare(runs, ()) if "judge" in picture.options else compare(runs)
    drawing = picture.draw(by_suite(groups) if options.by_suite else groups, request)
    save(drawing.figure, out)
    if count := sum(len(warnings(group)) for group in groups):
        named = shlex.join(str(file.path) for group in groups for file in group.files)
        click.echo(f"{count} warning{'s' * (count > 1)}: benchctl compare --full {named}", err=True)
    for note in drawing.notes:
        click.echo(f"Note: {note}", err=True)
    click.echo(f"Plot: {out}")


def _greedy(files: list[RunFile]) -> list[RunFile]:
    """The runs whose answers were compared. All where none was, so that the picture refuses them with its reason."""
    left_out = {
        file.path: "was imported" if file.run.imported else "was sampled"
        for file in files
        if file.run.imported or file.run.temperature > 0
    }
    if len(left_out) == len(files):
        return files
    for path, why in left_out.items():
        click.echo(f"Note: {path}: {why}, so its answers were not compared token by token. It is left out.", err=True)
    return [file for file in files if file.path not in left_out]
