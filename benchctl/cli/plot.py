"""`benchctl plot`: pictures of the figures in results files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from benchctl.cli import completion as completing

if TYPE_CHECKING:
    from benchctl.analysis.comparison import Group
    from benchctl.analysis.plots.style import Style
    from benchctl.records.writer import RunFile

_DEFAULT_Y: Final = "agreement"
Notes = Sequence[str]


@dataclass(frozen=True)
class Wishes:
    """What the command line says; "" and () where it does not."""

    files: tuple[str, ...]
    out: Path
    theme: str
    size: str
    suites: tuple[str, ...]
    by_suite: bool
    methods: tuple[str, ...]
    y: str
    judge: str
    by: str
    prompt: str

    @property
    def style(self) -> Style:
        from benchctl.analysis.plots.style import Style

        return Style(self.theme, self.size)


@dataclass(frozen=True)
class Picture:
    """`draw` writes the picture and returns what to know of it; `takes` are the options that not all pictures have."""

    help: str
    draw: Callable[[Wishes], Notes]
    takes: tuple[str, ...] = ()


def _pareto(wishes: Wishes) -> Notes:
    from benchctl.analysis.comparison import compare
    from benchctl.analysis.plots.heights import HEIGHTS, OF_BASELINE_TEXT, height
    from benchctl.analysis.plots.pareto import pareto

    metric, files = HEIGHTS[wishes.y or _DEFAULT_Y], _read(wishes)
    groups = compare(_greedy(files) if metric in OF_BASELINE_TEXT else files, ())
    pareto(_panels(groups, wishes), wishes.out, height(wishes.y or _DEFAULT_Y, groups, wishes.judge), wishes.style)
    return _with_warnings(groups)


def _acceptance(wishes: Wishes) -> Notes:
    from benchctl.analysis.plots.acceptance import plot_acceptance

    groups = _groups(wishes)
    notes = plot_acceptance(_panels(groups, wishes), wishes.out, wishes.style, methods=wishes.methods)
    return _with_warnings(groups, notes)


def _latency(wishes: Wishes) -> Notes:
    from benchctl.analysis.plots.latency import plot_latency

    groups = _groups(wishes)
    notes = plot_latency(_panels(groups, wishes), wishes.out, wishes.style, methods=wishes.methods)
    return _with_warnings(groups, notes)


def _waterfall(wishes: Wishes) -> Notes:
    from benchctl.analysis.plots.waterfall import plot_waterfall

    groups = _groups(wishes)
    notes = plot_waterfall(_panels(groups, wishes), wishes.out, wishes.style, methods=wishes.methods)
    return _with_warnings(groups, notes)


def _sweep(wishes: Wishes) -> Notes:
    from benchctl.analysis.plots.sweep import plot_sweep

    groups = _groups(wishes)
    notes = plot_sweep(_panels(groups, wishes), wishes.out, wishes.style, methods=wishes.methods, option=wishes.by)
    return _with_warnings(groups, notes)


def _depths(wishes: Wishes) -> Notes:
    from benchctl.analysis.plots.depths import plot_depths
    from benchctl.cli.report import decoder

    groups = _groups(wishes)
    methods, prompt = wishes.methods, wishes.prompt
    notes = plot_depths(groups, wishes.out, wishes.style, decoders=decoder, methods=methods, prompt=prompt)
    return _with_warnings(groups, notes)


def _alignment(wishes: Wishes) -> Notes:
    from benchctl.analysis.plots.alignment import plot_alignment, read_alignment

    if not wishes.files:
        raise click.UsageError("name the folders of trained modules to plot, as benchctl train m2r2 wrote them.")
    plot_alignment([read_alignment(Path(folder)) for folder in wishes.files], wishes.out, wishes.style)
    return ()


_OF_SUITES: Final = ("suites", "by_suite")
PICTURES: Final[Mapping[str, Picture]] = {
    "pareto": Picture(
        "Speed-up against fidelity, with the methods no other beats in both.", _pareto, (*_OF_SUITES, "y", "judge")
    ),
    "acceptance": Picture(
        "How far drafts are accepted, by position and by step.", _acceptance, (*_OF_SUITES, "methods")
    ),
    "latency": Picture("How TPOT and TTFT vary from answer to answer.", _latency, (*_OF_SUITES, "methods")),
    "waterfall": Picture(
        "Where each method gains and loses time, from runs with --profile.", _waterfall, (*_OF_SUITES, "methods")
    ),
    "sweep": Picture("Speed-up along one option of a method.", _sweep, (*_OF_SUITES, "methods", "by")),
    "depths": Picture(
        "The layers, or drafted blocks, of each token of an answer.", _depths, ("suites", "methods", "prompt")
    ),
    "alignment": Picture("How early m2r2's two streams align; FILES are folders of its modules.", _alignment),
}


def _read(wishes: Wishes) -> list[RunFile]:
    from benchctl.analysis.comparison import only_suites
    from benchctl.cli.inputs import read_files

    files = read_files(wishes.files or ("results/*.jsonl",))
    return only_suites(files, wishes.suites) if wishes.suites else files


def _groups(wishes: Wishes) -> tuple[Group, ...]:
    from benchctl.analysis.comparison import compare

    return compare(_read(wishes))


def _panels(groups: tuple[Group, ...], wishes: Wishes) -> tuple[Group, ...]:
    from benchctl.analysis.comparison import by_suite

    return by_suite(groups) if wishes.by_suite else groups


def _with_warnings(groups: Sequence[Group], notes: Notes = ()) -> Notes:
    from benchctl.cli.inputs import print_warnings

    print_warnings(groups)
    return notes


def _greedy(files: list[RunFile]) -> list[RunFile]:
    """The runs without sampling; all where there is none, for the plot to refuse with its reason."""
    greedy = [file for file in files if file.run.temperature == 0]
    if not greedy:
        return files
    for file in files:
        if file.run.temperature > 0:
            click.echo(f"Note: {file.path}: was sampled, so it has no token agreement and is left out.", err=True)
    return greedy


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
    help="Of this method only: a label, or a name for all its labels. May be repeated. Not with --pareto "
    "and --alignment.",
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
    from benchctl.analysis.plots.axes import check_image

    of_some = {option for picture in PICTURES.values() for option in picture.takes}
    for field in fields(Wishes):
        if field.name in of_some - set(PICTURES[name].takes) and getattr(wishes, field.name):
            fitting = ", ".join(f"--{other}" for other, one in PICTURES.items() if field.name in one.takes)
            option = _SPELT.get(field.name, f"--{field.name}")
            raise click.UsageError(f"{option} belongs to {fitting}, not to --{name}.")
    if wishes.judge and wishes.y != "quality":
        raise click.UsageError("--judge needs --y quality.")
    check_image(wishes.out)
