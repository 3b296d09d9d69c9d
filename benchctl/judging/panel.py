"""Asks many questions at once, and hands on what each came to as soon as it is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from benchctl.judging.asking import Asker, Outcome
from benchctl.judging.budget import OutOfBudget
from benchctl.judging.patience import Stopped
from benchctl.judging.questions import Task


class Answered(NamedTuple):
    """A task and what it came to."""

    task: Task
    outcome: Outcome


class Panel:
    """Asks tasks, `at_once` at a time. The first is asked alone: a key that is wrong fails once, and not everywhere.

    After the first error nothing more is sent; what is in flight is waited for and handed on, then the error raised.
    Where the budget has no room for more it ends the same way, without an error.
    """

    def __init__(self, asker: Asker, at_once: int) -> None:
        self._asker, self._at_once = asker, at_once

    def ask(self, tasks: Sequence[Task]) -> Iterator[Answered]:
        """What tasks came to, in the order they are done. Raises UserError as Asker.ask does."""
        failure: Exception | None = None
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="judge") as pool:
            try:
                for done in self._futures(pool, tasks):
                    try:
                        yield done.result()
                    except (Stopped, OutOfBudget):
                        continue
                    except Exception as error:
                        failure = failure or error
            finally:
                # Whoever is interrupted waits for what is in flight, so that its replies are kept, and for no more.
                self._asker.patience.stop.set()
        if failure is not None:
            raise failure

    def _futures(self, pool: ThreadPoolExecutor, tasks: Sequence[Task]) -> Iterator[Future[Answered]]:
        for group in (tasks[:1], tasks[1:]):
            number_of = {pool.submit(self._answer, task): number for number, task in enumerate(group)}
            waiting = set(number_of)
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from sorted(done, key=number_of.__getitem__)

    def _answer(self, task: Task) -> Answered:
        try:
            return Answered(task, self._asker.ask(task.asked))
        except BaseException:
            self._asker.patience.stop.set()  # here, for this thread would take the next task before others hear of it
            raise
