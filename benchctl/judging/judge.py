"""What a judge is: a dataclass whose fields are its options, in a file of its name in judges/.

Two families. An AskedJudge is a model that is sent a filled-in prompt and replies with scores; it says how to ask once,
and benchctl.judging does the rest (both orders, cache, tries, budget). A GradingJudge computes a score of each answer
alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from benchctl.errors import UserError
from benchctl.judging.chat import Message as Message
from benchctl.judging.chat import Question as Question
from benchctl.judging.chat import Template, count_prompt, load_template, most_tokens, read_scores
from benchctl.records.schema import Row as Row
from benchctl.records.schema import Run as Run
from benchctl.records.scores import Protocol


@dataclass(frozen=True)
class Usage:
    """What a reply is billed for."""

    prompt_tokens: int
    reply_tokens: int

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt_tokens + other.prompt_tokens, self.reply_tokens + other.reply_tokens)


@dataclass(frozen=True)
class Reply:
    """What came back for one question. `problem` says why it cannot be read, where that is known without reading it
    (a refusal, nothing in it, cut off). `usage` is None where the server did not report it."""

    text: str
    usage: Usage | None
    problem: str = ""


class NoReply(UserError):
    """A request without a reply.

    may_be_billed  the server may have answered it, and billed it, although nothing arrived
    may_pass       the same request may succeed later: it is sent again after a pause
    pause_s        the shortest pause that the server asks for; 0 if it does not
    """

    def __init__(
        self, id: str, message: str, *, may_be_billed: bool = False, may_pass: bool = False, pause_s: float = 0.0
    ) -> None:
        super().__init__(id, message)
        self.may_be_billed, self.may_pass, self.pause_s = may_be_billed, may_pass, pause_s


@dataclass(frozen=True)
class Place:
    """The address of a judge's server ("" for the usual one), the environment variable with its key, and the runs
    whose answers it will judge."""

    base_url: str
    key_env: str
    runs: tuple[Run, ...]


class Judge:
    """What both families have: the `protocol` of their scores, and the `model` that they ask or compute with.

    `unsaid` names options that change no reply, such as the device. Labels leave them out, so scores and cache do not
    depend on them. A judge that is `paid` costs money, so budgets and prices apply to it.
    """

    protocol: Protocol
    model: str
    unsaid: ClassVar[frozenset[str]] = frozenset()
    paid: ClassVar[bool] = False

    @property
    def model_id(self) -> str:
        """How scores and the cache name the model: two models must not share a name. Asked for after `prepare`."""
        return self.model

    def prepare(self, place: Place) -> None:
        """Called once, before anything else: load what is needed, without a network where there is a cache to replay.

        Raises UserError for what a user can put right.
        """


class AskedJudge(Judge, ABC):
    """A model that is asked. A subclass has `model` and `protocol` (pairwise or single) among its
    options and writes `ask`.

    `parallel` says that several requests may be sent at a time; `reply_limit` is the most tokens of a reply,
    `context_tokens` of prompt and reply together (None if unknown).
    """

    parallel: ClassVar[bool] = False
    reply_limit: int = 64

    @property
    def repeats_itself(self) -> bool:
        """Whether it always gives the same reply to the same chat: then it is asked once, whatever came back."""
        return False

    @property
    def context_tokens(self) -> int | None:
        return None

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        """An estimate of the tokens of the messages."""
        return count_prompt([message.content for message in messages])

    def most_prompt_tokens(self, messages: Sequence[Message]) -> int:
        """The most tokens that the messages can be billed for."""
        return most_tokens([message.content for message in messages])

    def reach(self) -> None:
        """Called before the first question, where one is to be asked: find, for free, whether it can be.

        Raises UserError for what a user can put right: no key, a wrong one, a model or a server that is not there.
        """

    @abstractmethod
    def ask(self, messages: Sequence[Message], sample: int) -> Reply:
        """Send the messages once and return the reply; `sample` numbers repeated judgements, as a seed does.

        May be called from several threads at once where `parallel`. Raises NoReply for a request without a reply; one
        that may pass is sent again. Any other error ends the judging, and the request counts as billed.
        """

    def template(self, question: Question) -> Template:
        """The prompt for a question, by how many turns it has and whether it has reference answers."""
        return load_template(self.protocol, len(question.turns), bool(question.reference))

    def messages(self, question: Question, mark: str) -> tuple[Message, ...]:
        """The chat that asks a question; no answer can contain the `mark` of the lines around it."""
        return self.template(question).fill(question, mark)

    def read(self, reply: str) -> tuple[float, ...] | None:
        """The scores in a reply, one for each answer shown, in their order; None where it cannot be read."""
        return read_scores(reply, 2 if self.protocol == "pairwise" else 1)


class GradingJudge(Judge, ABC):
    """A judge that computes a score of each answer alone, which is compared with that of the baseline's answer."""

    @abstractmethod
    def grade(self, run: Run, rows: Sequence[Row], question: Question) -> float | None:
        """The score of the answer in the last of `rows`, which answer the turns of `question` one after the other
        (`question.first` has their texts); higher is better. None where there is nothing to grade it by."""
