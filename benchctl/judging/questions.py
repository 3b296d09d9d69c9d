"""Items that ask the very same are one question: asked once, the reply is the score of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from benchctl.errors import UserError
from benchctl.judging.asking import Asked
from benchctl.judging.cache import content_key
from benchctl.judging.items import Item
from benchctl.judging.judge import AskedJudge, Usage


@dataclass(frozen=True)
class Task:
    """What is to be asked, the items that it is asked for, and about how many tokens its prompt has."""

    asked: Asked
    items: tuple[Item, ...]
    prompt_tokens: int


def tasks_of(judge: AskedJudge, items: Iterable[Item]) -> tuple[Task, ...]:
    """The questions of items, in the order in which they first come up."""
    sharing: dict[str, list[Item]] = {}
    first: dict[str, Asked] = {}
    tokens: dict[str, int] = {}
    for item in items:
        blank, messages = item.blank, judge.messages(item.question)
        key = content_key(blank.judge, blank.model, blank.template, messages, blank.sample)
        if key not in sharing:
            tokens[key] = judge.prompt_tokens(messages)
            most = Usage(judge.most_prompt_tokens(messages), judge.reply_limit)
            first[key] = Asked(key, messages, blank.sample, blank.template, most)
        sharing.setdefault(key, []).append(item)
    return tuple(Task(first[key], tuple(group), tokens[key]) for key, group in sharing.items())


def only(tasks: Iterable[Task], items: Iterable[Item]) -> tuple[Task, ...]:
    """The questions that are asked for these items, and for no others."""
    wanted = {item.place for item in items}
    cut = (replace(task, items=tuple(item for item in task.items if item.place in wanted)) for task in tasks)
    return tuple(task for task in cut if task.items)


def fits(judge: AskedJudge, task: Task) -> bool:
    """Whether prompt and reply fit the judge, as far as anybody can tell."""
    return judge.context_tokens is None or task.prompt_tokens + judge.reply_limit <= judge.context_tokens


def refuse_too_long(judge: AskedJudge, tasks: Sequence[Task]) -> None:
    """Raises UserError, naming the longest, if there are tasks that do not fit."""
    if not tasks:
        return
    longest = max(tasks, key=lambda task: task.prompt_tokens)
    blank = longest.items[0].blank
    raise UserError(
        f"{len(tasks)} questions are too long for the judge, which takes {judge.context_tokens} tokens, its reply "
        f"included: that about prompt {blank.prompt_id} of {blank.suite}, {blank.label}, has about "
        f"{longest.prompt_tokens}. Ask a judge of longer context, or leave these out with --long-answers skip."
    )
