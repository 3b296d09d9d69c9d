"""What judging is asked to do, and what it tells while it does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchctl.judging.budget import Spent
from benchctl.judging.items import BOTH_ORDERS, JudgeName
from benchctl.judging.judge import Usage
from benchctl.judging.patience import BackOff, Timer
from benchctl.judging.prices import Price
from benchctl.records.scores import Order


@dataclass(frozen=True)
class JudgeSettings:
    """`judge` is prepared; `baseline` is "" for each run's own; `samples` is how often each judgement is made, `tries`
    how often an unreadable reply is asked for again, the first included. `price` is None where nobody knows it.
    `forget_batches` gives up batches that the server does not give any more."""

    judge: JudgeName
    cache: Path
    baseline: str = ""
    orders: tuple[Order, ...] = BOTH_ORDERS
    samples: int = 1
    price: Price | None = None
    max_usd: float | None = None
    concurrency: int = 4
    batch: bool = False
    forget_batches: bool = False
    skip_long: bool = False
    tries: int = 3
    back_off: BackOff = BackOff()


@dataclass(frozen=True)
class Progress:
    """How many judgements are made, of how many, and what it cost so far."""

    done: int
    total: int
    spent: Spent


@dataclass(frozen=True)
class World:
    """What judging needs beside its files: the time, chance, and whom to tell."""

    timer: Timer
    chance: Callable[[], float]
    now: Callable[[], str]
    notify: Callable[[str], None]
    progress: Callable[[Progress], None]


@dataclass(frozen=True)
class Forecast:
    """What a judging would do. `left_out` counts answers by what they lack; `handed_in` are questions of batches that
    were not collected yet. `usd` and, at their dearest, `most_usd` are None where nobody knows the price."""

    judgements: int
    stored: int
    ties: int
    recalled: int = 0
    questions: int = 0
    too_long: int = 0
    handed_in: int = 0
    usage: Usage = Usage(0, 0)
    usd: float | None = 0.0
    most_usd: float | None = 0.0
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """What a judging did: `written` scores, of which `ties` were never asked about, `recalled` were paid for earlier
    or share a reply, and `unreadable` have no scores. `unasked` were left for the budget's sake."""

    judgements: int
    stored: int
    written: int
    ties: int
    recalled: int
    unreadable: int
    unasked: int
    spent: Spent
    left_out: Mapping[str, int]
