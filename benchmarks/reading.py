"""How long benchctl takes for large results files, and what memory: `python -m benchmarks.reading`.

`compare` of 100,000 generations in 20 s and 1 GB, a report of 10,000 built in 20 s and opened in 2 s, their Pareto plot
in 5 s, and the help in 0.3 s. The files are made up, see made_up.py.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from benchctl.records.schema import Mode
from benchmarks.browser import PROGRAM, browser
from benchmarks.figures import Figure, Took, took
from benchmarks.made_up import MadeUp
from benchmarks.origin import circumstances

MODES: tuple[Mode, ...] = get_args(Mode)
_MB = 1e6


def measure(folder: Path, compared: int, shown: int, modes: tuple[Mode, ...], times: int) -> Iterator[Figure]:
    """Each figure as it is taken, over files of so many generations that are written into the folder."""
    large, small, page = folder / "large.jsonl", folder / "small.jsonl", folder / "report.html"
    MadeUp(modes).write(large, compared)
    MadeUp(modes, differ=True).write(small, shown)

    def figure(most_s: float, of: str, *arguments: str, most_bytes: float = float("inf")) -> Figure:
        command = " ".join(["benchctl", *(Path(one).name for one in arguments)])
        return Figure(command, of, most_s, tuple(took(arguments) for _ in range(times)), most_bytes)

    yield figure(20.0, _told(large, compared), "compare", str(large), most_bytes=1e9)
    yield figure(20.0, _told(small, shown), "report", str(small), "--out", str(page))
    if PROGRAM:
        yield Figure("open report.html in Chromium", f"{page.stat().st_size / _MB:.1f} MB", 2.0, opened(page, times))
    yield figure(5.0, _told(small, shown), "plot", str(small), "--pareto", "--out", str(folder / "pareto.png"))
    yield figure(0.3, "", "--help")


def opened(page: Path, times: int) -> tuple[Took, ...]:
    """Seconds until the page and its scripts are done, in a browser that runs and has not seen it."""
    found = []
    for _ in range(times):
        with browser() as window:
            started = time.perf_counter()
            window.open(page)
            found.append(Took(time.perf_counter() - started))
    return tuple(found)


def _told(path: Path, generations: int) -> str:
    return f"{generations:,} generations, {path.stat().st_size / _MB:.0f} MB"


def _line(figure: Figure) -> str:
    seconds = ", ".join(f"{one.wall_s:.2f}" for one in figure.took)
    memory = f"; {figure.peak_bytes / _MB:.0f} MB at most" if figure.peak_bytes else ""
    met = "met" if figure.is_met else "MISSED"
    of = f" ({figure.of})" if figure.of else ""
    return f"{figure.command}{of}: {seconds} s, of {figure.most_s:g} s at most{memory}: {met}"


def _document(figures: list[Figure], modes: tuple[Mode, ...]) -> dict[str, Any]:
    found = []
    for figure in figures:
        most_bytes = None if figure.most_bytes == float("inf") else figure.most_bytes
        found.append(asdict(figure) | {"most_bytes": most_bytes, "wall_s": figure.wall_s, "is_met": figure.is_met})
    return circumstances() | {"modes": modes, "figures": found}


@click.command()
@click.option("--generations", type=click.IntRange(min=10), default=100_000, show_default=True, help="To compare.")
@click.option("--shown", type=click.IntRange(min=10), default=10_000, show_default=True, help="In report and plot.")
@click.option("--modes", type=click.IntRange(1, len(MODES)), default=1, show_default=True, help="That they are of.")
@click.option("--times", type=click.IntRange(min=1), default=3, show_default=True, help="How often each is done.")
@click.option("--out", type=click.Path(path_type=Path), help="File for all figures: .json.")
def main(generations: int, shown: int, modes: int, times: int, out: Path | None) -> None:
    """Print what reading takes, of what it may take at most. Exits with 1 where anything takes more."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for figure in measure(Path(folder), generations, shown, MODES[:modes], times):
            click.echo(_line(figure))
            found.append(figure)
    if not PROGRAM:
        click.echo("There is no Chromium here, so no page was opened.")
    if out:
        out.write_text(json.dumps(_document(found, MODES[:modes]), indent=1) + "\n", encoding="utf-8")
    if not all(figure.is_met for figure in found):
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    main()
