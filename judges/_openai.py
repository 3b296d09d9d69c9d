"""Replies and errors of OpenAI's client, as judging takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import openai

from benchctl.errors import UserError
from benchctl.judging.judge import Reply, Usage

_NEVER_SENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError"}
_LEAST_KEY = 8  # characters; what is shorter is no secret, but a word to please a server, and may be part of a score
GAVE_UP = {408, 502, 504, 520, 524}  # of gateways; what they waited for may have been answered, and billed, later
_KEPT = "What is judged is kept: judge again to go on."
_NO_CREDIT = {"insufficient_quota", "billing_hard_limit_reached"}
_SHOWN = 300
_Response = TypeVar("_Response")


class WrongKey(UserError):
    """The server knows no such key."""


class Unreached(UserError):
    """No server is at this address."""


class NoModel(UserError):
    """The server has no such model, or is not at this address."""


def strike_out(text: str, key: str) -> str:
    """The text without the key, in case a server says it back; a word of a few characters is no key."""
    return text.replace(key, "[key]") if len(key) >= _LEAST_KEY else text


def sent(send: Callable[[], _Response], *, model: str, key: str, key_env: str) -> _Response:
    """What `send` returns. Raises UserError for what it raises, with the key removed from the server's words."""
    try:
        return send()
    except openai.APIStatusError as error:
        failure: Exception = _of_status(error, model, key, key_env)
    except openai.APIConnectionError as error:
        cause = error.__cause__ or error
        if type(cause).__name__ in _NEVER_SENT:
            failure = Unreached(
                f"no server of the judge can be reached: {_shown(str(cause) or repr(cause), key)}. See that it runs, "
                "and that --base-url and the network are right."
            )
        else:
            late = isinstance(error, openai.APITimeoutError)
            reason = (
                "no answer in time" if late else f"the connection failed ({_shown(str(cause) or repr(cause), key)})"
            )
            failure = UserError(f"the judge gave no reply, retries included: {reason}. {_KEPT}")
    except openai.OpenAIError as error:
        failure = UserError(f"the judge cannot be asked: {_shown(str(error), key)}")
    raise failure


def read_completion(body: str, key: str) -> Reply:
    """A chat completion as it came over the line; whatever is not one has a `problem`."""
    try:
        completion = json.loads(body)
    except (ValueError, RecursionError):
        return Reply(_shown(body, key), None, "what came back is no JSON")
    if not isinstance(completion, dict):
        return Reply(_shown(body, key), None, "what came back is no completion")
    usage, choices = _usage(completion.get("usage")), completion.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    if choice is None:
        return Reply("", usage, "no reply in it")
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    if isinstance(refusal := message.get("refusal"), str) and refusal:
        return Reply(strike_out(refusal, key), usage, "the judge refused")
    text = message.get("content")
    if not isinstance(text, str) or not text.strip():
        filtered = choice.get("finish_reason") == "content_filter"
        return Reply("", usage, "a content filter kept it back" if filtered else "an empty reply")
    text = strike_out(text, key)
    if choice.get("finish_reason") != "length":
        return Reply(text, usage)
    whole, newline, _ = text.rstrip().rpartition("\n")  # the last line may lack its end, a score its last digit
    return Reply(whole, usage) if newline and whole.strip() else Reply(text, usage, "cut off before its line ended")


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    counts = [count for name in ("prompt_tokens", "completion_tokens") if type(count := usage.get(name)) is int]
    return Usage(*counts) if len(counts) == 2 and min(counts) >= 0 else None


def _of_status(error: openai.APIStatusError, model: str, key: str, key_env: str) -> Exception:
    status, said = error.status_code, _shown(_words(error), key)
    kept = "What is judged is kept."
    if status == 401:
        return WrongKey(f"the judge's server refuses the key in {key_env} ({said}). Set the right one. {kept}")
    if status == 404:
        return NoModel(f"the judge's server has no '{model}', or is not at this address ({said}). {kept}")
    if error.code in _NO_CREDIT:
        return UserError(f"the account of the key in {key_env} has no credit left ({said}). {kept}")
    if error.code == "context_length_exceeded":
        return UserError(f"a question is too long for '{model}' ({said}). Ask a judge of longer context. {kept}")
    if status in (408, 409, 425, 429) or status >= 500:
        return UserError(f"the judge gave no reply, retries included: status {status} ({said}). {_KEPT}")
    return UserError(f"the judge's server refuses to answer: status {status} ({said}). {kept}")


def _words(error: openai.APIStatusError) -> str:
    body = error.body
    message = body.get("message") or body.get("detail") if isinstance(body, dict) else body  # "detail" is FastAPI's
    return message if isinstance(message, str) and message else error.message


def _shown(text: str, key: str) -> str:
    line = " ".join(strike_out(text, key).split())
    return line[:_SHOWN] + ("..." if len(line) > _SHOWN else "")
