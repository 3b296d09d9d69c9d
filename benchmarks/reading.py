"""How long `benchctl compare` takes for a large results file, and what memory: `python -m benchmarks.reading`.

The goal is 10 s and 1 GB for 100,000 generations. The file is made up: answers of 129 tokens by the baseline and by a
method that commits two tokens a step, five repeats of each prompt, with times that vary as measured ones do.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import click

from benchctl.records import MethodInfo, Mode, ModelInfo, Row, Run, SuiteInfo, to_line

TOKENS = 129
REPEATS = 5
LAYERS = 12
MODES: tuple[Mode, ...] = get_args(Mode)
METHODS = {"autoregressive": 1, "two_model": 2}  # tokens that each commits in a step
_MOST_S, _MOST_BYTES = 10.0, 1e9


@dataclass(frozen=True)
class Reading:
    """What one `benchctl compare` took: seconds by the clock, of the processor, and the most memory it held."""

    wall_s: float
    user_s: float
    system_s: float
    peak_bytes: int

    @property
    def is_good(self) -> bool:
        return self.wall_s < _MOST_S and self.peak_bytes < _MOST_BYTES


def write_run(path: Path, generations: int, modes: tuple[Mode, ...]) -> None:
    """A results file of so many generations, dealt out to the modes."""
    with path.open("wb") as file:
        file.write(to_line(_run(modes)))
        for _, row in zip(range(generations), _rows(modes), strict=False):
            file.write(to_line(row))


def read(path: Path) -> Reading:
    """Let `benchctl compare` read it, in a process of its own; raises ChildProcessError where that fails."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "benchctl", "compare", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ChildProcessError(f"benchctl compare ended with exit code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Reading(wall_s, used.ru_utime, used.ru_stime, used.ru_maxrss * unit)


def _run(modes: tuple[Mode, ...]) -> Run:
    target = ModelInfo(
        name="made-up",
        family="llama",
        layers=LAYERS,
        hidden_size=256,
        parameters=9_000_000,
        vocabulary=4096,
        context_tokens=1024,
        weights_sha256="a",
        tokenizer_sha256="b",
        chat_template_sha256="c",
    )
    return Run(
        name="large",
        created="2026-01-01T00:00:00+00:00",
        command=("python", "-m", "benchmarks.reading"),
        baseline="autoregressive",
        target=target,
        draft=None,
        suites=(SuiteInfo(name="made-up", source="file", origin="benchmarks", sha256="d", prompts=1),),
        methods=tuple(MethodInfo(label=name, name=name, options={}, exactness="exact") for name in METHODS),
        dtype="float32",
        device="cpu",
        executor="eager",
        attention="sdpa",
        threads=1,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        seed=0,
        max_new_tokens=TOKENS,
        repeats=REPEATS,
        modes=modes,
        order="abba",
        machine={"cpu": "made up", "gpu": ""},
        versions={},
        commit="",
    )


def _rows(modes: tuple[Mode, ...]) -> Iterator[Row]:
    chance, number = random.Random(0), 0
    usual = {label: _row(label, committed) for label, committed in METHODS.items()}
    while True:
        ids = tuple(chance.randrange(4096) for _ in range(TOKENS))
        for repeat in range(REPEATS):
            for mode in modes:
                for row in usual.values():
                    times_s = tuple(round(chance.uniform(0.009, 0.011), 6) for _ in row.step_s)
                    phases = {"verify": times_s, "host": (0.0,) * len(times_s)} if mode == "profile" else {}
                    timed = replace(row, token_ids=ids, step_s=times_s, phases=phases, mode=mode)
                    yield replace(timed, prompt_id=f"p{number}", repeat=repeat)
        number += 1


def _row(label: str, committed: int) -> Row:
    steps = (TOKENS - 1) // committed
    drafted = 3 * (committed - 1)
    return Row(
        suite="made-up",
        prompt_id="p",
        turn=0,
        label=label,
        repeat=0,
        session=0,
        order=0,
        prompt_tokens=30,
        token_ids=(0,) * TOKENS,
        text="so " * 200,
        stop_reason="length",
        ttft_s=0.02,
        step_s=(0.01,) * steps,
        committed=(committed,) * steps,
        drafted=(drafted,) * steps,
        accepted=(committed - 1,) * steps,
        rows=(drafted + 1,) * steps,
        layers=(LAYERS,) * TOKENS,
    )


@click.command()
@click.option("--generations", type=click.IntRange(min=10), default=100_000, show_default=True)
@click.option("--modes", type=click.IntRange(1, len(MODES)), default=1, show_default=True, help="That they are of.")
@click.option("--times", type=click.IntRange(min=1), default=3, show_default=True, help="How often it is read.")
def main(generations: int, modes: int, times: int) -> None:
    """Write a large results file, compare it, and print seconds and peak memory. Exits with 1 beyond 10 s or 1 GB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.jsonl"
        write_run(path, generations, MODES[:modes])
        click.echo(
            f"{generations:,} generations of {modes} mode{'s' * (modes > 1)}, {path.stat().st_size / 1e6:.0f} MB"
        )
        found = [read(path) for _ in range(times)]
    for one in found:
        processor = f"{one.user_s:.2f} s user, {one.system_s:.2f} s system"
        click.echo(f"{one.wall_s:.2f} s ({processor}), {one.peak_bytes / 1e6:.0f} MB at most")
    if not min(found, key=lambda one: one.wall_s).is_good:
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    main()
