"""The settings of a judging, and its reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchctl.judging.budget import Price, Spent
from benchctl.judging.items import JudgeName
from benchctl.judging.judge import Usage


@dataclass(frozen=True)
class JudgeSettings:
    """`judge` is prepared; `baseline` is "" for each run's own; `samples` is how often each judgement is made, `tries`
    how often a question is asked at most until its reply can be read. `price` is None where it is unknown."""

    judge: JudgeName
    cache: Path
    baseline: str = ""
    samples: int = 1
    price: Price | None = None
    max_usd: float | None = None
    concurrency: int = 4
    tries: int = 3


@dataclass(frozen=True)
class Progress:
    """How many judgements are made, of how many, and what it cost so far."""

    done: int
    total: int
    spent: Spent


@dataclass(frozen=True)
class World:
    """What judging needs in addition to its files: the time in UTC, and who is notified."""

    now: Callable[[], str]
    notify: Callable[[str], None]
    progress: Callable[[Progress], None]


@dataclass(frozen=True)
class Forecast:
    """What a judging would do. `left_out` counts answers by what they lack. `usd` is an estimate, `most_usd` a bound of
    one reply to each question; both are None where the price is unknown."""

    judgements: int
    stored: int
    ties: int
    recalled: int = 0
    questions: int = 0
    too_long: int = 0
    usage: Usage = Usage(0, 0)
    usd: float | None = 0.0
    most_usd: float | None = 0.0
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """What a judging did: `written` scores, of which `ties` were never asked about, `recalled` were paid for earlier
    or share a reply, and `unreadable` have no scores. `unasked` did not fit into the budget."""

    judgements: int
    stored: int
    written: int
    ties: int
    recalled: int
    unreadable: int
    unasked: int
    spent: Spent
    left_out: Mapping[str, int]
