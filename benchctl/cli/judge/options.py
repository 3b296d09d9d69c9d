"""The options of `benchctl judge` that say who judges, how, and for how much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from benchctl.cli.options import options_from
from benchctl.options import setting

KEY_ENV = "OPENAI_API_KEY"
_BASE_URL_HELP = (
    "Server of gpt that speaks OpenAI's interface, such as http://localhost:8000/v1.  [default: OpenAI's own]"
)
_MAX_USD_HELP = "Send nothing that could bring what is spent above X."


@dataclass(frozen=True)
class JudgeOptions:
    """The options of `benchctl judge`, apart from its files and its output."""

    judge: str | None = setting(
        None,
        "Judge, perhaps with options: gpt[protocol=single] (see `benchctl list judges`).  [default: gpt where a key is "
        "set or --model given, else likelihood]",
        metavar="LABEL",
        completion="judges",
    )
    model: str = setting("", "The judge's model; the same as its option `model`.", metavar="NAME")
    base_url: str = setting("", _BASE_URL_HELP, metavar="URL")
    key_env: str = setting(KEY_ENV, "Environment variable with the key of gpt. It is written nowhere.", metavar="NAME")
    baseline_label: str = setting(
        "", "Whose answers to compare the others with.  [default: the run's baseline]", metavar="LABEL"
    )
    repeats: int = setting(
        1,
        "Ask everything K times, to see how far the judge agrees with itself; at temperature 0 its replies are mostly "
        "the same.",
        metavar="K",
        least=1,
    )
    tries: int = setting(
        3,
        "How often to ask until a reply can be read. An unreadable reply is counted, and never scored. With more tries "
        "than last time it is asked again.",
        least=1,
    )
    max_usd: float | None = setting(None, _MAX_USD_HELP, metavar="X", least=0)
    price_in: float | None = setting(
        None, "Price of a million prompt tokens, in place of the table's.", metavar="USD", least=0
    )
    price_out: float | None = setting(
        None, "Price of a million reply tokens, in place of the table's.", metavar="USD", least=0
    )
    concurrency: int = setting(4, "Most requests in flight.", metavar="N", least=1, most=64)
    cache: Path | None = setting(
        None,
        "Where every reply is kept; with it a judging can be repeated offline, for nothing.  [default: judge-cache "
        "next to the first results file]",
        metavar="FOLDER",
    )


@dataclass(frozen=True)
class _AfterRun:
    """The options of `benchctl run` about judging."""

    judge: str | None = setting(
        None,
        "Judge the answers as well, as `benchctl judge` does, by this judge: likelihood, or gpt[model=gpt-4o-mini].",
        metavar="LABEL",
        completion="judges",
    )
    base_url: str = setting("", _BASE_URL_HELP, metavar="URL")
    max_usd: float | None = setting(None, _MAX_USD_HELP, metavar="X", least=0)


asks_for_a_judge = options_from(JudgeOptions, "options")


def asks_for_judging(command: Callable[..., None]) -> Callable[..., None]:
    """Gives `benchctl run` the options to judge what it measured, and calls it with the JudgeOptions, or None."""

    @wraps(command)
    def gather(*, after: _AfterRun, **values: Any) -> None:
        if after.judge is None and (after.base_url or after.max_usd is not None):
            raise click.UsageError("--base-url and --max-usd are about judging: add --judge, or leave them out.")
        wanted = JudgeOptions(judge=after.judge, base_url=after.base_url, max_usd=after.max_usd)
        command(judging=None if after.judge is None else wanted, **values)

    return options_from(_AfterRun, "after")(gather)
