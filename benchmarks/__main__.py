"""Measures benchctl itself on the embedded models: `python -m benchmarks`, or `make bench`.

The figures go to a JSON file, with the machine and the commit they were taken on and what was asked for. The runs of
the sections exact and default stay beside it as results files; costs and loading keep the seconds of each prompt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from benchctl.errors import UserError
from benchctl.measuring.choices import choose_models
from benchctl.measuring.settings import ModelSettings
from benchmarks.costs import choose
from benchmarks.origin import circumstances, without_places
from benchmarks.sections import SECTIONS, Asked
from benchmarks.show import show


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(SECTIONS)), help="Sections to measure; all by default.")
@click.option(
    "--threads",
    multiple=True,
    type=click.IntRange(1),
    default=(1, 2),
    show_default=True,
    help="For library and exact each; costs takes the least, trainer the most, default and loading always one.",
)
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
    harness costs (default), the trainer against a bare loop (trainer), and steps against what their rows explain
    (costs).

    \b
    Examples:
      python -m benchmarks --threads 1 --prompts 4 --out results/bench
      python -m benchmarks --only costs --label 'medusa[modules=runs/medusa]'
    """
    sections = tuple(name for name in SECTIONS if name in only or not only)
    _check(labels, sections)
    out.mkdir(parents=True, exist_ok=True)
    asked = Asked(out, threads, prompts, max_new_tokens, labels)
    found = _circumstances(asked, sections)
    for section in sections:
        found |= SECTIONS[section](asked)
    # What all sections say stays when one of them is measured again: it may be of another day or machine.
    figures = out / ("figures.json" if not only else f"figures-{'-'.join(sections)}.json")
    figures.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    show(sections, found)
    print(f"Figures: {figures}")


def _circumstances(asked: Asked, sections: tuple[str, ...]) -> dict[str, Any]:
    """The code, the machine and the command line, without the places where things lie.

    A size that was not given is null: each section tells what it took.
    """
    return circumstances() | {
        "asked": {
            "sections": sections,
            "threads": asked.threads,
            "prompts": asked.prompts,
            "max_new_tokens": asked.max_new_tokens,
            "labels": [without_places(label) for label in asked.labels],
        },
    }


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
