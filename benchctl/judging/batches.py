"""Questions handed in as batches: what was handed in is written down before it is, so that none is paid for twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

from benchctl.errors import InvalidData, UserError
from benchctl.judging.asking import Asked, Asker
from benchctl.judging.budget import OutOfBudget
from benchctl.judging.judge import BatchedJudge, BatchedReply, BatchLost, BatchRefused, Request, Usage
from benchctl.judging.panel import Answered
from benchctl.judging.questions import Task
from benchctl.records.writer import LineFile

_POLL_S = 30.0
_LOST_BATCHES = 2  # so many in a row that bring nothing are taken for lasting


@dataclass(frozen=True)
class Handed:
    """A question as it was handed in: what its replies are kept under, and how many it had by then."""

    key: str
    sample: int
    template: str
    tries: int
    prompt_tokens: int
    reply_tokens: int

    @property
    def most(self) -> Usage:
        """The most that it can be billed for."""
        return Usage(self.prompt_tokens, self.reply_tokens)


@dataclass(frozen=True)
class Batch:
    """A batch as written down: first without its `id`, then with it, at last as `done`. The `mark` finds it again."""

    mark: str
    questions: tuple[Handed, ...]
    id: str = ""
    done: bool = False


class Batches:
    """Asks tasks in batches, and goes on with those that an earlier call left behind; `forget` gives those of them up
    that the server does not give any more.

    What is written down stands beside the cache. Entering raises UserError and InvalidData as the cache does.
    """

    def __init__(self, asker: Asker, judge: BatchedJudge, notify: Callable[[str], None], *, forget: bool) -> None:
        self._asker, self._judge, self._notify, self._forget = asker, judge, notify, forget
        self._path = batches_path(asker.cache.path)

    def __enter__(self) -> Batches:
        self._file = LineFile(
            self._path, writer="`benchctl judge`", instead="Give another --cache.", full="Make room and judge again."
        )
        try:
            self._open, whole_bytes = _read(self._path)
            self._file.cut(whole_bytes)
        except BaseException:
            self._file.close()
            raise
        for batch in self._open.values():
            for question in batch.questions:
                self._asker.budget.adopt(question.most)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def ask(self, tasks: Sequence[Task]) -> Iterator[Answered]:
        """What tasks came to; unreadable replies are asked for again in another batch. Raises UserError."""
        found = {task.asked.key: len(self._asker.cache.tries(task.asked.key)) for task in tasks}
        waiting, replies, lost = list(tasks), sum(found.values()), -1  # the first look is before any batch of these
        while True:
            for batch in list(self._open.values()):
                self._finish(batch)
            before, replies = replies, sum(len(self._asker.cache.tries(key)) for key in found)
            lost = 0 if replies > before else lost + 1
            outcomes = [(task, self._asker.outcome(task.asked, found[task.asked.key])) for task in waiting]
            yield from (Answered(task, outcome) for task, outcome in outcomes if outcome)
            waiting = [task for task, outcome in outcomes if not outcome]
            if waiting and lost == _LOST_BATCHES:
                break
            if not (affordable := self._affordable(waiting)):
                return
            self._hand_in([task.asked for task in affordable])
        raise UserError(
            f"{len(waiting)} questions came back from {_LOST_BATCHES} batches in a row without a reply. What is judged "
            "is kept: judge again without --batch to see what is wrong with them."
        )

    def _affordable(self, tasks: Sequence[Task]) -> list[Task]:
        """The first tasks that the budget has room for, which is set aside."""
        for number, task in enumerate(tasks):
            try:
                self._asker.budget.reserve(task.asked.most, wait=False)
            except OutOfBudget:
                return list(tasks[:number])
        return list(tasks)

    def _hand_in(self, asked: Sequence[Asked]) -> None:
        """In as many batches as the server's limits of one make of them."""
        requests = [Request(each.key, each.messages, each.sample) for each in asked]
        while requests:
            count = self._judge.fitting(requests)
            self._start(tuple(map(self._handed, asked[:count])), requests[:count])
            asked, requests = asked[count:], requests[count:]

    def _start(self, questions: tuple[Handed, ...], requests: Sequence[Request]) -> None:
        mark_of = [self._asker.now(), [question.key for question in questions]]
        batch = Batch(hashlib.sha256(json.dumps(mark_of).encode()).hexdigest(), questions)
        self._write(batch)
        self._name(batch, lambda: self._judge.start_batch(requests, batch.mark))

    def _handed(self, asked: Asked) -> Handed:
        tries = len(self._asker.cache.tries(asked.key))
        most = asked.most
        return Handed(asked.key, asked.sample, asked.template, tries, most.prompt_tokens, most.reply_tokens)

    def _name(self, batch: Batch, start: Callable[[], str]) -> None:
        """Hand a batch in. After a failure it is looked for first: it may have arrived all the same; one that was
        refused at once did not."""
        tries = 0

        def hand_in() -> str:
            nonlocal tries
            tries += 1
            there = self._judge.find_batch(batch.mark) if tries > 1 else None
            return there or start()

        try:
            named = replace(batch, id=self._asker.patience.insist(hand_in))
        except UserError:
            if tries == 1:
                self._close(batch, "", ())
            raise
        self._write(named)
        self._notify(f"batch {named.id}: {len(batch.questions)} questions handed in; it may take up to a day.")

    def _finish(self, batch: Batch) -> None:
        """Wait for a batch and keep its replies; one that never arrived, or was refused, is over.

        One that the server does not give is not: its replies may be billed, and come to light with another key.
        """
        patience = self._asker.patience
        batch_id = batch.id or patience.insist(lambda: self._judge.find_batch(batch.mark)) or ""
        try:
            replies = self._collected(batch_id) if batch_id else ()
        except BatchRefused:
            self._close(batch, batch_id, ())
            raise
        except BatchLost as lost:
            replies = lost.replies
            missing = len(batch.questions) - sum(answered.reply is not None for answered in replies)
            if not self._forget:
                self._keep(batch, replies)
                raise UserError(
                    f"{lost} What could be read is kept; {missing} of its questions have no reply. Judge again with "
                    "--batch, the key and the address that it was handed in with; if it is gone for good, add "
                    "--forget-batches: these questions are then asked, and paid for, once more."
                ) from lost
            self._notify(f"{lost} It is given up, with {missing} of its questions to be asked once more.")
        self._close(batch, batch_id, replies)

    def _collected(self, batch_id: str) -> tuple[BatchedReply, ...]:
        while (replies := self._asker.patience.insist(lambda: self._judge.collect_batch(batch_id))) is None:
            self._asker.patience.pause(_POLL_S)
        return replies

    def _close(self, batch: Batch, batch_id: str, replies: Sequence[BatchedReply]) -> None:
        self._keep(batch, replies)
        self._write(replace(batch, id=batch_id, done=True))

    def _keep(self, batch: Batch, replies: Sequence[BatchedReply]) -> None:
        by_key = {answered.key: answered.reply for answered in replies}
        for question in batch.questions:
            reply = by_key.get(question.key)
            if reply is None:
                self._asker.budget.release(question.most)
                continue
            # A kill may have come between the keeping of some replies and the writing down that all were kept.
            if len(self._asker.cache.tries(question.key)) == question.tries:
                self._asker.keep(Asked(question.key, (), question.sample, question.template, question.most), reply)
            self._asker.budget.settle(question.most, reply.usage)

    def _write(self, batch: Batch) -> None:
        self._file.append(json.dumps(asdict(batch)).encode() + b"\n")
        self._open.pop(batch.mark, None)
        if not batch.done:
            self._open[batch.mark] = batch


def batches_path(cache: Path) -> Path:
    """Where the batches of a judge are written down: beside its cache file."""
    return cache.with_suffix(".batches")


def refuse_open_batches(cache: Path) -> None:
    """Raises UserError where a batch was handed in and not collected: to ask its questions now would pay twice."""
    if questions := handed_in(cache):
        raise UserError(
            f"{questions} questions were handed in with --batch and not collected yet: add --batch to go on."
        )


def handed_in(cache: Path) -> int:
    """How many questions are in batches that were not collected yet."""
    path = batches_path(cache)
    return sum(len(batch.questions) for batch in _read(path)[0].values()) if path.exists() else 0


def _read(path: Path) -> tuple[dict[str, Batch], int]:
    """The batches that are not done, by their marks, and the bytes up to the end of the last whole line."""
    lines = path.read_bytes().splitlines(keepends=True)
    open_ones: dict[str, Batch] = {}
    whole_bytes = 0
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line.endswith(b"\n"):
            break  # torn by a kill, before anything was handed in on its strength
        batch = _parse(path, number, line)
        open_ones.pop(batch.mark, None)
        if not batch.done:
            open_ones[batch.mark] = batch
        whole_bytes += len(line)
    return open_ones, whole_bytes


def _parse(path: Path, number: int, line: bytes) -> Batch:
    try:
        told = json.loads(line)
        return Batch(told["mark"], tuple(Handed(**each) for each in told["questions"]), told["id"], told["done"])
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidData(f"{path}:{number}: is no batch that benchctl wrote down. Restore this line.") from error
