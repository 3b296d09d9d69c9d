"""Synthetic results files of any size, with times that vary as measured ones do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, islice
from pathlib import Path

from fixtures_records import RUN, TARGET, baseline_row, method

from benchctl.records.schema import Mode, Row, Run, SuiteInfo, to_line

REPEATS = 5
BASELINE, DRAFTING = "autoregressive", "two_model"
_TEXT = "so " * 200


@dataclass(frozen=True)
class MadeUp:
    """Answers of `tokens` tokens, an odd number, by the baseline and by a method that commits two tokens a step, five
    repeats of each prompt in every mode."""

    modes: tuple[Mode, ...] = ("free",)
    tokens: int = 129

    def write(self, path: Path, generations: int) -> None:
        """A results file of so many of these."""
        with path.open("wb") as file:
            file.write(to_line(self.run))
            for row in islice(self.rows(), generations):
                file.write(to_line(row))

    def rows(self) -> Iterator[Row]:
        """Prompt after prompt, without end."""
        chance = random.Random(0)
        for number in count():
            ids = tuple(chance.randrange(TARGET.vocabulary) for _ in range(self.tokens))
            usual = [self._row(BASELINE, 1, number, ids), self._row(DRAFTING, 2, number, ids)]
            for repeat in range(REPEATS):
                for mode in self.modes:
                    for row in usual:
                        yield self._timed(row, mode, repeat, chance)

    def _timed(self, row: Row, mode: Mode, repeat: int, chance: random.Random) -> Row:
        times_s = tuple(round(chance.uniform(0.009, 0.011), 6) for _ in row.step_s)
        phases = {"verify": times_s, "host": (0.0,) * len(times_s)} if mode == "profile" else {}
        return replace(row, repeat=repeat, mode=mode, step_s=times_s, phases=phases)

    def _row(self, label: str, committed: int, prompt: int, ids: tuple[int, ...]) -> Row:
        steps = (self.tokens - 1) // committed
        drafted = 3 * (committed - 1)
        return replace(
            baseline_row(f"p{prompt}", tokens=self.tokens, ttft_s=0.02),
            suite="made-up",
            label=label,
            prompt_tokens=30,
            token_ids=ids,
            text=_TEXT,
            step_s=(0.01,) * steps,
            committed=(committed,) * steps,
            drafted=(drafted,) * steps,
            accepted=(committed - 1,) * steps,
            rows=(drafted + 1,) * steps,
        )

    @cached_property
    def run(self) -> Run:
        """The run of these rows."""
        return replace(
            RUN,
            name="large",
            target=replace(TARGET, context_tokens=30 + self.tokens),
            suites=(SuiteInfo(name="made-up", source="file", origin="tests", sha256="d", prompts=1),),
            methods=(method(BASELINE), method(DRAFTING)),
            threads=1,
            max_new_tokens=self.tokens,
            repeats=REPEATS,
            modes=self.modes,
        )
