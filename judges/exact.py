"""Judge by exact match: an answer scores 1 if it ends with the exact answer of its prompt, else 0.

An exact answer that is one number is compared by value with the last number, any other one with the last words.

For prompts that have one: the suites `tasks` and `gsm8k`, and your own files with exact answers.
See benchctl.exact_match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchctl.errors import UserError
from benchctl.exact_match import is_right
from benchctl.judging.judge import GradingJudge, Place, Question, Row, Run


@dataclass
class Exact(GradingJudge):
    """Score 1 for a correct answer and 0 for a wrong one, where the prompt has an exact answer."""

    model: str = field(default="", init=False)
    protocol: Literal["exact"] = field(default="exact", init=False)

    def prepare(self, place: Place) -> None:
        """Raises UserError where a run has no prompt with an exact answer."""
        for run in place.runs:
            if not any(any(answers) for suite in run.suites for answers in suite.exact_answers.values()):
                raise UserError(
                    "no_exact_answers",
                    f"No prompt of {run.name} has an exact answer, so exact has nothing to grade by. Judge with "
                    "another --judge, or measure the suite tasks, gsm8k or a file of prompts with exact answers.",
                )

    def grade(self, run: Run, rows: Sequence[Row], question: Question) -> float | None:
        exact_answer = question.exact_answer
        return float(is_right(rows[-1].text, exact_answer)) if exact_answer else None
