"""A bound on what judging may cost: no request is sent that, at its dearest, could pass it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from benchctl.errors import UserError
from benchctl.judging.judge import AskedJudge, Judge, Usage
from benchctl.judging.prices import Price


class OutOfBudget(Exception):
    """The next request could pass the budget, and none is in flight that may turn out cheaper than feared."""


@dataclass(frozen=True)
class Spent:
    """What requests cost so far. `usd` is None where nobody knows the price; `doubtful_usd` is the part of it that was
    counted at its dearest, for requests that broke off or came back without a bill."""

    prompt_tokens: int = 0
    reply_tokens: int = 0
    usd: float | None = None
    doubtful_usd: float = 0.0


class Budget:
    """Counts what is spent and what requests in flight may cost at most. May be used by several threads.

    `max_usd` bounds their sum, where it is given; `price` is None where nobody knows it, and then nothing is bounded.
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

    def reserve(self, most: Usage, *, wait: bool = True) -> None:
        """Set aside what a request costs at most; waits, if it may, while those in flight may turn out cheaper.

        Raises OutOfBudget where there is not enough left and nothing to wait for.
        """
        cost = self.cost_usd(most) or 0.0
        with self._changed:
            while self._max_usd is not None and (self._spent.usd or 0.0) + self._reserved_usd + cost > self._max_usd:
                if not (wait and self._in_flight):
                    raise OutOfBudget
                self._changed.wait()
            self._take(cost)

    def adopt(self, most: Usage) -> None:
        """Count a request as in flight that was sent earlier, whatever is left."""
        with self._changed:
            self._take(self.cost_usd(most) or 0.0)

    def settle(self, most: Usage, usage: Usage | None) -> None:
        """A reserved request came back, billed for `usage`; None: counted at its dearest, for nobody told."""
        cost, billed = self.cost_usd(most), usage or most
        usd = self.cost_usd(billed)
        with self._changed:
            spent = self._spent
            self._spent = Spent(
                spent.prompt_tokens + billed.prompt_tokens,
                spent.reply_tokens + billed.reply_tokens,
                None if spent.usd is None or usd is None else spent.usd + usd,
                spent.doubtful_usd + (0.0 if usage else cost or 0.0),
            )
            self._free(cost)

    def release(self, most: Usage) -> None:
        """A reserved request failed and costs nothing."""
        with self._changed:
            self._free(self.cost_usd(most))

    def _take(self, cost: float) -> None:
        self._reserved_usd += cost
        self._in_flight += 1

    def _free(self, cost: float | None) -> None:
        self._in_flight -= 1
        # Sums of floats drift; with nothing in flight nothing is reserved.
        self._reserved_usd = self._reserved_usd - (cost or 0.0) if self._in_flight else 0.0
        self._changed.notify_all()


def is_paid(judge: Judge) -> bool:
    """Whether a judge costs money."""
    return isinstance(judge, AskedJudge) and judge.paid


def check_budget(judge: Judge, price: Price | None, max_usd: float | None) -> None:
    """Raises UserError where a budget is set on a price that nobody knows."""
    if max_usd is not None and price is None and is_paid(judge):
        raise UserError(
            f"--max-usd cannot be held: nobody here knows what '{judge.model}' costs. Give --price-in and --price-out "
            "to `benchctl judge`, in USD per million tokens."
        )
