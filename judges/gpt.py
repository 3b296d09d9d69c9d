"""Judge by a model behind OpenAI's interface: OpenAI's own, or any server that speaks it, named by --base-url.

Pairwise, or MT-Bench's grading of single answers (Zheng et al. 2023, arXiv 2306.05685, section 3.1), with prompts of
our own that ask for nothing but scores on one line. Failures that may pass (429, 5xx, timeouts, cut connections) are
sent again for about a minute, as is what is no completion; judging.asking makes the pauses, no shorter than
Retry-After. The key comes from the environment and stays in the client.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar
from urllib.parse import urljoin, urlsplit
from weakref import finalize

from benchctl.errors import UserError
from benchctl.judging.budget import price_table
from benchctl.judging.chat import MOST_REPLY_BYTES
from benchctl.judging.judge import AskedJudge, Message, NoReply, Place, Reply, Usage

if TYPE_CHECKING:
    from openai import APIStatusError

_CONNECT_S = 5.0  # OpenAI's client waits so long for a connection, too
_FIRST_RETRIES = 2  # of the first look at the server: a wrong address stays wrong
ADDRESS = "https://api.openai.com/v1"
_ADDRESS = re.compile(r"https?://[^/?#\s]", re.IGNORECASE)
_NEVER_SENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError"}
_GAVE_UP = {408, 502, 504, 520, 524}  # of gateways; what they waited for may have been answered, and billed, later
_MAY_PASS = {408, 409, 425, 429}  # and every status from 500 on
_LEAST_KEY = 8  # characters; what is shorter is no secret, but a word to please a server, and may be part of a score
_SHOWN = 300
_MOST_BODY_BYTES = 10 * MOST_REPLY_BYTES  # as text, unpacked; the rest is not read
_TOO_LONG = f"longer than {MOST_REPLY_BYTES // 1000} KB"
_KEPT = "What is judged is kept."
_Response = TypeVar("_Response")


@dataclass
class Gpt(AskedJudge):
    """Ask a model behind the OpenAI interface, at OpenAI or on another server.

    model        name of the model at its server
    protocol     pairwise shows two answers, single shows one
    temperature  none leaves it to the server, which reasoning models require
    reply_limit  most tokens of a reply, reasoning included
    timeout_s    longest time for one request, in seconds
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
            raise UserError("no_judge_model", "gpt needs a model: give --model, such as --model gpt-4o-mini.")
        if not place.key_env.isidentifier():
            raise UserError("bad_key_name", "--key-env is the name of a variable with the key, such as OPENAI_API_KEY.")
        if place.base_url and not _ADDRESS.match(place.base_url):
            raise UserError("bad_base_url", "--base-url is no address: write it like http://localhost:8000/v1.")
        if set("@?#") & set(place.base_url):
            raise UserError(
                "secret_in_url",
                "--base-url contains a password, or more than host and path, and results contain the command. Put the "
                f"key into the environment, as {place.key_env}.",
            )

    def reach(self) -> None:
        """Raises UserError without a key, and where the server says for free that the key or the model is wrong."""
        from openai import DefaultHttpxClient, OpenAI, Timeout

        self._key = self._read_key()
        base_url = self._place.base_url
        http_client = DefaultHttpxClient(follow_redirects=False)
        finalize(self, http_client.close)
        self._client = OpenAI(
            api_key=self._key or "none",  # the client wants a key, not every server does
            base_url=base_url or ADDRESS,
            max_retries=0,
            timeout=Timeout(self.timeout_s, connect=min(self.timeout_s, _CONNECT_S)),
            http_client=http_client,
        )
        try:
            first = self._client.with_options(max_retries=_FIRST_RETRIES)
            self._sent(lambda: first.models.with_raw_response.retrieve(self.model))
        except UserError as error:
            # Another server may not list models, a key may lack the right to ask: then the first question shows.
            if error.id in ("wrong_judge_key", "judge_unreachable", "judge_redirects") or (
                error.id == "unknown_judge_model" and not base_url
            ):
                raise

    def ask(self, messages: Sequence[Message], sample: int) -> Reply:
        assert self._client is not None, "reach comes first"
        chat = [{"role": message.role, "content": message.content} for message in messages]
        # OpenAI's newer models know the longer name alone, many other servers the shorter.
        limit = "max_tokens" if self._place.base_url else "max_completion_tokens"
        body: dict[str, Any] = {"model": self.model, "messages": chat, limit: self.reply_limit}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        until_s = monotonic() + self.timeout_s

        def send() -> bytes:
            content = b""
            with self._client.chat.completions.with_streaming_response.create(**body) as response:
                for part in response.iter_bytes():
                    content += part
                    if len(content) > _MOST_BODY_BYTES or monotonic() > until_s:
                        break
            return content

        content = self._sent(send)
        if len(content) > _MOST_BODY_BYTES:
            return Reply("", None, _TOO_LONG)
        return read_completion(content.decode("utf-8", "replace"), self._key)

    def _read_key(self) -> str:
        name = self._place.key_env
        key = os.environ.get(name, "").strip()
        if not (key or self._place.base_url):
            raise UserError(
                "no_judge_key",
                f"there is no key in {name}. Set it, name another variable by `benchctl judge --key-env`, or take "
                "--judge likelihood, which needs none.",
            )
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise UserError(
                "bad_judge_key", f"the value of {name} is no key: it has characters that no key has. Set the right one."
            )
        return key

    def _sent(self, send: Callable[[], _Response]) -> _Response:
        """The result of `send`. Raises NoReply for an error of OpenAI's client or of its HTTP client, with the key
        removed from its text."""
        import openai

        try:
            return _within(self.timeout_s, send)
        except openai.APIStatusError as error:
            failure = _of_status(error, self.model, self._key, self._place.key_env)
        except Exception as error:
            http_client = type(error).__module__.startswith("httpx")
            if not (http_client or isinstance(error, openai.OpenAIError | TimeoutError)):
                raise
            failure = _of_connection(error, self._key)
        raise failure  # outside of `except`: the client's own error, which may contain the key, is no part of it


def _within(seconds: float, send: Callable[[], _Response]) -> _Response:
    """The result of `send`, in a thread of its own; after that it is no longer waited for. Raises TimeoutError."""
    result: Future[_Response] = Future()

    def work() -> None:
        try:
            result.set_result(send())
        except BaseException as error:
            result.set_exception(error)

    Thread(target=work, daemon=True).start()
    return result.result(seconds)


def _of_connection(error: Exception, key: str) -> NoReply:
    cause = error.__cause__ or error
    text, kind = _shown(str(cause) or repr(cause), key), type(cause).__name__
    if kind in _NEVER_SENT:
        message = f"no server of the judge can be reached: {text}. Start it, or correct --base-url or the network."
        return NoReply("judge_unreachable", f"{message} {_KEPT}", may_pass=True)
    reason = "no answer in time" if "Timeout" in kind else f"the connection failed ({text})"
    return _no_reply(reason, may_be_billed=True)


def _no_reply(reason: str, *, may_be_billed: bool, pause_s: float = 0.0) -> NoReply:
    message = f"the judge gave no reply, retries included: {reason}. {_KEPT} Judge again to go on."
    return NoReply("no_judge_reply", message, may_be_billed=may_be_billed, may_pass=True, pause_s=pause_s)


def _of_status(error: APIStatusError, model: str, key: str, key_env: str) -> NoReply:
    status, text = error.status_code, _shown(_message_of(error), key)
    no_credit = ("no_judge_credit", f"says that the account of the key in {key_env} has no credit left")
    known: dict[object, tuple[str, str]] = {
        401: ("wrong_judge_key", f"refuses the key in {key_env}, so set the right one"),
        404: ("unknown_judge_model", f"has no '{model}', or is not at this address"),
        "context_length_exceeded": ("question_too_long", f"says that a question is too long for '{model}'"),
        "insufficient_quota": no_credit,
        "billing_hard_limit_reached": no_credit,
    }
    if found := known.get(status) or known.get(error.code):
        return NoReply(found[0], f"the judge's server {found[1]} ({text}). {_KEPT}")
    if 300 <= status < 400:
        asked = str(error.response.url)
        wanted = urljoin(asked, error.response.headers.get("location", ""))
        if urlsplit(wanted).netloc != urlsplit(asked).netloc:
            return NoReply(
                "judge_redirects",
                f"the judge's server sends on to {_shown(wanted, key)}. Nothing was sent there: give that address with "
                f"--base-url if you trust it. {_KEPT}",
            )
        return _no_reply(f"status {status}, a redirect to {_shown(wanted, key)}", may_be_billed=False)
    if status in _MAY_PASS or status >= 500:
        pause_s = _retry_after_s(error.response.headers)
        wish = f", which asks for a pause of {pause_s:.0f} s" if pause_s else ""
        return _no_reply(f"status {status}{wish} ({text})", may_be_billed=status in _GAVE_UP, pause_s=pause_s)
    return NoReply("judge_refuses", f"the judge's server refuses to answer: status {status} ({text}). {_KEPT}")


def _retry_after_s(headers: Any) -> float:
    """The pause of a Retry-After header, in seconds or as a date; 0 for none and for nonsense."""
    text = headers.get("retry-after", "")
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def read_completion(body: str, key: str) -> Reply:
    """A chat completion as it came over the line; what it says that is no answer has a `problem`.

    Raises NoReply for anything else, such as an error with status 200.
    """
    try:
        completion = json.loads(body)
        choice = completion["choices"][0]
        message = choice["message"]
        text, refusal = message.get("content"), message.get("refusal")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        said = _shown(_message_in(body), key)
        raise _no_reply(f"what came back is no completion ({said or 'nothing'})", may_be_billed=True) from None
    usage, finish = _usage(completion.get("usage")), choice.get("finish_reason")
    if isinstance(refusal, str) and refusal:
        return Reply(strike_out(refusal, key)[:_SHOWN], usage, "the judge refused")
    text = strike_out(text, key) if isinstance(text, str) else ""
    if finish == "content_filter":  # it may have cut a score
        return Reply(text[:MOST_REPLY_BYTES], usage, "a content filter kept it back")
    if not text.strip():
        return Reply("", usage, "an empty reply")
    if len(text.encode("utf-8", "surrogatepass")) > MOST_REPLY_BYTES:
        return Reply(text[:_SHOWN], usage, _TOO_LONG)
    if finish != "length":
        return Reply(text, usage)
    whole, newline, _ = text.rstrip().rpartition("\n")  # the last line may lack its end, a score its last digit
    return Reply(whole, usage) if newline and whole.strip() else Reply(text, usage, "cut off before its line ended")


def _message_in(body: str) -> str:
    """What a body that is no completion says."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, RecursionError, LookupError, TypeError):
        return body


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    counts = [count for name in ("prompt_tokens", "completion_tokens") if type(count := usage.get(name)) is int]
    return Usage(*counts) if len(counts) == 2 and min(counts) >= 0 else None


def _message_of(error: APIStatusError) -> str:
    body = error.body
    message = body.get("message") or body.get("detail") if isinstance(body, dict) else body  # "detail" is FastAPI's
    return message if isinstance(message, str) and message else error.message


def strike_out(text: str, key: str) -> str:
    """The text without the key, in case a server sends it back; a word of a few characters is no key."""
    return text.replace(key, "[key]") if len(key) >= _LEAST_KEY else text


def _shown(text: str, key: str) -> str:
    line = " ".join(strike_out(text, key).split())
    return line[:_SHOWN] + ("..." if len(line) > _SHOWN else "")
