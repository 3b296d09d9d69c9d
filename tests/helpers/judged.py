"""Answers to judge, and a judging of them over real HTTP: everything is benchctl's own but the server and the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes_judges import Bench, rows_of
from fixtures_records import RUN, baseline_row, exiting_row, write
from judge_server import MODEL, Asked

from benchctl.judges.gpt import Gpt
from benchctl.judging.budget import Price
from benchctl.judging.judge import Place
from benchctl.judging.scoring import Judging, Summary
from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.prompts.suites import load_suite
from benchctl.measuring.run import suite_info
from benchctl.records.schema import Row

KEY_ENV = "BENCHCTL_TEST_KEY"
PRICE = Price(2.0, 8.0)


def good_and_bad(prompts: int) -> list[Row]:
    """To each prompt a good answer of the baseline, the same one, drafted, and a bad one that left early."""
    return rows_of(prompts, "The good answer to {}.", "The bad answer to {}.")


def answers_shown(asked: Asked) -> list[str]:
    """Which of `good` and `bad` a question shows first, and which second."""
    words = asked.body["messages"][-1]["content"].split()
    return [word for word in words if word in ("good", "bad")]


def fair(asked: Asked) -> str:
    """The reply of a judge that gives good answers 9 and bad ones 3, wherever they stand."""
    return " ".join({"good": "9", "bad": "3"}[word] for word in answers_shown(asked))


def measured_file(
    path: Path, suites: Mapping[str, int], answer: Callable[[Prompt, int, str], str]
) -> dict[tuple[str, str], Prompt]:
    """Write a results file of so many embedded prompts of each suite, and of answers by prompt, turn and label.

    Gives the prompts as judging wants them.
    """
    loaded = [
        load_suite(name, source="embedded", limit=prompts, notify=lambda notice: None)
        for name, prompts in suites.items()
    ]
    rows = [
        replace(row, suite=suite.name, turn=turn, text=answer(prompt, turn, row.label))
        for suite in loaded
        for prompt in suite.prompts
        for turn in range(len(prompt.turns))
        for row in (baseline_row(prompt.id), exiting_row(prompt.id))
    ]
    write(path, rows, replace(RUN, suites=tuple(map(suite_info, loaded))))
    return {(suite.name, prompt.id): prompt for suite in loaded for prompt in suite.prompts}


class Court(Bench):
    """A results file, a server, and the judging of one by the other; each `judge` is a process's worth of it."""

    def judged_by(
        self, url: str, *, options: Mapping[str, Any] | None = None, judge: Any = None, **settings: Any
    ) -> Judging:
        """By gpt at that address with `options`, or by another `judge`; `settings` are those of JudgeSettings."""
        judge = judge or Gpt(**{"model": MODEL, "timeout_s": 60.0, **(options or {})})
        judge.prepare(Place(base_url=url, key_env=KEY_ENV, runs=(RUN,)))
        return self.judging(judge, **{"price": PRICE, **settings})

    def judge(self, url: str, **settings: Any) -> Summary:
        return self.judged_by(url, **settings).run()
