"""Questions to a judge: each is asked within a budget until a reply can be read, and every reply is kept first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import NamedTuple

from benchctl.judging.budget import NOTHING, Budget, OutOfBudget
from benchctl.judging.items import Item
from benchctl.judging.judge import AskedJudge, Message, Reply, Usage
from benchctl.judging.reply_cache import Cache, Kept, Outcome, content_key


@dataclass(frozen=True)
class Task:
    """A question, and the items whose score its reply is: items that ask the very same share one.

    `key` is what its replies are kept by, `prompt_tokens` an estimate, and `most` the most that one try is billed for.
    """

    key: str
    messages: tuple[Message, ...]
    items: tuple[Item, ...]
    prompt_tokens: int
    most: Usage

    def fits(self, judge: AskedJudge) -> bool:
        """Whether prompt and reply fit the judge's context, by the estimate."""
        return judge.context_tokens is None or self.prompt_tokens + judge.reply_limit <= judge.context_tokens


def tasks_of(judge: AskedJudge, items: Iterable[Item]) -> tuple[Task, ...]:
    """The questions of items, in the order in which they first come up."""
    tasks: dict[str, Task] = {}
    sharing: dict[str, list[Item]] = {}
    for item in items:
        blank, messages = item.blank, judge.messages(item.question)
        key = content_key(blank.judge, blank.model, blank.template, messages, blank.sample)
        if key not in tasks:
            most = Usage(judge.most_prompt_tokens(messages), judge.reply_limit)
            tasks[key] = Task(key, messages, (), judge.prompt_tokens(messages), most)
        sharing.setdefault(key, []).append(item)
    return tuple(replace(task, items=tuple(sharing[key])) for key, task in tasks.items())


def only(tasks: Iterable[Task], items: Iterable[Item]) -> tuple[Task, ...]:
    """The questions that are asked for these items, and for no others."""
    wanted = {item.key for item in items}
    cut = (replace(task, items=tuple(item for item in task.items if item.key in wanted)) for task in tasks)
    return tuple(task for task in cut if task.items)


class Stopped(Exception):
    """The judging ends; nothing was sent."""


class Asker:
    """Asks a judge within a budget, up to `most_tries` times per question. May be used by several threads."""

    def __init__(
        self, judge: AskedJudge, cache: Cache, budget: Budget, *, most_tries: int, now: Callable[[], str]
    ) -> None:
        self.judge, self.cache, self.budget = judge, cache, budget
        self.stop = threading.Event()
        self._most_tries, self._now = most_tries, now

    def outcome(self, task: Task, cached: int | None = None) -> Outcome | None:
        """What the replies in the cache amount to, the first `cached` of which (None: all) are of earlier judgings.

        None where the judge must be asked.
        """
        tries = self.cache.tries(task.key)
        if not tries:
            return None
        last = tries[-1]
        scores = None if last.problem else self.judge.read(last.text)
        if scores is None and len(tries) < self._most_tries:
            return None
        unreadable = "" if scores else last.problem or "it does not hold the scores asked for"
        fresh = tries[len(tries) if cached is None else cached :]
        return Outcome(scores, unreadable, len(tries), last.text, fresh)

    def ask(self, task: Task) -> Outcome:
        """Ask until there is an outcome. Raises OutOfBudget, Stopped, and UserError as the judge does."""
        cached = len(self.cache.tries(task.key))
        while (outcome := self.outcome(task, cached)) is None:
            self._send(task)
        return outcome

    def _send(self, task: Task) -> None:
        reserved = task.most.times(self.judge.most_sends)
        self.budget.reserve(reserved)
        if self.stop.is_set():
            self.budget.settle(reserved, NOTHING)
            raise Stopped
        billed, doubtful = NOTHING, reserved  # of a question without a reply nobody knows whether it was billed
        try:
            reply = self.judge.ask(task.messages, task.items[0].blank.sample)
            self._keep(task, reply)
            billed = reply.usage or NOTHING
            doubtful = task.most.times(reply.lost_sends + (reply.usage is None))
        finally:
            self.budget.settle(reserved, billed, doubtful)

    def _keep(self, task: Task, reply: Reply) -> None:
        """Write a reply to the cache, before anything else happens with it."""
        blank, usage = task.items[0].blank, reply.usage
        self.cache.keep(
            Kept(
                key=task.key,
                sample=blank.sample,
                model=self.judge.model_id,
                template=blank.template,
                text=reply.text,
                problem=reply.problem,
                prompt_tokens=None if usage is None else usage.prompt_tokens,
                reply_tokens=None if usage is None else usage.reply_tokens,
                answered_at=self._now(),
            )
        )


class Answered(NamedTuple):
    """A question and its outcome."""

    task: Task
    outcome: Outcome


def ask_all(asker: Asker, tasks: Sequence[Task], at_once: int) -> Generator[Answered]:
    """Ask questions, `at_once` at a time, and give what came of them in the order in which they are done.

    The first is asked alone, so that a wrong key fails once. After the first error nothing more is sent; what is in
    flight is waited for and handed on, then the error is raised. Where the budget has no room for more it ends the same
    way, without an error. Raises UserError as Asker.ask does.
    """
    failure: Exception | None = None
    with ThreadPoolExecutor(at_once, thread_name_prefix="judge") as pool:
        try:
            for done in _futures(asker, pool, tasks):
                try:
                    yield done.result()
                except (Stopped, OutOfBudget):
                    continue
                except Exception as error:
                    failure = failure or error
        finally:
            # An interrupt waits for what is in flight, so that its replies are kept, and for nothing else.
            asker.stop.set()
    if failure is not None:
        raise failure


def _futures(asker: Asker, pool: ThreadPoolExecutor, tasks: Sequence[Task]) -> Iterator[Future[Answered]]:
    def answer(task: Task) -> Answered:
        try:
            return Answered(task, asker.ask(task))
        except BaseException:
            asker.stop.set()  # in this thread, which would take the next task before others learn of the error
            raise

    for group in (tasks[:1], tasks[1:]):
        number_of = {pool.submit(answer, task): number for number, task in enumerate(group)}
        waiting = set(number_of)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from sorted(done, key=number_of.__getitem__)
