"""What judging will cost, told before anything is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchctl.judging.asking import Asker
from benchctl.judging.judge import Usage
from benchctl.judging.questions import Task
from benchctl.judging.tokens import correction

# What the scores asked for, and nothing else, take as a reply: "8 7", and what ends it.
_PAIRWISE_REPLY_TOKENS = 4
_SINGLE_REPLY_TOKENS = 2


@dataclass(frozen=True)
class Estimate:
    """`questions` that have no reply yet, and what asking each of them once takes: about `usd`, and `most_usd` at its
    dearest. None: nobody knows the price."""

    questions: int
    usage: Usage
    usd: float | None
    most_usd: float | None


def estimate(asker: Asker, tasks: Sequence[Task], todo: Sequence[Task]) -> Estimate:
    """What `todo` will take. Where replies to others of `tasks` say what was billed, it is counted as they were."""
    pairs = [
        (kept.prompt_tokens, task.prompt_tokens)
        for task in tasks
        for kept in asker.cache.tries(task.asked.key)
        if kept.prompt_tokens is not None
    ]
    prompt_tokens = round(correction(pairs) * sum(task.prompt_tokens for task in todo))
    each = _PAIRWISE_REPLY_TOKENS if asker.judge.protocol == "pairwise" else _SINGLE_REPLY_TOKENS
    usage = Usage(prompt_tokens, min(each, asker.judge.reply_limit) * len(todo))
    most = Usage(
        sum(task.asked.most.prompt_tokens for task in todo), sum(task.asked.most.reply_tokens for task in todo)
    )
    return Estimate(len(todo), usage, asker.budget.cost_usd(usage), asker.budget.cost_usd(most))
