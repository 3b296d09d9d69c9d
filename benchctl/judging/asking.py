"""Questions to a judge: each is asked within a budget until a reply can be read, and every reply is kept first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from benchctl.judging.budget import NOTHING, Budget, OutOfBudget
from benchctl.judging.items import Item
from benchctl.judging.judge import AskedJudge, Message, NoReply, Reply, Usage
from benchctl.judging.reply_cache import Cache, Kept, Outcome, content_key

# Pauses before a request is sent again double from the first one. After a minute of them the judging gives up.
FIRST_PAUSE_S = 0.5
PATIENCE_S = 60.0


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


class Stopped(Exception):
    """The judging ends; nothing is in flight for this question."""


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
            reply = self.judge.ask(task.messages, task.items[0].blank.sample)
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
            # An interrupt waits for what is in flight, so that its replies are kept, and for no pause.
            asker.stop.set()
    if failure is not None:
        raise failure


def _futures(asker: Asker, pool: ThreadPoolExecutor, tasks: Sequence[Task]) -> Iterator[Future[tuple[Task, Outcome]]]:
    def answer(task: Task) -> tuple[Task, Outcome]:
        try:
            return task, asker.ask(task)
        except BaseException:
            asker.stop.set()  # in this thread, which would take the next task before others learn of the error
            raise

    for group in (tasks[:1], tasks[1:]):
        number_of = {pool.submit(answer, task): number for number, task in enumerate(group)}
        waiting = set(number_of)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from sorted(done, key=number_of.__getitem__)
