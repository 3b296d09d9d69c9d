"""Judge by a model behind OpenAI's interface: OpenAI's own, or any server that speaks it, named by --base-url.

Pairwise, or MT-Bench's grading of single answers (Zheng et al. 2023, arXiv 2306.05685, section 3.1), with prompts of
our own that ask for nothing but scores on one line. OpenAI's client retries what fails for a while (429, 5xx, timeouts,
cut connections), after waits that double, or as long as Retry-After asks up to a minute. The key comes from the
environment and stays in the client.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar
from weakref import finalize

from benchctl.errors import UserError
from benchctl.judging.budget import price_table
from benchctl.judging.judge import AskedJudge, Message, Place, Reply

_CONNECT_S = 5.0  # OpenAI's client waits so long for a connection, too
_RETRIES = 5  # of a question; of the first look at the server fewer, since a wrong address stays wrong:
_FIRST_RETRIES = 2
ADDRESS = "https://api.openai.com/v1"
_ADDRESS = re.compile(r"https?://[^/?#\s]", re.IGNORECASE)
_Response = TypeVar("_Response")


class _Sends(threading.local):
    """How many requests of this thread's question may be billed by now, retries included."""

    doubtful = 0

    def count(self, request: object) -> None:
        """A request is sent: until it fails for certain, the server may answer and bill it."""
        self.doubtful += 1

    def discount(self, response: Any) -> None:
        """The server refused a request. A gateway that gave up waiting refused nothing."""
        from benchctl.judges._openai import GAVE_UP

        if response.status_code >= 400 and response.status_code not in GAVE_UP:
            self.doubtful -= 1


@dataclass
class Gpt(AskedJudge):
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
    most_sends: ClassVar[int] = 1 + _RETRIES
    unsaid: ClassVar[frozenset[str]] = frozenset({"timeout_s"})
    _place: Place = field(default=Place("", "", ()), init=False, repr=False, compare=False)
    _client: Any = field(default=None, init=False, repr=False, compare=False)
    _key: str = field(default="", init=False, repr=False, compare=False)
    _sends: _Sends = field(default_factory=_Sends, init=False, repr=False, compare=False)

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
        from openai import DefaultHttpxClient, OpenAI, Timeout

        from benchctl.judges._openai import NoModel, Unreached, WrongKey

        self._key = self._found_key()
        base_url = self._place.base_url
        http_client = DefaultHttpxClient(
            event_hooks={"request": [self._sends.count], "response": [self._sends.discount]}
        )
        finalize(self, http_client.close)
        self._client = OpenAI(
            api_key=self._key or "none",  # the client wants a key, not every server does
            base_url=base_url or ADDRESS,
            max_retries=_RETRIES,
            timeout=Timeout(self.timeout_s, connect=min(self.timeout_s, _CONNECT_S)),
            http_client=http_client,
        )
        try:
            first = self._client.with_options(max_retries=_FIRST_RETRIES)
            self._sent(lambda: first.models.with_raw_response.retrieve(self.model))
        except UserError as error:
            # Another server may not list models, a key may lack the right to ask: then the first question shows.
            if isinstance(error, (WrongKey, Unreached)) or (isinstance(error, NoModel) and not base_url):
                raise

    def ask(self, messages: Sequence[Message], sample: int) -> Reply:
        from benchctl.judges._openai import read_completion

        assert self._client is not None, "reach comes first"
        self._sends.doubtful = 0
        create, body = self._client.chat.completions.with_raw_response.create, self._body(messages)
        raw = self._sent(lambda: create(**body))
        reply: Reply = read_completion(raw.http_response.text, self._key)
        return replace(reply, lost_sends=max(0, self._sends.doubtful - 1))

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

    def _sent(self, send: Callable[[], _Response]) -> _Response:
        from benchctl.judges._openai import sent

        response: _Response = sent(send, model=self.model, key=self._key, key_env=self._place.key_env)
        return response
