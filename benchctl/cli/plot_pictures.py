"""The pictures that `benchctl plot` draws: a table of small functions, and which options belong to which picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from benchctl.analysis.comparison import Group
    from benchctl.analysis.plot_style import Style
    from benchctl.recordfile import RunFile

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
        from benchctl.analysis.plot_style import Style

        return Style(self.theme, self.size)


@dataclass(frozen=True)
class Picture:
    """`draw` writes the picture and returns what to know of it; `takes` are the options that not all pictures have."""

    help: str
    draw: Callable[[Wishes], Notes]
    takes: tuple[str, ...] = ()


def _pareto(wishes: Wishes) -> Notes:
    from benchctl.analysis.comparison import compare
    from benchctl.analysis.faithfulness import OVERLAP_METRICS
    from benchctl.analysis.heights import HEIGHTS, OF_BASELINE_TEXT, height
    from benchctl.analysis.judged import with_judgements
    from benchctl.analysis.plot_pareto import pareto
    from benchctl.analysis.text_overlap import with_overlap

    metric = HEIGHTS[wishes.y or _DEFAULT_Y]
    files, overlap = _read(wishes), metric in OVERLAP_METRICS
    groups = compare(_greedy(files) if metric in OF_BASELINE_TEXT else files, texts=overlap)
    groups = with_overlap(groups) if overlap else with_judgements(groups)
    pareto(_panels(groups, wishes), wishes.out, height(wishes.y or _DEFAULT_Y, groups, wishes.judge), wishes.style)
    return _with_cautions(groups)


def _acceptance(wishes: Wishes) -> Notes:
    from benchctl.analysis.plot_acceptance import plot_acceptance

    groups = _groups(wishes)
    notes = plot_acceptance(_panels(groups, wishes), wishes.out, wishes.style, methods=wishes.methods)
    return _with_cautions(groups, notes)


def _latency(wishes: Wishes) -> Notes:
    from benchctl.analysis.plot_latency import plot_latency

    groups = _groups(wishes)
    notes = plot_latency(_panels(groups, wishes), wishes.out, wishes.style, methods=wishes.methods)
    return _with_cautions(groups, notes)


def _waterfall(wishes: Wishes) -> Notes:
    from benchctl.analysis.plot_waterfall import plot_waterfall

    groups = _groups(wishes)
    notes = plot_waterfall(_panels(groups, wishes), wishes.out, wishes.style, methods=wishes.methods)
    return _with_cautions(groups, notes)


def _sweep(wishes: Wishes) -> Notes:
    from benchctl.analysis.plot_sweep import plot_sweep

    groups = _groups(wishes)
    notes = plot_sweep(_panels(groups, wishes), wishes.out, wishes.style, methods=wishes.methods, option=wishes.by)
    return _with_cautions(groups, notes)


def _depths(wishes: Wishes) -> Notes:
    from benchctl.analysis.plot_depths import plot_depths
    from benchctl.cli.report import decoder

    groups = _groups(wishes)
    methods, prompt = wishes.methods, wishes.prompt
    notes = plot_depths(groups, wishes.out, wishes.style, decoders=decoder, methods=methods, prompt=prompt)
    return _with_cautions(groups, notes)


def _crossover(wishes: Wishes) -> Notes:
    from benchctl.analysis.plot_crossover import plot_crossover

    groups = _groups(wishes)
    plot_crossover(groups, wishes.out, wishes.style)
    return _with_cautions(groups)


def _alignment(wishes: Wishes) -> Notes:
    from benchctl.analysis.alignment import read_alignment
    from benchctl.analysis.plot_alignment import plot_alignment

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
    "crossover": Picture("Speed-up against batch size, from runs of several --batch-size.", _crossover, ("suites",)),
}


def _read(wishes: Wishes) -> list[RunFile]:
    from benchctl.analysis.panels import only_suites
    from benchctl.cli.inputs import read_files

    files = read_files(wishes.files or ("results/*.jsonl",))
    return only_suites(files, wishes.suites) if wishes.suites else files


def _groups(wishes: Wishes) -> tuple[Group, ...]:
    from benchctl.analysis.comparison import compare

    return compare(_read(wishes))


def _panels(groups: tuple[Group, ...], wishes: Wishes) -> tuple[Group, ...]:
    from benchctl.analysis.panels import by_suite

    return by_suite(groups) if wishes.by_suite else groups


def _with_cautions(groups: Sequence[Group], notes: Notes = ()) -> Notes:
    from benchctl.cli.inputs import tell_cautions

    tell_cautions(groups)
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
