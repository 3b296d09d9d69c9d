"""Measures benchctl itself on the embedded models: `python -m benchmarks`, or `make bench`.

`library` compares our loop with transformers' generate; `costs` compares steps with the passes that their rows explain.
Reading of large files has its own command: `python -m benchmarks.reading`.
"""

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
from rich.table import Column, Table

from benchctl.errors import UserError
from benchctl.measuring.check import choose_models
from benchctl.measuring.settings import ModelSettings
from benchmarks.costs import choose
from benchmarks.origin import circumstances, without_places

SECTIONS = ("library", "costs")
Figures = Mapping[str, Any]


@click.command()
@click.option("--only", multiple=True, type=click.Choice(SECTIONS), help="Sections to measure; all by default.")
@click.option(
    "--threads",
    multiple=True,
    type=click.IntRange(1),
    default=(1, 2),
    show_default=True,
    help="CPU threads: library runs with each number, costs with the lowest.",
)
@click.option("--prompts", type=click.IntRange(2), help="Prompts of each suite.  [default: library 6, costs 2]")
@click.option("--max-new-tokens", type=click.IntRange(2), help="Longest answer.  [default: library 96, costs 64]")
@click.option("--model", default="", help="Of library: this model, in both forms.  [default: the embedded target]")
@click.option("--label", "labels", multiple=True, help="Another method for costs: 'medusa[modules=FOLDER]'.")
@click.option("--out", default="results/bench", show_default=True, type=click.Path(path_type=Path), help="Folder.")
def main(
    only: tuple[str, ...],
    threads: tuple[int, ...],
    prompts: int | None,
    max_new_tokens: int | None,
    model: str,
    labels: tuple[str, ...],
    out: Path,
) -> None:
    """Measure the speed of our loop against transformers' generate (library) and the cost of steps (costs).

    With --model, library compares the baseline with generate, and with itself with float16 weights.

    \b
    Examples:
      python -m benchmarks --threads 1 --prompts 4 --out results/bench
      python -m benchmarks --only costs --label 'medusa[modules=runs/medusa]'
    """
    sections = tuple(name for name in SECTIONS if name in only or not only)
    _check_labels(labels, sections)
    if model and sections != ("library",):
        raise click.UsageError("--model names a model for the section library; add --only library")
    out.mkdir(parents=True, exist_ok=True)
    asked = {
        "sections": sections,
        "threads": threads,
        "prompts": prompts,
        "max_new_tokens": max_new_tokens,
        "model": Path(model).name,
        "labels": [without_places(label) for label in labels],
    }
    figures: dict[str, Any] = {**circumstances(), "asked": asked}
    console = Console(width=120)
    if "library" in sections:
        sizes: dict[str, Any] = {"prompts": prompts or 6, "max_new_tokens": max_new_tokens or 96, "model": model}
        figures["library"] = [row for count in threads for row in measure_apart("speed", threads=count, **sizes)]
        console.print(_library_table(figures["library"]))
    if "costs" in sections:
        sizes = {"prompts": prompts or 2, "max_new_tokens": max_new_tokens or 64}
        figures["costs"] = measure_apart("costs", labels=labels, threads=min(threads), **sizes)
        _print_costs(console, figures["costs"])
    # Measuring one section keeps the file of all sections: it may come from another day or machine.
    path = out / ("figures.json" if not only else f"figures-{'-'.join(sections)}.json")
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"Figures: {path}")


def measure_apart(module: str, **arguments: Any) -> Any:
    """What a module of benchmarks prints, run in its own process: thread counts and memory peaks do not mix."""
    command = [sys.executable, "-m", f"benchmarks.{module}", json.dumps(arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _check_labels(labels: tuple[str, ...], sections: tuple[str, ...]) -> None:
    """Raises click.UsageError for labels that are not measured or cannot run."""
    if labels and "costs" not in sections:
        raise click.UsageError("--label names a method for the section costs; add --only costs")
    try:
        choose(labels, choose_models(ModelSettings()))
    except UserError as problem:
        raise click.UsageError(str(problem)) from problem


def _library_table(rows: list[Figures]) -> Table:
    table = Table("ours", "theirs", "threads", "ratio [95%]", "tokens/s", "theirs", "same text", title="transformers")
    for row in rows:
        speeds = (f"{row['our_tokens_per_s']:.0f}", f"{row['their_tokens_per_s']:.0f}")
        same = f"{row['same_tokens']}/{row['prompts']}"
        table.add_row(escape(row["ours"]), row["theirs"], str(row["threads"]), _ratio(row), *speeds, same)
    return table


def _print_costs(console: Console, costs: Figures) -> None:
    threads = f"{costs['threads']} thread{'s' * (costs['threads'] > 1)}"
    columns = ("timed", "rows", "measured", "predicted", "measured / predicted [95%]", "goal")
    table = Table(Column("method", overflow="fold"), *columns, title=f"measured vs. predicted step time on {threads}")
    for row in costs["methods"]:
        times = (f"{row['measured_ms']:.2f} ms", f"{row['predicted_ms']:.2f} ms")
        goal = row["goal"].partition(",")[0]
        table.add_row(escape(row["label"]), row["timed"], f"{row['rows']:.1f}", *times, _ratio(row), goal)
    console.print(table)
    print(f"verifications within {costs['within']:.0%} by the whole interval: {costs['share_within']:.0%}")
    for label, reason in costs["left_out"].items():
        print(f"left out: {label}: {reason}")


def _ratio(row: Figures) -> str:
    return f"{row['ratio']:.2f}x [{row['low']:.2f}, {row['high']:.2f}]"


if __name__ == "__main__":
    main()
