"""OpenAI's batches: a file of requests handed in, and one of replies fetched when they are done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from benchctl.judges._openai import read_completion, strike_out
from benchctl.judging.judge import BatchedReply, BatchRefused

if TYPE_CHECKING:
    from openai import OpenAI

_PATH: Final = "/v1/chat/completions"
_MARK = "benchctl"
_LOOKED_THROUGH = 200  # recent batches, for one with a mark
_DONE = {"completed", "expired", "cancelled"}  # of those too, whatever was answered is there, and billed


def start(client: OpenAI, bodies: Mapping[str, Mapping[str, Any]], mark: str) -> str:
    """Hand in bodies of requests by key; the id of their batch."""
    lines = [{"custom_id": key, "method": "POST", "url": _PATH, "body": body} for key, body in bodies.items()]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=("questions.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint=_PATH, completion_window="24h", metadata={_MARK: mark}
    )
    return str(batch.id)


def find(client: OpenAI, mark: str) -> str | None:
    """The id of a recent batch with this mark."""
    recent = islice(client.batches.list(limit=100), _LOOKED_THROUGH)
    return next((str(batch.id) for batch in recent if (batch.metadata or {}).get(_MARK) == mark), None)


def collect(client: OpenAI, batch_id: str, key: str) -> tuple[BatchedReply, ...] | None:
    """What a batch brought; None while it is not done. Raises BatchRefused for one that the server would not take."""
    batch = client.batches.retrieve(batch_id)
    if batch.status == "failed":
        told = [str(error.message) for error in (batch.errors.data or [])] if batch.errors else []
        why = strike_out("; ".join(told).rstrip("."), key) or "it does not say why"
        raise BatchRefused(
            f"the server would not take the batch {batch_id}: {why}. Nothing of it was billed: judge again, or without "
            "--batch."
        )
    if batch.status not in _DONE:
        return None
    files = [name for name in (batch.output_file_id, batch.error_file_id) if name]
    return tuple(reply for name in files for reply in _replies(client.files.content(name).content, key))


def _replies(content: bytes, key: str) -> Iterator[BatchedReply]:
    for line in content.splitlines():  # of bytes: those of a text end at U+2028 as well
        told = json.loads(line)
        response = told.get("response") or {}
        answered = response.get("status_code") == 200
        yield BatchedReply(
            told["custom_id"], read_completion(json.dumps(response.get("body")), key) if answered else None
        )
