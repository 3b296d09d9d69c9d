"""Compares our loop with transformers' generate on the embedded models: `python -m benchmarks`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.origin import circumstances

Figures = Mapping[str, Any]


@click.command()
@click.option("--threads", multiple=True, type=click.IntRange(1), default=(1, 2), show_default=True, help="Of the CPU.")
@click.option("--prompts", type=click.IntRange(2), default=6, show_default=True, help="Prompts of each suite.")
@click.option("--max-new-tokens", type=click.IntRange(2), default=96, show_default=True, help="Longest answer.")
@click.option("--model", default="", help="This model, in both forms.  [default: the embedded target]")
@click.option("--out", default="results/bench", show_default=True, type=click.Path(path_type=Path), help="Folder.")
def main(threads: tuple[int, ...], prompts: int, max_new_tokens: int, model: str, out: Path) -> None:
    """Measure the speed of our loop against transformers' generate, with each number of threads.

    With --model, compare the baseline with generate, and with itself with float16 weights.

    \b
    Example:
      python -m benchmarks --threads 1 --prompts 4 --out results/bench
    """
    out.mkdir(parents=True, exist_ok=True)
    sizes: dict[str, Any] = {"prompts": prompts, "max_new_tokens": max_new_tokens}
    asked = {"threads": threads, **sizes, "model": Path(model).name}
    library = [row for count in threads for row in measure_apart(threads=count, **sizes, model=model)]
    Console(width=120).print(_library_table(library))
    path = out / "figures.json"
    figures = {**circumstances(), "asked": asked, "library": library}
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"Figures: {path}")


def measure_apart(**arguments: Any) -> Any:
    """What benchmarks.speed prints, run in its own process: thread counts and memory peaks do not mix."""
    command = [sys.executable, "-m", "benchmarks.speed", json.dumps(arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _library_table(rows: list[Figures]) -> Table:
    table = Table("ours", "theirs", "threads", "ratio [95%]", "tokens/s", "theirs", "same text", title="transformers")
    for row in rows:
        ratio = f"{row['ratio']:.2f}x [{row['low']:.2f}, {row['high']:.2f}]"
        speeds = (f"{row['our_tokens_per_s']:.0f}", f"{row['their_tokens_per_s']:.0f}")
        same = f"{row['same_tokens']}/{row['prompts']}"
        table.add_row(escape(row["ours"]), row["theirs"], str(row["threads"]), ratio, *speeds, same)
    return table


if __name__ == "__main__":
    main()
