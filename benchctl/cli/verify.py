"""`benchctl verify`: holds a method to its claim on the user's own model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchctl.cli import completion as completing
from benchctl.cli.doctor import print_findings

if TYPE_CHECKING:
    from benchctl.conformance.findings import Finding
    from benchctl.measuring.run import OwnModel


@click.command()
@click.option(
    "--method",
    "-m",
    "methods",
    multiple=True,
    required=True,
    metavar="LABEL",
    shell_complete=completing.labels,
    help="Method, perhaps with options: two_model[draft_tokens=5]. May be repeated. `all` is every built-in one.",
)
@click.option(
    "--model",
    default="",
    metavar="NAME|FOLDER|ID",
    shell_complete=completing.models,
    help="Target: embedded name, folder or hub id.  [default: the embedded target]",
)
@click.option(
    "--draft-model",
    default="",
    metavar="NAME|FOLDER|ID",
    shell_complete=completing.models,
    help="Draft model of the same tokenizer.  [default: the one embedded with the target]",
)
@click.option(
    "--bench",
    "-b",
    "benches",
    multiple=True,
    default=["koala"],
    show_default=True,
    metavar="NAME|FILE",
    shell_complete=completing.benches,
    help="Suite, or a .jsonl file of `prompt` or `turns` records; of several turns the first is asked.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="The first N of each bench."
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=48,
    show_default=True,
    metavar="N",
    help="Longest answer, in tokens.",
)
@click.option(
    "--draws",
    type=click.IntRange(min=0),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Short answers to draw for the test of frequencies. 500 of them, or one in 20, are decoded; the others follow "
    "from the numbers drawn. A method that draws other numbers too has only the decoded ones. More find smaller "
    "deviations: the line says which. 0 leaves the test out.",
)
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where to run."
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads of torch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def verify(
    methods: tuple[str, ...],
    model: str,
    draft_model: str,
    benches: tuple[str, ...],
    limit: int,
    max_new_tokens: int,
    draws: int,
    device: str,
    threads: int,
    as_json: bool,
) -> None:
    """Check what methods claim on your own model, in float64.

    Greedy answers must be those of autoregressive, token by token. Each step must be the one that the text before it
    dictates: full recomputation says which, or, for a method without one, a fresh start of the method on that text.
    Short sampled answers must have the target's distribution: exactly, over every way that draws can go, and in the
    frequencies of real draws. The weights take eight bytes a parameter. `benchctl doctor --method` checks more, on tiny
    random targets.

    Exit code: 0, 1 where a check fails, 2 where it cannot be done.

    \b
    Examples:
      benchctl verify --method two_model
      benchctl verify --method prompt_lookup --method 'm2r2[exit=2]' --limit 5 --draws 100000
      benchctl verify --method two_model --model my_models/target --draft-model my_models/draft --json
    """
    from benchctl.conformance.own_model import WHAT
    from benchctl.measuring.run import prepare_own_model
    from benchctl.measuring.settings import ModelSettings, PromptSettings

    own = prepare_own_model(
        methods,
        PromptSettings(benches, limit),
        ModelSettings(model, draft_model, "float64", device, threads),
        lambda notice: click.echo(f"Note: {notice}", err=True),
    )
    print_findings(_findings(own, max_new_tokens, draws), WHAT, as_json)


def _findings(own: OwnModel, new_tokens: int, draws: int) -> Iterator[tuple[str, Iterator[Finding]]]:
    """The findings on each method, except those that `all` brought in and that cannot run here."""
    from benchctl.conformance.own_model import Case
    from benchctl.conformance.own_model import verify as verify_case

    for choice in own.choices:
        if choice.unsupported:
            click.echo(f"Note: {choice.label} cannot run here: {choice.unsupported}.", err=True)
            continue
        case = Case(choice.label, choice.method, own.target, own.drafts(choice), own.prompts, new_tokens, draws)
        yield choice.label, verify_case(case, Path(own.name).name)
