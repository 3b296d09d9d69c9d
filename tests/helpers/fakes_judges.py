"""Judges that do as they are told, without a model, a network or a clock; and results for them to judge."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from fixtures_records import baseline_row, drafted_row, exiting_row, write

from benchctl.judging.budget import Price
from benchctl.judging.judge import AskedJudge, Message, Reply, Usage
from benchctl.judging.scoring import JudgeSettings, Judging, Progress, World
from benchctl.records.schema import Row
from benchctl.records.scores import Score, read_scores, scores_path
from benchctl.records.writer import read

USAGE = Usage(1000, 4)
MOST_TOKENS = 1300  # that a prompt may be billed as, for all that can be known beforehand
PRICE = Price(1.0, 0.0)  # a thousand prompt tokens cost a thousandth
COST_USD = 0.001
MOST_USD = 0.0013
MARK = re.compile(r" [0-9a-f]{16}(?=\])")  # of the lines around an answer, drawn for each request
Say = Callable[[Sequence[Message], int], Reply]


def says(text: str, usage: Usage | None = USAGE) -> Say:
    """A judge that always replies the same."""
    return lambda messages, tries: Reply(text, usage)


@dataclass
class Scripted(AskedJudge):
    """Replies as `say` has it, from the messages and how often they were sent before; remembers what it was sent."""

    say: Say = field(default=says("8 7"))
    model: str = "m"
    protocol: Literal["pairwise", "single"] = "pairwise"
    paid: ClassVar[bool] = True
    parallel: ClassVar[bool] = True
    asked: list[str] = field(default_factory=list)
    reached: int = 0
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def reach(self) -> None:
        self.reached += 1

    def ask(self, messages: Sequence[Message], sample: int) -> Reply:
        with self._lock:
            content = MARK.sub("", messages[-1].content)
            tries = self.asked.count(content)
            self.asked.append(content)
        return self.say(messages, tries)

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        return USAGE.prompt_tokens

    def most_prompt_tokens(self, messages: Sequence[Message]) -> int:
        return MOST_TOKENS


@dataclass(frozen=True)
class MadeUpPrompt:
    """What judging asks of a prompt."""

    turns: tuple[str, ...]
    reference: tuple[str, ...] = ()
    category: str = ""


def rows_of(prompts: int, base_text: str = "base {}", other_text: str = "other {}") -> list[Row]:
    """To each prompt an answer of the baseline, the same one, drafted, and another, that left early."""
    rows: list[Row] = []
    for number in range(prompts):
        base = replace(baseline_row(f"p{number}"), text=base_text.format(number))
        other = replace(exiting_row(f"p{number}"), text=other_text.format(number))
        rows += [base, replace(drafted_row(f"p{number}"), text=base.text), other]
    return rows


@dataclass
class Bench:
    """A results file and the judging of it; each `judge` is a process of its own as far as files can tell."""

    folder: Path
    rows: Sequence[Row]
    prompts: dict[tuple[str, str], Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    on_progress: Callable[[Progress], None] = lambda progress: None

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.results = write(self.folder / "first.jsonl", self.rows)
        known = {(row.suite, row.prompt_id): MadeUpPrompt((f"Ask {row.prompt_id}?",)) for row in self.rows}
        self.prompts = known | self.prompts

    def judging(self, judge: Any, **settings: Any) -> Judging:
        chosen = {"cache": self.folder / "cache", "concurrency": 1, "price": PRICE, **settings}
        world = World(lambda: "2026-01-01T00:00:00+00:00", self.notices.append, self._moved)
        return Judging([read(self.results)], self.prompts, JudgeSettings("scripted", judge, **chosen), world)

    def _moved(self, progress: Progress) -> None:
        self.progress.append(progress)
        self.on_progress(progress)

    def scores(self) -> list[Score]:
        path = scores_path(self.results)
        return list(read_scores(path).scores) if path.exists() else []

    def forget_scores(self) -> None:
        scores_path(self.results).unlink()
