"""Measures benchctl itself on the embedded models: `python -m benchmarks`, or `make bench`.

The figures go to a JSON file, with the machine they were taken on; the runs behind them stay beside it as results
files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from benchctl.errors import UserError
from benchctl.measuring.choices import choose_models
from benchctl.measuring.machine import machine_facts, versions
from benchctl.measuring.settings import ModelSettings
from benchmarks.costs import choose
from benchmarks.sections import SECTIONS, Asked
from benchmarks.show import show


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(SECTIONS)), help="Sections to measure; all by default.")
@click.option("--threads", multiple=True, type=click.IntRange(1), default=(1, 2), show_default=True)
@click.option("--prompts", type=click.IntRange(2), help="Prompts of each suite, instead of what each section takes.")
@click.option("--max-new-tokens", type=click.IntRange(2), help="Likewise.")
@click.option("--label", "labels", multiple=True, help="Another method for costs: 'medusa[modules=FOLDER]'.")
@click.option("--out", default="results/bench", show_default=True, type=click.Path(path_type=Path), help="Folder.")
def main(
    only: tuple[str, ...],
    threads: tuple[int, ...],
    prompts: int | None,
    max_new_tokens: int | None,
    labels: tuple[str, ...],
    out: Path,
) -> None:
    """Our loop against transformers' generate (library), exact methods against our own baseline (exact), what the
    harness costs (default), the trainer against a bare loop (trainer), steps against what their rows explain (costs),
    and throttled runs against the simulator (loading).

    \b
    Examples:
      python -m benchmarks --threads 1 --prompts 4 --out results/bench
      python -m benchmarks --only costs --label 'medusa[modules=runs/medusa]'
    """
    sections = tuple(name for name in SECTIONS if name in only or not only)
    _check(labels, sections)
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": machine_facts("cpu"), "versions": versions()}
    for section in sections:
        found |= SECTIONS[section](Asked(out, threads, prompts, max_new_tokens, labels))
    # What all sections say stays when one of them is measured again: it may be of another day or machine.
    figures = out / ("figures.json" if not only else f"figures-{'-'.join(sections)}.json")
    figures.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    show(sections, found)
    print(f"Figures: {figures}")


def _check(labels: tuple[str, ...], sections: tuple[str, ...]) -> None:
    """Refuse labels that nobody would measure, or that cannot run, before anything is."""
    if labels and "costs" not in sections:
        raise click.UsageError("--label names a method for the section costs; add --only costs")
    try:
        choose(labels, choose_models(ModelSettings()))
    except UserError as problem:
        raise click.UsageError(str(problem)) from problem


if __name__ == "__main__":
    main()
