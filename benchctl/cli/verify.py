"""`benchctl verify`: holds a method to its claim on the user's own model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchctl.cli import completion as completing
from benchctl.cli.doctor import print_findings
from benchctl.cli.options import options_from
from benchctl.options import setting

if TYPE_CHECKING:
    from benchctl.conformance.findings import Finding


@dataclass(frozen=True)
class _Options:
    """The options of `benchctl verify` apart from --method, which is required."""

    model: str = setting(
        "",
        "Target: embedded name, folder or hub id.  [default: the embedded target]",
        metavar="NAME|FOLDER|ID",
        completion="models",
    )
    draft_model: str = setting(
        "",
        "Draft model of the same tokenizer.  [default: the one embedded with the target]",
        metavar="NAME|FOLDER|ID",
        completion="models",
    )
    benches: tuple[str, ...] = setting(
        ("koala",),
        "Suite, or a .jsonl file of `prompt` or `turns` records; of several turns the first is asked.",
        flags=("--bench", "-b"),
        metavar="NAME|FILE",
        completion="benches",
    )
    limit: int = setting(3, "The first N of each bench.", metavar="N", least=1)
    max_new_tokens: int = setting(48, "Longest answer, in tokens.", metavar="N", least=1)
    draws: int = setting(
        10_000,
        "Short answers to draw for the test of frequencies. 500 of them, or one in 20, are decoded; the others follow "
        "from the numbers drawn. A method that draws other numbers too has only the decoded ones. More find smaller "
        "deviations: the line says which. 0 leaves the test out.",
        metavar="N",
        least=0,
    )
    device: str = setting("auto", "Where to run.", choices=("auto", "cpu", "cuda"))
    threads: int = setting(1, "CPU threads of torch.", least=1)
    as_json: bool = setting(False, "Print JSON, for programs.", flags=("--json",))


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
@options_from(_Options, "options")
def verify(options: _Options, methods: tuple[str, ...]) -> None:
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
    from benchctl.conformance.own_model import WHAT, Case
    from benchctl.conformance.own_model import verify as verify_case
    from benchctl.measuring.run import prepare_own_model
    from benchctl.measuring.settings import ModelSettings, PromptSettings

    own = prepare_own_model(
        methods,
        PromptSettings(options.benches, options.limit),
        ModelSettings(options.model, options.draft_model, "float64", options.device, options.threads),
        lambda notice: click.echo(f"Note: {notice}", err=True),
    )

    def findings() -> Iterator[tuple[str, Iterator[Finding]]]:
        """The findings on each method, except those that `all` brought in and that cannot run here."""
        for choice in own.choices:
            if choice.unsupported:
                click.echo(f"Note: {choice.label} cannot run here: {choice.unsupported}.", err=True)
                continue
            new_tokens, draws = options.max_new_tokens, options.draws
            case = Case(choice.label, choice.method, own.target, own.drafts(choice), own.prompts, new_tokens, draws)
            yield choice.label, verify_case(case, Path(own.name).name)

    print_findings(findings(), WHAT, options.as_json)
