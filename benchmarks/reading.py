"""How long benchctl takes for large results files, and how much memory: `python -m benchmarks.reading`.

`compare` of 100,000 generations: 20 s and 1 GB. A report of 10,000: 20 s. Their Pareto plot: 5 s. The help: 0.3 s.
The files are synthetic, see made_up.py.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import click

from benchctl.records.schema import Mode
from benchmarks.made_up import MadeUp
from benchmarks.origin import circumstances

MODES: tuple[Mode, ...] = get_args(Mode)
_MB = 1e6


@dataclass(frozen=True)
class Took:
    """One run of a command: seconds by the clock and of the processor, and its largest memory."""

    wall_s: float
    user_s: float = 0.0
    system_s: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True)
class Figure:
    """What each run of `command` took, and the most that it may take. `of` names its input."""

    command: str
    of: str
    most_s: float
    took: tuple[Took, ...]
    most_bytes: float = float("inf")

    @property
    def wall_s(self) -> float:
        """The median of all runs."""
        return statistics.median(run.wall_s for run in self.took)

    @property
    def peak_bytes(self) -> int:
        """The largest of all runs."""
        return max(run.peak_bytes for run in self.took)

    @property
    def is_met(self) -> bool:
        return self.wall_s < self.most_s and self.peak_bytes < self.most_bytes


def took(arguments: Sequence[str]) -> Took:
    """Runs a command of benchctl in its own process. Raises ChildProcessError where it fails."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "benchctl", *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ChildProcessError(f"benchctl {arguments[0]} ended with exit code {process.returncode}")
    peak_bytes = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Took(wall_s, used.ru_utime, used.ru_stime, peak_bytes)


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
    yield figure(5.0, _told(small, shown), "plot", str(small), "--pareto", "--out", str(folder / "pareto.png"))
    yield figure(0.3, "", "--help")


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
    if out:
        out.write_text(json.dumps(_document(found, MODES[:modes]), indent=1) + "\n", encoding="utf-8")
    if not all(figure.is_met for figure in found):
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    main()
