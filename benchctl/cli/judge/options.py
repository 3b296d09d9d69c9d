"""The options of `benchctl judge` that say who judges, how, and for how much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from benchctl.cli import completion as completing
from benchctl.cli.options import FiniteRange

KEY_ENV = "OPENAI_API_KEY"


@dataclass(frozen=True)
class JudgeOptions:
    """What was asked for on the command line."""

    judge: str | None = None
    model: str = ""
    base_url: str = ""
    key_env: str = KEY_ENV
    baseline_label: str = ""
    repeats: int = 1
    tries: int = 3
    max_usd: float | None = None
    price_in: float | None = None
    price_out: float | None = None
    concurrency: int = 4
    cache: Path | None = None


BASE_URL = click.option(
    "--base-url",
    default="",
    metavar="URL",
    help="Server of gpt that speaks OpenAI's interface, such as http://localhost:8000/v1.  [default: OpenAI's own]",
)
MAX_USD = click.option(
    "--max-usd",
    type=FiniteRange(min=0),
    metavar="X",
    help="Send nothing that could bring what is spent above X.",
)
_WHO = (
    click.option(
        "--judge",
        "judge",
        metavar="LABEL",
        shell_complete=completing.judges,
        help="Judge, perhaps with options: gpt[protocol=single] (see `benchctl list judges`).  [default: gpt where a "
        "key is set or --model given, else likelihood]",
    ),
    click.option("--model", default="", metavar="NAME", help="The judge's model; the same as its option `model`."),
    BASE_URL,
    click.option(
        "--key-env",
        default=KEY_ENV,
        show_default=True,
        metavar="NAME",
        help="Environment variable with the key of gpt. It is written nowhere.",
    ),
)
_WHAT = (
    click.option(
        "--baseline-label",
        default="",
        metavar="LABEL",
        help="Whose answers to set the others against.  [default: the run's baseline]",
    ),
    click.option(
        "--repeats",
        type=click.IntRange(min=1),
        default=JudgeOptions.repeats,
        show_default=True,
        metavar="K",
        help="Ask everything K times over, to see how far the judge agrees with itself; at temperature 0 it mostly "
        "says the same.",
    ),
    click.option(
        "--tries",
        type=click.IntRange(min=1),
        default=JudgeOptions.tries,
        show_default=True,
        help="How often to ask until a reply can be read; what cannot is counted, and never scored. With more than "
        "last time it is asked again.",
    ),
)
_MONEY = (
    MAX_USD,
    click.option(
        "--price-in", type=FiniteRange(min=0), metavar="USD", help="Price of a million prompt tokens, for the table's."
    ),
    click.option(
        "--price-out", type=FiniteRange(min=0), metavar="USD", help="Price of a million reply tokens, for the table's."
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(min=1, max=64),
        default=JudgeOptions.concurrency,
        show_default=True,
        metavar="N",
        help="Most requests in flight.",
    ),
    click.option(
        "--cache",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="FOLDER",
        help="Where every reply is kept; with it a judging can be repeated offline, for nothing.  [default: "
        "judge-cache beside the first results file]",
    ),
)


def asks_for_a_judge(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command these options, and calls it with the JudgeOptions that they become."""

    @wraps(command)
    def gather(**values: Any) -> None:
        options = JudgeOptions(**{name: values.pop(name) for name in JudgeOptions.__dataclass_fields__})
        command(options, **values)

    for option in reversed((*_WHO, *_WHAT, *_MONEY)):
        gather = option(gather)
    return gather


def asks_for_judging(command: Callable[..., None]) -> Callable[..., None]:
    """Gives `benchctl run` the options to judge what it measured, and calls it with the JudgeOptions, or None."""

    @wraps(command)
    def gather(*, judge: str | None, base_url: str, max_usd: float | None, **values: Any) -> None:
        if judge is None and (base_url or max_usd is not None):
            raise click.UsageError("--base-url and --max-usd are about judging: add --judge, or leave them out.")
        wanted = None if judge is None else JudgeOptions(judge=judge, base_url=base_url, max_usd=max_usd)
        command(judging=wanted, **values)

    judge = click.option(
        "--judge",
        "judge",
        metavar="LABEL",
        shell_complete=completing.judges,
        help="Judge the answers as well, as `benchctl judge` does, by this judge: likelihood, or "
        "gpt[model=gpt-4o-mini].",
    )
    for option in reversed((judge, BASE_URL, MAX_USD)):
        gather = option(gather)
    return gather
