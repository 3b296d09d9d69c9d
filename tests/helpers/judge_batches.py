"""The part of OpenAI's protocol that takes many requests as a file and gives the replies back as one, later."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[[Mapping[str, Any]], tuple[int, Mapping[str, Any]]]  # a body in, status and body out


@dataclass
class _Batch:
    id: str
    input_file: str
    metadata: Mapping[str, str]
    looks: int = 0
    output_file: str | None = None
    error_file: str | None = None


@dataclass
class Batches:
    """Files and batches of a server. A batch is done once it was looked at `looks` times, and answered then."""

    answer: Answer
    looks: int = 1
    refusing: bool = False  # whatever is handed in
    absent: bool = False  # the server knows of no batches
    torn: int = 0  # so many lines of a file of replies are sent without their ends
    page: bytes | None = None  # what a proxy says in the server's stead, in every answer about files and batches
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, _Batch] = field(default_factory=dict)

    def post(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        """Status and body for a POST."""
        if self.absent:
            return 404, {"detail": "Not Found"}
        if path == "/v1/files":
            name = f"file-{len(self.files)}"
            self.files[name] = _part(headers["content-type"], body, "file")
            return 200, _file(name, len(self.files[name]))
        told = json.loads(body)
        batch = _Batch(f"batch-{len(self.batches)}", told["input_file_id"], told.get("metadata") or {})
        self.batches[batch.id] = batch
        return 200, self._shown(batch) if self.page is None else self.page

    def get(self, path: str) -> tuple[int, Any]:
        """Status and body for a GET; bytes are a file."""
        if self.page is not None:
            return 200, self.page
        if found := re.fullmatch(r"/v1/files/([\w-]+)/content", path):
            return 200, self._torn(self.files[found[1]])
        if found := re.fullmatch(r"/v1/batches/([\w-]+)", path):
            if found[1] not in self.batches:
                return 404, {"error": {"message": f"No batch found with id '{found[1]}'.", "code": None}}
            batch = self.batches[found[1]]
            batch.looks += 1
            if batch.looks > self.looks and batch.output_file is None and not self.refusing:
                self._answer_all(batch)
            return 200, self._shown(batch)
        newest = [self._shown(batch) for batch in reversed(self.batches.values())]
        ends = {"first_id": newest[0]["id"], "last_id": newest[-1]["id"]} if newest else {}
        return 200, {"object": "list", "data": newest, "has_more": False, **ends}

    def _torn(self, content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        return b"".join([*(line[: len(line) // 2] + b"\n" for line in lines[: self.torn]), *lines[self.torn :]])

    def _answer_all(self, batch: _Batch) -> None:
        lines: dict[bool, list[bytes]] = {True: [], False: []}
        for line in map(json.loads, self.files[batch.input_file].splitlines()):
            status, body = self.answer(line["body"])
            response = {"status_code": status, "request_id": "r", "body": body}
            told = {"id": "x", "custom_id": line["custom_id"], "response": response, "error": None}
            lines[status == 200].append(json.dumps(told, ensure_ascii=False).encode() + b"\n")
        batch.output_file, batch.error_file = f"{batch.id}-out", f"{batch.id}-errors" if lines[False] else None
        self.files |= {f"{batch.id}-out": b"".join(lines[True]), f"{batch.id}-errors": b"".join(lines[False])}

    def _shown(self, batch: _Batch) -> dict[str, Any]:
        status = "completed" if batch.output_file else "in_progress"
        problem = {"code": "made_up", "message": "as planned", "param": None, "line": 1}
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "input_file_id": batch.input_file,
            "completion_window": "24h",
            "status": "failed" if self.refusing else status,
            "errors": {"object": "list", "data": [problem]} if self.refusing else None,
            "output_file_id": batch.output_file,
            "error_file_id": batch.error_file,
            "created_at": 1,
            "metadata": batch.metadata,
        }


def _file(name: str, size: int) -> dict[str, Any]:
    told = {"id": name, "object": "file", "bytes": size, "created_at": 1, "filename": name}
    return {**told, "purpose": "batch", "status": "processed"}


def _part(content_type: str, body: bytes, name: str) -> bytes:
    """The content of one part of a multipart form."""
    boundary = content_type.partition("boundary=")[2].strip('"').encode()
    for part in body.split(b"--" + boundary):
        head, _, content = part.partition(b"\r\n\r\n")
        if f'name="{name}"'.encode() in head:
            return content.removesuffix(b"\r\n")
    raise AssertionError(f"the form has no part {name}")
