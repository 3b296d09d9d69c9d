"""`benchctl plot`: pictures of the figures in results files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Final

import click

from benchctl.cli import completing
from benchctl.cli.plot_pictures import PICTURES, Wishes

_ASKED: Final = "benchctl.pictures"  # in the context: those that the command line names
_SPELT: Final = {"suites": "--suite", "by_suite": "--by-suite", "methods": "--method"}


def _ask(context: click.Context, flag: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        context.meta.setdefault(_ASKED, []).append(flag.name)


def _flags(command: Callable[..., None]) -> Callable[..., None]:
    """One for each picture, in the order of their table."""
    for name, picture in reversed(list(PICTURES.items())):
        command = click.option(f"--{name}", is_flag=True, expose_value=False, callback=_ask, help=picture.help)(command)
    return command


@click.command()
@click.argument("files", nargs=-1, metavar="[FILES]...", shell_complete=completing.files)
@_flags
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
    type=click.Choice(["page", "column", "slide"]),
    default="page",
    show_default=True,
    help="A page; one column of a paper (3.35 inches wide, text of 7 points or more); a slide (13.33 x 7.5 inches, "
    "text of 16 points or more).",
)
@click.option("--suite", "suites", multiple=True, metavar="NAME", help="Of this suite only. May be repeated.")
@click.option("--by-suite", is_flag=True, help="A panel for each suite, instead of all suites together.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="LABEL",
    shell_complete=completing.labels,
    help="Of this method only: a label, or a name for all its labels. May be repeated. Not with --pareto, "
    "--alignment and --crossover.",
)
@click.option(
    "--y",
    type=click.Choice(["agreement", "verdict", "quality", "exact", "target-agreement", "rouge-l", "chrf"]),
    default=None,
    help="What --pareto sets speed against: token agreement, the share of answers that are the target's own, a judge's "
    "score, exact match (as in --bench tasks), the target's own agreement after the first divergence too, or overlap "
    "of the texts.  [default: agreement]",
)
@click.option("--judge", default="", metavar="NAME", help="Whose score: the name that compare shows, or a part of it.")
@click.option("--by", default="", metavar="OPTION", help="What --sweep goes along.  [default: what has most values]")
@click.option("--prompt", default="", metavar="ID", help="Whose answer --depths shows.  [default: the first]")
@click.pass_context
def plot(
    context: click.Context,
    files: tuple[str, ...],
    out: Path | None,
    theme: str,
    size: str,
    suites: tuple[str, ...],
    by_suite: bool,
    methods: tuple[str, ...],
    y: str | None,
    judge: str,
    by: str,
    prompt: str,
) -> None:
    """Draw one picture of results files (by default results/*.jsonl), all their suites together.

    Runs that may not be compared, because a setting differs, get a panel each. Sampled runs have no token agreement,
    and --pareto leaves them out where it is drawn. Options that do not belong to the picture are refused.

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
      benchctl plot --depths --method early_exit results/first.jsonl
      benchctl plot --alignment my-m2r2 --out alignment.png
      benchctl plot --crossover results/batches-*.jsonl --out crossover.png
    """
    name = _only(context.meta.get(_ASKED, []))
    out = out or Path(f"results/{name}.png")
    wishes = Wishes(files, out, theme, size, suites, by_suite, methods, y or "", judge, by, prompt)
    _check(name, wishes)
    for note in PICTURES[name].draw(wishes):
        click.echo(f"Note: {note}", err=True)
    click.echo(f"Plot: {out}")


def _only(asked: list[str]) -> str:
    if len(asked) != 1:
        *names, last = (f"--{name}" for name in PICTURES)
        raise click.UsageError(f"say what to plot, one of {', '.join(names)} or {last}.")
    return asked[0]


def _check(name: str, wishes: Wishes) -> None:
    """Refuse what does not fit together, and a picture that cannot be written, before anything is read."""
    from benchctl.analysis.plots import check_image

    of_some = {option for picture in PICTURES.values() for option in picture.takes}
    for field in fields(Wishes):
        if field.name in of_some - set(PICTURES[name].takes) and getattr(wishes, field.name):
            fitting = ", ".join(f"--{other}" for other, one in PICTURES.items() if field.name in one.takes)
            option = _SPELT.get(field.name, f"--{field.name}")
            raise click.UsageError(f"{option} belongs to {fitting}, not to --{name}.")
    if wishes.judge and wishes.y != "quality":
        raise click.UsageError("--judge needs --y quality.")
    check_image(wishes.out)
