"""Questions to a judge: each is asked within a budget until a reply can be read, and every reply is kept first."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue

from benchctl.judging.budget import NOTHING, Budget, OutOfBudget
from benchctl.judging.items import Item
from benchctl.judging.judge import AskedJudge, NoReply, Question, Reply, Usage
from benchctl.judging.reply_cache import Cache, Kept, Outcome, content_key

# Pauses before a request is sent again double from the first one. After a minute of them the judging gives up.
FIRST_PAUSE_S = 0.5
PATIENCE_S = 60.0
LAST_WAIT_S = 1.0  # after an interrupt, for replies in flight
_MARK_DIGITS = 16


@dataclass(frozen=True)
class Task:
    """A question, and the items whose score its reply is: items that ask the very same share one.

    `key` is what its replies are kept by, `prompt_tokens` an estimate, and `most` the most that one try is billed for.
    """

    key: str
    question: Question
    items: tuple[Item, ...]
    prompt_tokens: int
    most: Usage

    def fits(self, judge: AskedJudge) -> bool:
        """Whether prompt and reply fit the judge's context, by the estimate."""
        return judge.context_tokens is None or self.prompt_tokens + judge.reply_limit <= judge.context_tokens


def tasks_of(judge: AskedJudge, items: Iterable[Item]) -> tuple[Task, ...]:
    """The questions of items, in the order in which they first come up. Their keys and sizes know no mark."""
    tasks: dict[str, Task] = {}
    sharing: dict[str, list[Item]] = {}
    for item in items:
        blank, question = item.blank, item.question
        messages = judge.messages(question, "0" * _MARK_DIGITS)
        key = content_key(blank.judge, blank.model, blank.template, messages, blank.sample)
        if key not in tasks:
            most = Usage(judge.most_prompt_tokens(messages), judge.reply_limit)
            tasks[key] = Task(key, question, (), judge.prompt_tokens(messages), most)
        sharing.setdefault(key, []).append(item)
    return tuple(replace(task, items=tuple(sharing[key])) for key, task in tasks.items())


def new_mark() -> str:
    """What no answer can contain: it is drawn for each request."""
    return secrets.token_hex(_MARK_DIGITS // 2)


class Stopped(Exception):
    """The judging ends; nothing is in flight for this question."""


class Asker:
    """Asks a judge within a budget, up to `most_tries` times per question. May be used by several threads."""

    def __init__(
        self, judge: AskedJudge, cache: Cache, budget: Budget, *, most_tries: int, now: Callable[[], str]
    ) -> None:
        self.judge, self.cache, self.budget = judge, cache, budget
        self.stop = threading.Event()
        self._most_tries, self._now = 1 if judge.repeats_itself else most_tries, now

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
        unreadable = "" if scores else last.problem or "it does not contain the scores asked for"
        fresh = tries[len(tries) if cached is None else cached :]
        return Outcome(scores, unreadable, len(tries), last.text, fresh)

    def ask(self, task: Task) -> Outcome:
        """Ask until there is an outcome. Raises OutOfBudget, Stopped, and UserError as the judge does."""
        cached = len(self.cache.tries(task.key))
        while (outcome := self.outcome(task, cached)) is None:
            self._send_until_answered(task)
        return outcome

    def _send_until_answered(self, task: Task) -> None:
        """Send a question again while failures may pass, for about a minute of pauses. Raises the last NoReply."""
        pause_s, waited_s = FIRST_PAUSE_S, 0.0
        while True:
            try:
                self._send(task)
                return
            except NoReply as failure:
                if not failure.may_pass or waited_s >= PATIENCE_S or failure.pause_s > PATIENCE_S:
                    raise
                next_s = max(pause_s, failure.pause_s)
            self.pause(next_s)
            pause_s, waited_s = 2 * pause_s, waited_s + next_s

    def pause(self, seconds: float) -> None:
        """Wait without a request in flight. Raises Stopped as soon as the judging ends."""
        if self.stop.wait(seconds):
            raise Stopped

    def _send(self, task: Task) -> None:
        """Send a question once, within the budget, and keep the reply."""
        self.budget.reserve(task.most)
        if self.stop.is_set():
            self.budget.settle(task.most, NOTHING)
            raise Stopped
        billed, doubtful = NOTHING, task.most
        try:
            # A judge that repeats itself does so for one mark; an answer cannot contain this one, its own hash, either.
            mark = task.key[:_MARK_DIGITS] if self.judge.repeats_itself else new_mark()
            reply = self.judge.ask(self.judge.messages(task.question, mark), task.items[0].blank.sample)
            if reply.usage is not None and self.budget.refuses(reply.usage, task.most):
                reply = replace(reply, usage=None)
            self._keep(task, reply)
            if reply.usage is not None:
                billed, doubtful = reply.usage, NOTHING
        except NoReply as failure:
            doubtful = task.most if failure.may_be_billed else NOTHING
            raise
        finally:
            self.budget.settle(task.most, billed, doubtful)

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


def ask_all(asker: Asker, tasks: Sequence[Task], at_once: int) -> Generator[tuple[Task, Outcome]]:
    """Ask questions, `at_once` at a time, and give what came of them in the order in which they are done.

    The first is asked alone, so that a wrong key fails once. After the first error nothing more is sent; what is in
    flight is waited for and handed on, then the error is raised. Where the budget has no room for more it ends the same
    way, without an error. Raises UserError as Asker.ask does. Closing it waits for what is in flight, so that its
    replies are kept, for LAST_WAIT_S at most: threads still waiting then end with the process.
    """
    alone = 1 if at_once > 1 else len(tasks)
    try:
        for task in tasks[:alone]:
            yield task, asker.ask(task)
    except (Stopped, OutOfBudget):
        return
    left, done = iter(tasks[alone:]), SimpleQueue[tuple[Task, Outcome] | BaseException | None]()

    def work() -> None:
        try:
            for task in left:
                done.put((task, asker.ask(task)))
            done.put(None)
        except BaseException as error:
            asker.stop.set()  # in this thread, before others take the next task
            done.put(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(at_once, len(tasks) - alone))]
    failure: BaseException | None = None
    try:
        for thread in threads:
            thread.start()
        for _ in threads:  # each puts one result that is no outcome, its last
            while isinstance(result := done.get(), tuple):
                yield result
            if failure is None and not isinstance(result, Stopped | OutOfBudget):
                failure = result
    finally:
        asker.stop.set()
        until_s = time.monotonic() + LAST_WAIT_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
    if failure is not None:
        raise failure
