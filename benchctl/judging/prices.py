"""What a judge's tokens cost: a table shipped with its date, or prices given by hand."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from benchctl.errors import UserError
from benchctl.judging.judge import Usage

_MILLION = 1_000_000
_DATED = re.compile(r"-\d{4}-\d{2}-\d{2}$")  # gpt-4o-2024-08-06 costs what gpt-4o does


@dataclass(frozen=True)
class Price:
    """USD per million tokens of prompts and of replies; `batch_factor` is what a batch costs of that."""

    in_usd: float
    out_usd: float
    batch_factor: float = 1.0

    def cost_usd(self, usage: Usage) -> float:
        """What a reply costs."""
        return (usage.prompt_tokens * self.in_usd + usage.reply_tokens * self.out_usd) / _MILLION

    def in_batches(self) -> Price:
        """The price of the same tokens in a batch."""
        return Price(self.in_usd * self.batch_factor, self.out_usd * self.batch_factor)


@dataclass(frozen=True)
class PriceTable:
    """The shipped prices, and when and where they are from. `context_tokens` is by model, as are prices."""

    date: str
    source: str
    prices: dict[str, Price]
    contexts: dict[str, int]

    def price(self, model: str) -> Price | None:
        return self.prices.get(model) or self.prices.get(_DATED.sub("", model))

    def context_tokens(self, model: str) -> int | None:
        """The most tokens that a prompt and its reply may have together; None for a model that is not in the table."""
        return self.contexts.get(model) or self.contexts.get(_DATED.sub("", model))


@cache
def price_table() -> PriceTable:
    """The table in assets/prices.json."""
    told = json.loads(files("benchctl").joinpath("assets/prices.json").read_text("utf-8"))
    models, factor = told["models"], told["batch_factor"]
    prices = {name: Price(model["in_usd"], model["out_usd"], factor) for name, model in models.items()}
    contexts = {name: model["context_tokens"] for name, model in models.items()}
    return PriceTable(told["date"], told["source"], prices, contexts)


def price_of(model: str, in_usd: float | None, out_usd: float | None, *, at_usual_address: bool) -> Price | None:
    """The price by hand where both parts are given, else that of the table; None where nobody knows it.

    The table is of the usual address: elsewhere a model of the same name may cost anything. Raises UserError where one
    part is given and the other is not known.
    """
    known = price_table().price(model) if at_usual_address else None
    if in_usd is None and out_usd is None:
        return known
    given = known or Price(-1.0, -1.0)
    price = replace(
        given,
        in_usd=given.in_usd if in_usd is None else in_usd,
        out_usd=given.out_usd if out_usd is None else out_usd,
    )
    if price.in_usd < 0 or price.out_usd < 0:
        raise UserError("--price-in and --price-out need each other: the table knows no price of this model.")
    return price
