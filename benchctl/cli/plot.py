"""`benchctl plot`: pictures of the figures in results files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from benchctl.analysis.plots.catalogue import helps
from benchctl.cli import completion as completing

if TYPE_CHECKING:
    from benchctl.analysis.comparison import Group
    from benchctl.analysis.plots.catalogue import Plot, Request
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


def _size(context: click.Context, parameter: click.Parameter, size: str) -> str:
    if size == "page":
        click.echo("Note: --size page is now called --size screen.", err=True)
        return "screen"
    return size


@click.command()
@click.argument("files", nargs=-1, metavar="[FILES]...", shell_complete=completing.files)
@_picture_flags
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Picture to write: .png, .svg or .pdf.  [default: results/ and the name of the picture, .png]",
)
@click.option(
    "--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Colour of the ground."
)
@click.option(
    "--size",
    type=click.Choice(["screen", "column", "slide", "page"]),
    metavar="[screen|column|slide]",
    default="screen",
    show_default=True,
    callback=_size,
    help="7.2 inches wide; one column of a paper (3.35 inches wide, text of 7 points or more); a slide (13.33 x 7.5 "
    "inches, text of 16 points or more).",
)
@click.option("--suite", "suites", multiple=True, metavar="NAME", help="Use this suite only. May be repeated.")
@click.option("--by-suite", is_flag=True, help="Draw a panel for each suite, instead of all suites together.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="LABEL",
    shell_complete=completing.labels,
    help="Draw this method only: a label, or a name for all its labels. May be repeated.",
)
@click.option(
    "--y",
    type=click.Choice(["agreement", "verdict", "quality", "exact", "target-agreement"]),
    default=None,
    help="Vertical axis of --pareto: token agreement, the share of answers that are the target's own, a judge's score, "
    "exact match (of --bench tasks), or target agreement.  [default: agreement]",
)
@click.option("--judge", default="", metavar="NAME", help="The judge for --y quality: its name or a part of it.")
@click.option("--by", default="", metavar="OPTION", help="Option along which --sweep goes.  [default: most values]")
@click.pass_context
def plot(
    context: click.Context, /, files: tuple[str, ...], out: Path | None, theme: str, size: str, **options: Any
) -> None:
    """Draw one picture of results files (by default results/*.jsonl), all their suites together.

    Runs that cannot be compared, because a setting differs, get a panel each. Sampled runs have no token agreement, so
    --pareto leaves them out. An option that the picture does not use is refused.

    \b
    Examples:
      benchctl plot --pareto
      benchctl plot --pareto results/first.jsonl --out first.svg
      benchctl plot --pareto --by-suite --theme dark --size slide --out talk.png
      benchctl plot --pareto --y exact results/tasks.jsonl
      benchctl plot --pareto --y quality --judge gpt results/first.jsonl
      benchctl plot --acceptance --suite koala --size column --out paper.pdf
      benchctl plot --latency --method two_model results/first.jsonl
      benchctl plot --waterfall results/profiled.jsonl
      benchctl plot --sweep --method two_model --by draft_tokens
      benchctl plot --alignment my-m2r2 --out alignment.png
    """
    asked = context.meta.get(_ASKED, [])
    if len(asked) != 1:
        raise click.UsageError(f"name one picture: {', '.join(f'--{name}' for name in helps())}.")
    from benchctl.analysis.plots import catalogue
    from benchctl.analysis.plots.axes import check_image, save
    from benchctl.analysis.plots.style import style_of
    from benchctl.cli.inputs import print_warnings

    (name,) = asked
    picture = catalogue.plot(name)
    for option, value in options.items():
        if value and option not in picture.options:
            raise click.UsageError(f"--{name} does not use {_FLAGS.get(option, f'--{option}')}.")
    if options["judge"] and options["y"] != "quality":
        raise click.UsageError("--judge needs --y quality.")
    out = out or Path(f"results/{name}.png")
    check_image(out)
    request = catalogue.Request(
        style=style_of(theme, size),
        paths=tuple(map(Path, files)),
        methods=options["methods"],
        y=options["y"] or "",
        judge=options["judge"],
        by=options["by"],
    )
    groups = _groups(picture, request, files, options["suites"]) if picture.reads_results else ()
    drawing = picture.draw(_panels(groups, by_suite=options["by_suite"]), request)
    save(drawing.figure, out)
    print_warnings(groups)
    for note in drawing.notes:
        click.echo(f"Note: {note}", err=True)
    click.echo(f"Plot: {out}")


def _groups(picture: Plot, request: Request, names: Sequence[str], suites: Sequence[str]) -> tuple[Group, ...]:
    from benchctl.analysis.comparison import compare, only_suites
    from benchctl.cli.inputs import read_files

    files = read_files(names or ("results/*.jsonl",))
    files = only_suites(files, suites) if suites else files
    files = _greedy(files) if picture.needs_greedy(request) else files
    return compare(files, ()) if "judge" in picture.options else compare(files)


def _panels(groups: tuple[Group, ...], *, by_suite: bool) -> tuple[Group, ...]:
    from benchctl.analysis import comparison

    return comparison.by_suite(groups) if by_suite else groups


def _greedy(files: list[RunFile]) -> list[RunFile]:
    """The runs without sampling. All where none is, so that the picture refuses them with its reason."""
    greedy = [file for file in files if file.run.temperature == 0]
    if not greedy:
        return files
    for file in files:
        if file.run.temperature > 0:
            click.echo(f"Note: {file.path}: was sampled, so it has no token agreement and is left out.", err=True)
    return greedy
