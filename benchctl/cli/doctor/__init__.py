"""`benchctl doctor`: how well this machine can measure, what it can tell apart, and whether methods keep their word."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchctl.cli import completion as completing


@click.command()
@click.argument("files", nargs=-1, metavar="[FILES]...", type=click.Path(path_type=Path))
@click.option(
    "--method",
    "-m",
    "methods",
    multiple=True,
    metavar="LABEL",
    shell_complete=completing.labels,
    help="Hold a method to what it claims instead, built in or of another distribution, perhaps with options: "
    "two_model[draft_tokens=5]. May be repeated. `all` is every built-in one.",
)
@click.option(
    "--aa",
    is_flag=True,
    help="Compare the baseline with itself instead: in FILES, or in a small run.",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads of torch.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What to examine; auto: a GPU where there is one.",
)
@click.option(
    "--model",
    default="",
    metavar="NAME|FOLDER|ID",
    shell_complete=completing.models,
    help="Target of the small run.  [default: embedded]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Results file of the small run.  [default: results/aa-<time>.jsonl]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def doctor(
    files: tuple[Path, ...],
    methods: tuple[str, ...],
    aa: bool,
    threads: int,
    device: str,
    model: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Examine this machine: its facts, a sentinel kernel, memory bandwidth and FLOP rate, and what to mend.

    With --aa, compare the baseline with itself: the false-positive rate (5% is expected), and the smallest effect that
    is detected with 80% power.

    With --method, hold methods to what they claim: answers, counts, limits, stop tokens, isolation, cache,
    determinism. On a CPU in under a minute per method, on tiny random targets in float64, a Llama-like one and a
    mixture of experts; it needs no model and no network.

    Exit code: 0, 1 where a check of --method fails, 2 where it cannot be done, 3 for FILES that hold what cannot be
    true.

    \b
    Examples:
      benchctl doctor --threads 2
      benchctl doctor --aa --out results/aa.jsonl
      benchctl doctor --aa results/first.jsonl
      benchctl doctor --method two_model --method m2r2_dynamic
      benchctl doctor --method all --json
    """
    if methods and (aa or files):
        raise click.UsageError("--method examines methods, --aa and FILES the baseline's noise: give one of them.")
    if (files or model or out) and not aa:
        raise click.UsageError("FILES, --model and --out are for --aa: add it, or leave them out.")
    if files and (model or out):
        raise click.UsageError("--model and --out are for the small run: leave them out, or the FILES.")
    if methods:
        from benchctl.cli.doctor.methods import examine_methods

        examine_methods(methods, as_json)
    elif aa:
        from benchctl.cli.doctor.aa import Small, compare_with_itself

        small = Small(model, device, threads, ("benchctl", *sys.argv[1:]))
        compare_with_itself(files, small, out, as_json)
    else:
        from benchctl.cli.doctor.machine import show_machine

        show_machine(device, threads, as_json)
