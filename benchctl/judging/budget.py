"""What judging costs: prices of a shipped, dated table or given by hand, and a bound that no request may pass."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from benchctl.errors import UserError
from benchctl.judging.judge import Usage

_MILLION = 1_000_000
_DATED = re.compile(r"-\d{4}-\d{2}-\d{2}$")  # gpt-4o-2024-08-06 costs what gpt-4o does


@dataclass(frozen=True)
class Price:
    """USD per million tokens of prompts and of replies."""

    in_usd: float
    out_usd: float

    def cost_usd(self, usage: Usage) -> float:
        """What a reply costs."""
        return (usage.prompt_tokens * self.in_usd + usage.reply_tokens * self.out_usd) / _MILLION


@dataclass(frozen=True)
class PriceTable:
    """The shipped prices, and when and where they are from; by model, as are the tokens of its context."""

    date: str
    source: str
    models: dict[str, dict[str, float]]

    def price(self, model: str) -> Price | None:
        known = self._model(model)
        return Price(known["in_usd"], known["out_usd"]) if known else None

    def context_tokens(self, model: str) -> int | None:
        """The most tokens that a prompt and its reply may have together; None for a model that is not in the table."""
        known = self._model(model)
        return int(known["context_tokens"]) if known else None

    def _model(self, model: str) -> dict[str, float] | None:
        return self.models.get(model) or self.models.get(_DATED.sub("", model))


@cache
def price_table() -> PriceTable:
    """The table in assets/prices.json."""
    return PriceTable(**json.loads(files("benchctl").joinpath("assets/prices.json").read_text("utf-8")))


def price_of(model: str, in_usd: float | None, out_usd: float | None, *, at_usual_address: bool) -> Price | None:
    """The price by hand where both parts are given, else that of the table; None where it is unknown.

    The table is of the usual address: elsewhere a model of the same name may cost anything. Raises UserError where one
    part is given and the other is not known.
    """
    known = price_table().price(model) if at_usual_address else None
    if in_usd is None and out_usd is None:
        return known
    if known is None and (in_usd is None or out_usd is None):
        raise UserError(
            "one_price_missing", "--price-in and --price-out need each other: the table has no price of this model."
        )
    known = known or Price(0.0, 0.0)
    return Price(known.in_usd if in_usd is None else in_usd, known.out_usd if out_usd is None else out_usd)


NOTHING = Usage(0, 0)
_ABSURD = 10  # times the most that a request can be billed for: tokenizers and thinking differ by less


class OutOfBudget(Exception):
    """The next request could pass the budget, and none is in flight that may turn out cheaper than feared."""


@dataclass(frozen=True)
class Spent:
    """What requests cost so far. `usd` is None where the price is unknown. `doubtful_usd` is the part counted at
    the highest possible cost, for requests that broke off or whose bill is missing or impossible; `refused_bills`
    counts the impossible ones."""

    prompt_tokens: int = 0
    reply_tokens: int = 0
    usd: float | None = None
    doubtful_usd: float = 0.0
    refused_bills: int = 0


class Budget:
    """Counts what is spent and what requests in flight may cost at most. May be used by several threads.

    `max_usd` bounds their sum, where it is given; `price` is None where it is unknown, and then nothing is bounded.
    """

    def __init__(self, price: Price | None, max_usd: float | None) -> None:
        self.price, self._max_usd = price, max_usd
        self._reserved_usd = 0.0
        self._in_flight = 0
        self._spent = Spent(usd=None if price is None else 0.0)
        self._changed = threading.Condition()

    @property
    def spent(self) -> Spent:
        return self._spent

    def cost_usd(self, usage: Usage) -> float | None:
        return None if self.price is None else self.price.cost_usd(usage)

    def reserve(self, most: Usage) -> None:
        """Set aside what a question costs at most; waits while those in flight may turn out cheaper.

        Raises OutOfBudget where there is not enough left and nothing to wait for.
        """
        cost = self.cost_usd(most) or 0.0
        with self._changed:
            while self._max_usd is not None and (self._spent.usd or 0.0) + self._reserved_usd + cost > self._max_usd:
                if not self._in_flight:
                    raise OutOfBudget
                self._changed.wait()
            self._reserved_usd += cost
            self._in_flight += 1

    def refuses(self, billed: Usage, most: Usage) -> bool:
        """Whether a bill is absurd, far beyond what was sent and asked for. Such bills are counted, and not added."""
        prompt, reply = most.prompt_tokens * _ABSURD, most.reply_tokens * _ABSURD
        absurd = billed.prompt_tokens > prompt or billed.reply_tokens > reply
        with self._changed:
            self._spent = replace(self._spent, refused_bills=self._spent.refused_bills + absurd)
        return absurd

    def settle(self, reserved: Usage, billed: Usage, doubtful: Usage = NOTHING) -> None:
        """Replace a reservation by what was billed, and by what may have been: the latter counts in full."""
        total = billed + doubtful
        usd = self.cost_usd(total)
        with self._changed:
            spent = self._spent
            self._spent = replace(
                spent,
                prompt_tokens=spent.prompt_tokens + total.prompt_tokens,
                reply_tokens=spent.reply_tokens + total.reply_tokens,
                usd=None if spent.usd is None or usd is None else spent.usd + usd,
                doubtful_usd=spent.doubtful_usd + (self.cost_usd(doubtful) or 0.0),
            )
            self._in_flight -= 1
            # Sums of floats drift; with nothing in flight nothing is reserved.
            left_usd = self._reserved_usd - (self.cost_usd(reserved) or 0.0)
            self._reserved_usd = left_usd if self._in_flight else 0.0
            self._changed.notify_all()
