"""OpenAI's batches: a file of requests handed in, and one of replies fetched when they are done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import accumulate, islice, takewhile
from typing import TYPE_CHECKING, Any, Final

import openai

from benchctl.errors import UserError
from benchctl.judges._openai import read_completion, shown, strike_out
from benchctl.judging.judge import BatchedReply, BatchLost, BatchRefused, TryAgain

if TYPE_CHECKING:
    from openai import OpenAI

_PATH: Final = "/v1/chat/completions"
_MARK = "benchctl"
_MOST_REQUESTS: Final = 50_000  # of a batch, and of its file in bytes: OpenAI's API reference, batches and files
_MOST_BYTES: Final = 200_000_000
_LOOKED_THROUGH = 200  # recent batches, for one with a mark, so many at a time:
_PAGE = 100
_GOING = {"validating", "in_progress", "finalizing", "cancelling"}
_DONE = {"completed", "expired", "cancelled"}  # of those too, whatever was answered is there, and billed
_NO_BATCHES = {404, 405, 501}
_NOT_GIVEN = {400, 403, 404, 410}  # of a batch or its file: not of this account, deleted, or not there any more


def fitting(bodies: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
    """How many of the first bodies by key fit into one batch; at least 1."""
    sizes = accumulate(len(_line(*each)) for each in islice(bodies, _MOST_REQUESTS))
    return max(1, sum(1 for _ in takewhile(_MOST_BYTES.__ge__, sizes)))


def start(client: OpenAI, bodies: Mapping[str, Mapping[str, Any]], mark: str, key: str) -> str:
    """Hand in bodies of requests by key; the id of their batch. Raises UserError where the server takes none at all."""
    try:
        return _start(client, bodies, mark)
    except openai.APIStatusError as error:
        if error.status_code not in _NO_BATCHES:
            raise
        said = f"status {error.status_code}, {shown(error, key)}"
        raise UserError(f"the judge's server takes no batches ({said}): leave --batch out.") from None


def _start(client: OpenAI, bodies: Mapping[str, Mapping[str, Any]], mark: str) -> str:
    content = b"".join(_line(*each) for each in bodies.items())
    file = client.files.with_raw_response.create(file=("questions.jsonl", content), purpose="batch")
    batch = client.batches.with_raw_response.create(
        input_file_id=_id(_told(file)), endpoint=_PATH, completion_window="24h", metadata={_MARK: mark}
    )
    return _id(_told(batch))


def find(client: OpenAI, mark: str) -> str | None:
    """The id of a recent batch with this mark."""
    after: str | openai.Omit = openai.omit
    for _ in range(0, _LOOKED_THROUGH, _PAGE):
        page = _told(client.batches.with_raw_response.list(limit=_PAGE, after=after))
        batches = page.get("data")
        if not isinstance(batches, list) or not all(isinstance(batch, dict) for batch in batches):
            raise TryAgain("what came back is no list of batches")
        for batch in batches:
            if (batch.get("metadata") or {}).get(_MARK) == mark:
                return _id(batch)
        if not batches or page.get("has_more") is False:
            break
        after = _id(batches[-1])
    return None


def collect(client: OpenAI, batch_id: str, key: str) -> tuple[BatchedReply, ...] | None:
    """What a batch brought; None while it is not done.

    Raises BatchRefused for one that the server would not take, and BatchLost for one that it does not give.
    """
    try:
        return _collect(client, batch_id, key)
    except openai.APIStatusError as error:
        if error.status_code not in _NOT_GIVEN:
            raise
        problem = f"the server does not give the batch {batch_id}: status {error.status_code} ({shown(error, key)})."
        raise BatchLost(problem) from None


def _collect(client: OpenAI, batch_id: str, key: str) -> tuple[BatchedReply, ...] | None:
    batch = _told(client.batches.with_raw_response.retrieve(batch_id))
    status = batch.get("status")
    if status == "failed":
        why = strike_out(_why(batch).rstrip("."), key) or "it does not say why"
        raise BatchRefused(
            f"the server would not take the batch {batch_id}: {why}. Nothing of it was billed: judge again, or without "
            "--batch."
        )
    if status in _GOING:
        return None
    if status not in _DONE:
        raise TryAgain("what came back is no batch")
    files = [name for name in (batch.get("output_file_id"), batch.get("error_file_id")) if name]
    lines = [line for name in files for line in client.files.content(name).content.splitlines()]
    found = [_reply(line, key) for line in lines]  # lines of bytes: those of a text end at U+2028 as well
    replies = tuple(reply for reply in found if reply)
    if len(replies) < len(found):
        damaged = f"line {found.index(None) + 1} of what the batch {batch_id} brought is no reply"
        raise BatchLost(f"{damaged} ({len(found) - len(replies)} such lines).", replies)
    return replies


def _reply(line: bytes, key: str) -> BatchedReply | None:
    """The reply in a line of a file; None for a line that holds none."""
    try:
        told = json.loads(line)
        custom_id, response = str(told["custom_id"]), told.get("response") or {}
        answered = response.get("status_code") == 200
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return BatchedReply(custom_id, read_completion(json.dumps(response.get("body")), key) if answered else None)


def _told(response: Any) -> dict[str, Any]:
    """The object that came back, read here: the client raises whatever its reader does. Raises TryAgain for anything
    else, such as the page of a proxy; what was handed in is then looked for before it is handed in again."""
    try:
        told = json.loads(response.http_response.content)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise TryAgain("what came back is no object of JSON")
    return told


def _id(told: Mapping[str, Any]) -> str:
    found = told.get("id")
    if not isinstance(found, str) or not found:
        raise TryAgain("what came back is no batch or file")
    return found


def _why(batch: Mapping[str, Any]) -> str:
    """What a server says of a batch that failed."""
    errors = batch.get("errors")
    listed = errors.get("data") if isinstance(errors, dict) else None
    listed = listed if isinstance(listed, list) else []
    return "; ".join(str(error["message"]) for error in listed if isinstance(error, dict) and error.get("message"))


def _line(key: str, body: Mapping[str, Any]) -> bytes:
    return json.dumps({"custom_id": key, "method": "POST", "url": _PATH, "body": body}).encode() + b"\n"
