"""What OpenAI's client gives and raises, as judging knows it: replies, failures that pass, and what a user can mend."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import openai

from benchctl.errors import UserError
from benchctl.judging.judge import Reply, TryAgain, Usage

_NEVER_SENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError"}
_LEAST_KEY = 8  # characters; what is shorter is no secret, but a word to please a server, and may be part of a score
_PASSING = {408, 409, 425, 429}
_GAVE_UP = {408, 502, 504, 520, 524}  # of gateways; what they waited for may have been answered, and billed, later
_NO_CREDIT = {"insufficient_quota", "billing_hard_limit_reached"}
_SHOWN = 300
_Found = TypeVar("_Found")


class WrongKey(UserError):
    """The server knows no such key."""


class NoModel(UserError):
    """The server has no such model, or is not at this address."""


def strike_out(text: str, key: str) -> str:
    """The text without the key, in case a server says it back; a word of a few characters is no key."""
    return text.replace(key, "[key]") if len(key) >= _LEAST_KEY else text


def sent(send: Callable[[], _Found], *, model: str, key: str, key_env: str) -> _Found:
    """What `send` gives. Raises TryAgain and UserError for what it raises, the key struck out of the server's words."""
    try:
        return send()
    except openai.APIStatusError as error:
        failure: Exception = _of_status(error, model, key, key_env)
    except openai.APIConnectionError as error:
        cause = error.__cause__ or error
        unreached = type(cause).__name__ in _NEVER_SENT
        late = isinstance(error, openai.APITimeoutError) and not unreached
        reason = "no answer in time" if late else f"the connection failed ({_shown(str(cause) or repr(cause), key)})"
        failure = TryAgain(reason, maybe_paid=not unreached, unreached=unreached)
    except openai.OpenAIError as error:
        failure = UserError(f"the judge cannot be asked: {_shown(str(error), key)}")
    raise failure


def read_completion(body: str, key: str) -> Reply:
    """A chat completion as it came over the line; whatever is not one has a `problem`."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return Reply(_shown(body, key), None, "what came back is no JSON")
    if not isinstance(told, dict):
        return Reply(_shown(body, key), None, "what came back is no completion")
    usage, choices = _usage(told.get("usage")), told.get("choices")
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


def _usage(told: Any) -> Usage | None:
    if not isinstance(told, dict):
        return None
    counts = [count for name in ("prompt_tokens", "completion_tokens") if type(count := told.get(name)) is int]
    return Usage(*counts) if len(counts) == 2 and min(counts) >= 0 else None


def _of_status(error: openai.APIStatusError, model: str, key: str, key_env: str) -> Exception:
    status, said = error.status_code, shown(error, key)
    kept = "What is judged is kept."
    if status == 401:
        return WrongKey(f"the judge's server refuses the key in {key_env} ({said}). Set the right one. {kept}")
    if status == 404:
        return NoModel(f"the judge's server has no '{model}', or is not at this address ({said}). {kept}")
    if error.code in _NO_CREDIT:
        return UserError(f"the account of the key in {key_env} has no credit left ({said}). {kept}")
    if error.code == "context_length_exceeded":
        return UserError(f"a question is too long for '{model}' ({said}). Ask a judge of longer context. {kept}")
    if status in _PASSING or status >= 500:
        wait_s = _retry_after_s(error.response.headers)
        return TryAgain(f"status {status} ({said})", retry_after_s=wait_s, maybe_paid=status in _GAVE_UP)
    return UserError(f"the judge's server refuses to answer: status {status} ({said}). {kept}")


def shown(error: openai.APIStatusError, key: str) -> str:
    """What a server said with an error, cut short and without the key."""
    return _shown(_words(error), key)


def _words(error: openai.APIStatusError) -> str:
    body = error.body
    told = body.get("message") or body.get("detail") if isinstance(body, dict) else body  # "detail" is FastAPI's
    return told if isinstance(told, str) and told else error.message


def _shown(text: str, key: str) -> str:
    line = " ".join(strike_out(text, key).split())
    return line[:_SHOWN] + ("..." if len(line) > _SHOWN else "")


def _retry_after_s(headers: Any) -> float | None:
    """Seconds, whether told as such, in milliseconds or as a date; None where not told, or not to be understood."""
    try:
        if told := headers.get("retry-after-ms"):
            return max(0.0, float(told) / 1000)
        told = headers.get("retry-after", "")
        return max(0.0, float(told)) if told else None
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(told)
    except (TypeError, ValueError):
        return None
    now = datetime.now(UTC)
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())
