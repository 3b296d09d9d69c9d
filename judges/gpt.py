"""Judge by a model behind OpenAI's interface: OpenAI's own, or any server that speaks it, named by --base-url.

Pairwise, or MT-Bench's grading of single answers (Zheng et al. 2023, arXiv 2306.05685, section 3.1), with prompts of
our own that ask for nothing but scores on one line. Tries are the panel's: the client itself never sends anything
twice. The key comes from the environment and stays in the client.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from benchctl.errors import UserError
from benchctl.judging.judge import BatchedJudge, BatchedReply, Message, Place, Reply, Request, TryAgain
from benchctl.judging.prices import price_table

if TYPE_CHECKING:
    from openai import OpenAI

_CONNECT_S = 5.0  # OpenAI's client waits so long for a connection, too
ADDRESS = "https://api.openai.com/v1"
_ADDRESS = re.compile(r"https?://[^/?#\s]", re.IGNORECASE)
_Found = TypeVar("_Found")


@dataclass
class Gpt(BatchedJudge):
    """Ask a model behind OpenAI's interface, at OpenAI or at any server that speaks it.

    model        the judge's name at its server
    protocol     pairwise shows it two answers, single one
    temperature  none leaves it to the server, as models that reason ask for
    reply_limit  most tokens of a reply; what a model thinks before it counts too
    timeout_s    how long to wait for a reply
    """

    model: str = ""
    protocol: Literal["pairwise", "single"] = "pairwise"
    temperature: float | None = 0.0
    reply_limit: int = 64
    timeout_s: float = 120.0
    paid: ClassVar[bool] = True
    parallel: ClassVar[bool] = True
    unsaid: ClassVar[frozenset[str]] = frozenset({"timeout_s"})
    _place: Place = field(default=Place("", "", ()), init=False, repr=False, compare=False)
    _client: Any = field(default=None, init=False, repr=False, compare=False)
    _key: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.reply_limit < 1 or self.timeout_s <= 0:
            raise ValueError("reply_limit and timeout_s are above 0")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ValueError("temperature is from 0 to 2, or none")

    @property
    def context_tokens(self) -> int | None:
        return None if self._place.base_url else price_table().context_tokens(self.model)

    def prepare(self, place: Place) -> None:
        self._place = place
        if not self.model:
            raise UserError("gpt needs the name of a model: give --model, such as --model gpt-4o-mini.")
        if not place.key_env.isidentifier():
            raise UserError("--key-env is the name of a variable that holds the key, such as OPENAI_API_KEY.")
        if place.base_url and not _ADDRESS.match(place.base_url):
            raise UserError("--base-url is no address: write it like http://localhost:8000/v1.")
        if set("@?#") & set(place.base_url):
            problem = "--base-url holds a password, or more than host and path, and commands are kept in results"
            raise UserError(f"{problem}: put the key into the environment, as {place.key_env}.")

    def reach(self) -> None:
        """Raises UserError without a key, and where the server says for free that the key or the model is wrong."""
        from openai import OpenAI, Timeout

        from benchctl.judges._openai import NoModel, WrongKey

        self._key = self._found_key()
        key, base_url = self._key or "none", self._place.base_url  # the client wants a key, not every server does
        timeout = Timeout(self.timeout_s, connect=min(self.timeout_s, _CONNECT_S))
        self._client = OpenAI(api_key=key, base_url=base_url or ADDRESS, max_retries=0, timeout=timeout)
        try:
            self._sent(lambda client: client.models.with_raw_response.retrieve(self.model))
        except (TryAgain, UserError) as error:
            # Other servers may not tell of models, some keys may not ask, an outage may pass: the first question shows.
            lasting = isinstance(error, WrongKey) or (isinstance(error, NoModel) and not base_url)
            if lasting or (isinstance(error, TryAgain) and error.unreached):
                raise

    def ask(self, messages: Sequence[Message], sample: int) -> Reply:
        from benchctl.judges._openai import read_completion

        body = self._body(messages)
        raw = self._sent(lambda client: client.chat.completions.with_raw_response.create(**body))
        reply: Reply = read_completion(raw.http_response.text, self._key)
        return reply

    def fitting(self, requests: Sequence[Request]) -> int:
        from benchctl.judges._batches import fitting

        count: int = fitting((request.key, self._body(request.messages)) for request in requests)
        return count

    def start_batch(self, requests: Sequence[Request], mark: str) -> str:
        from benchctl.judges._batches import start

        bodies = {request.key: self._body(request.messages) for request in requests}
        batch: str = self._sent(lambda client: start(client, bodies, mark, self._key))
        return batch

    def find_batch(self, mark: str) -> str | None:
        from benchctl.judges._batches import find

        batch: str | None = self._sent(lambda client: find(client, mark))
        return batch

    def collect_batch(self, batch: str) -> tuple[BatchedReply, ...] | None:
        from benchctl.judges._batches import collect

        replies: tuple[BatchedReply, ...] | None = self._sent(lambda client: collect(client, batch, self._key))
        return replies

    def _body(self, messages: Sequence[Message]) -> dict[str, Any]:
        chat = [{"role": message.role, "content": message.content} for message in messages]
        # OpenAI's newer models know the longer name alone, many other servers the shorter.
        limit = "max_tokens" if self._place.base_url else "max_completion_tokens"
        body: dict[str, Any] = {"model": self.model, "messages": chat, limit: self.reply_limit}
        return body if self.temperature is None else body | {"temperature": self.temperature}

    def _found_key(self) -> str:
        name = self._place.key_env
        key = os.environ.get(name, "").strip()
        if not (key or self._place.base_url):
            raise UserError(
                f"there is no key in {name}. Set it, name another variable by `benchctl judge --key-env`, or take "
                "--judge likelihood, which needs none."
            )
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise UserError(f"what {name} holds is no key: it has characters that no key has. Set the right one.")
        return key

    def _sent(self, send: Callable[[OpenAI], _Found]) -> _Found:
        from benchctl.judges._openai import sent

        client: OpenAI = self._client
        assert client is not None, "reach comes first"
        found: _Found = sent(lambda: send(client), model=self.model, key=self._key, key_env=self._place.key_env)
        return found
