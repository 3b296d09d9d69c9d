"""One question to a judge: sent until a reply can be read or tries run out, each reply kept before it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchctl.judging.budget import Budget
from benchctl.judging.cache import Cache, Kept
from benchctl.judging.judge import AskedJudge, Message, Reply, TryAgain, Usage
from benchctl.judging.patience import Patience


@dataclass(frozen=True)
class Asked:
    """What is to be sent: the chat, the key that its replies are kept by, and the most that it can be billed for."""

    key: str
    messages: tuple[Message, ...]
    sample: int
    template: str
    most: Usage


@dataclass(frozen=True)
class Outcome:
    """What the tries of a question came to. `scores` are in the order in which the answers were shown; None, with the
    reason in `unreadable`, where no reply could be read. `fresh` are the tries that were made now, not found."""

    scores: tuple[float, ...] | None
    unreadable: str
    tries: int
    reply: str
    fresh: tuple[Kept, ...] = ()


def outcome_of(judge: AskedJudge, tries: Sequence[Kept], most_tries: int, found: int) -> Outcome | None:
    """What these replies come to, the first `found` of which were in the cache before; None while another is needed."""
    if not tries:
        return None
    last = tries[-1]
    scores = None if last.problem else judge.read(last.text)
    if scores is None and len(tries) < most_tries:
        return None
    unreadable = "" if scores else last.problem or "it does not hold the scores asked for"
    return Outcome(scores, unreadable, len(tries), last.text, tuple(tries[found:]))


class Asker:
    """Asks a judge within a budget, with patience. May be used by several threads."""

    def __init__(
        self,
        judge: AskedJudge,
        cache: Cache,
        budget: Budget,
        patience: Patience,
        *,
        most_tries: int,
        now: Callable[[], str],
    ) -> None:
        self.judge, self.cache, self.budget, self.patience = judge, cache, budget, patience
        self.most_tries = most_tries
        self.now = now

    def outcome(self, asked: Asked, found: int | None = None) -> Outcome | None:
        """What the replies in the cache come to, the first `found` of which (None: all) were there before; None where
        the judge must be asked."""
        tries = self.cache.tries(asked.key)
        return outcome_of(self.judge, tries, self.most_tries, len(tries) if found is None else found)

    def ask(self, asked: Asked) -> Outcome:
        """Ask until there is an outcome. Raises OutOfBudget, Stopped, and UserError where no try will help."""
        found = len(self.cache.tries(asked.key))
        while (outcome := self.outcome(asked, found)) is None:
            self.patience.insist(lambda: self._send(asked))
        return outcome

    def keep(self, asked: Asked, reply: Reply) -> None:
        """Write a reply to the cache, before anything else happens with it."""
        usage = reply.usage
        self.cache.keep(
            Kept(
                key=asked.key,
                sample=asked.sample,
                model=self.judge.model_id,
                template=asked.template,
                text=reply.text,
                problem=reply.problem,
                prompt_tokens=None if usage is None else usage.prompt_tokens,
                reply_tokens=None if usage is None else usage.reply_tokens,
                answered_at=self.now(),
            )
        )

    def _send(self, asked: Asked) -> None:
        self.budget.reserve(asked.most)
        try:
            self.patience.turn()  # once more: to reserve can take a while
            reply = self.judge.ask(asked.messages, asked.sample)
        except BaseException as error:
            if isinstance(error, TryAgain) and error.maybe_paid:
                self.budget.settle(asked.most, None)
            else:
                self.budget.release(asked.most)
            raise
        try:
            self.keep(asked, reply)
        finally:
            self.budget.settle(asked.most, reply.usage)
