"""`benchctl import`: answer files that other programs published, as a results file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchctl.cli import completion as completing
from benchctl.importing.answers import FORMATS

if TYPE_CHECKING:
    from benchctl.importing.answers import Format
    from benchctl.importing.gather import Source
    from benchctl.importing.sums import Sums


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="[LABEL=]FILE...", shell_complete=completing.files)
@click.option(
    "--format",
    "format",
    type=click.Choice(["auto", *FORMATS]),
    default="auto",
    show_default=True,
    help="What wrote the files; auto tells it from their fields.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Results file to write.")
@click.option("--baseline", default="", metavar="LABEL", help="What times are set against. Default: the first label.")
@click.option(
    "--target",
    default="",
    metavar="NAME",
    help="Name of the target, which the files do not tell. Two imports without it are comparable only if their "
    "baselines have the same model_id.",
)
@click.option(
    "--suite", default="", metavar="NAME", help="Name of the prompts. Default: told from the ids of the questions."
)
def import_(files: tuple[str, ...], format: Format | str, out: Path, baseline: str, target: str, suite: str) -> None:
    """Read answers published by Spec-Bench, EAGLE, Medusa, REST or FastChat, and FastChat's judgements of answers.

    Their tokens and steps are counted alike for every label, baseline included, and their times are summed; what the
    files do not tell (token ids, machine, verdicts) stays unknown, and `benchctl compare` says so. Each file is a
    session of its own; files with the same LABEL are sessions of one method. Without LABEL it is the file's model_id.
    Judgements, of one answer or of two, become a file of scores beside --out, where compare finds them.

    \b
    Examples:
      benchctl import vanilla.jsonl eagle.jsonl --format eagle --out results/eagle.jsonl
      benchctl import medusa=run-1.jsonl medusa=run-2.jsonl gpt-4_single.jsonl --out results/medusa.jsonl
      benchctl compare results/eagle.jsonl
    """
    from benchctl.importing.gather import Terms, gather
    from benchctl.importing.sums import sums_of
    from benchctl.records.scores import ScoreWriter, scores_path
    from benchctl.records.writer import Writer, check_output

    check_output(out)
    asked = next((known for known in FORMATS if known == format), None)
    found = gather(
        [_source(name) for name in files],
        Terms(asked, suite, baseline, target),
        name=out.stem,
        command=("benchctl", *map(shlex.quote, sys.argv[1:])),
    )
    if found.scores:
        check_output(scores_path(out))
    with Writer(out, found.run) as writer:
        writer.append(*found.rows)
    if found.scores:
        with ScoreWriter(scores_path(out)) as scores:
            scores.append(*found.scores)
    for notice in found.notices:
        click.echo(f"Note: {notice}", err=True)
    click.echo(f"{found.run.imported} -> {out}, {found.run.suites[0].name}, {found.run.suites[0].prompts} prompts")
    for line in _table(sums_of(found.rows, found.scores)):
        click.echo(line)


def _source(name: str) -> Source:
    """`label=path`, or a path alone; a path that exists as it stands is one."""
    from benchctl.importing.gather import Source

    label, equals, path = name.partition("=")
    return Source(Path(path), label) if equals and not Path(name).exists() else Source(Path(name))


def _table(sums: dict[str, Sums]) -> list[str]:
    """Speeds by each label's own tokens and times, and how they compare with the first label's: not in time, of which
    compare's speed-up is, so that other lengths of text make another number."""
    first = next(iter(sums.values())).tokens_per_s
    lines: list[str] = []
    for label, of in sums.items():
        parts = [f"{of.answers} answers"]
        if of.tokens_per_s is not None:
            ratio = f" ({of.tokens_per_s / first:.2f}x in tokens/s)" if first and lines else ""
            parts += [f"{of.new_tokens} tokens", f"{of.tokens_per_s:.2f} tokens/s{ratio}"]
        parts += [f"{of.tokens_per_step:.3f} tokens per step"] if of.tokens_per_step is not None else []
        parts += [f"score {'/'.join(f'{score:.3f}' for score in of.scores)}"] if of.scores else []
        lines.append(f"{label}: {', '.join(parts)}")
    return lines
