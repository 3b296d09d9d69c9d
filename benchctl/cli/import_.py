"""`benchctl import`: files of other programs as a results file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from benchctl.importing import FORMATS

if TYPE_CHECKING:
    from benchctl.importing import Format


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="[LABEL=]FILE...")
@click.option(
    "--format",
    "format",
    type=click.Choice(["auto", *FORMATS]),
    default="auto",
    show_default=True,
    help="Program that wrote the files; auto: recognised by their fields.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Results file to write.")
@click.option(
    "--baseline", default="", metavar="LABEL", help="Label that times are compared with.  [default: the first]"
)
@click.option(
    "--target",
    default="",
    metavar="NAME",
    help="Name of the target, which the files do not contain. Without it, two imports are comparable only if their "
    "baselines have the same model_id.",
)
@click.option(
    "--suite", default="", metavar="NAME", help="Name of the prompts.  [default: by the ids of the questions]"
)
def import_(
    files: tuple[str, ...], format: Format | Literal["auto"], out: Path, baseline: str, target: str, suite: str
) -> None:
    """Import answers published by other projects, and requests of serving benchmarks.

    Answers are those of Spec-Bench, EAGLE, Medusa, REST and FastChat, whose judgements are read too. Serving benchmarks
    are `vllm bench serve` with --save-detailed, aiperf (profile_export.jsonl) and guidellm (benchmarks.json). The files
    have no token ids, machine or verdicts, so these stay unknown. Each file is a session; files with the same LABEL are
    sessions of one method. The default LABEL is the file's model_id. Judgements become a file of scores next to --out,
    which `compare` reads.

    \b
    Examples:
      benchctl import vanilla.jsonl eagle.jsonl --format eagle --out results/eagle.jsonl
      benchctl import medusa=run-1.jsonl medusa=run-2.jsonl gpt-4_single.jsonl --out results/medusa.jsonl
      benchctl import plain=plain.json ngram=ngram.json --out results/vllm.jsonl
      benchctl compare results/eagle.jsonl
    """
    from benchctl.importing.gather import Source, Terms, gather
    from benchctl.records.scores import ScoreWriter, scores_path
    from benchctl.records.writer import Writer, check_output

    check_output(out)
    sources = []
    for name in files:
        label, equals, path = name.partition("=")  # a path that exists as it stands has no label
        sources.append(Source(Path(path), label) if equals and not Path(name).exists() else Source(Path(name)))
    imported = gather(
        sources,
        Terms(None if format == "auto" else format, suite, baseline, target),
        name=out.stem,
        command=("benchctl", *sys.argv[1:]),
    )
    if imported.scores:
        check_output(scores_path(out))
    with Writer(out, imported.run) as writer:
        writer.append(*imported.rows)
    if imported.scores:
        with ScoreWriter(scores_path(out)) as scores:
            scores.append(*imported.scores)
    for notice in imported.notices:
        click.echo(f"Note: {notice}", err=True)
    click.echo(
        f"{imported.run.imported} -> {out}, {imported.run.suites[0].name}, {imported.run.suites[0].prompts} prompts"
    )
