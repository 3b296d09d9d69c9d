"""Reads training records from JSON lines and says exactly where one is broken."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchctl.errors import UserError

HELD_OUT_OF = 100  # one text document in so many is kept for the held-out loss


class CorpusError(UserError):
    """A training file that cannot be used; the message names the file and the line."""


@dataclass(frozen=True)
class Record:
    """One document: an answer to a prompt, or plain text when `prompt` is None."""

    source: str
    prompt: str | None
    text: str


def data_files(paths: Sequence[Path]) -> list[Path]:
    """Files as given, folders as their *.jsonl and *.jsonl.gz, sorted. Raises CorpusError if nothing is there."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(entry for entry in path.iterdir() if entry.name.endswith((".jsonl", ".jsonl.gz")))
            if not inside:
                raise CorpusError(f"{path}: no *.jsonl or *.jsonl.gz file in this folder")
            found.extend(inside)
        elif path.is_file():
            found.append(path)
        else:
            raise CorpusError(f"{path}: no such file or folder; give a JSON lines file or a folder of them")
    return found


def read_records(path: Path) -> Iterator[Record]:
    """The records of one file, plain or gzip. Raises CorpusError naming file and line; an empty file is an error."""
    count = 0
    for number, line in _lines(path):
        if line.strip():
            count += 1
            yield _record(line, f"{path}:{number}")
    if count == 0:
        raise CorpusError(f"{path}: no records in this file")


def is_held_out(record: Record) -> bool:
    """Whether a text document belongs to the held-out part; decided by its content, so it never moves."""
    digest = hashlib.sha256(record.text.encode()).digest()
    return record.prompt is None and int.from_bytes(digest[:4], "big") % HELD_OUT_OF == 0


def data_hash(files: Iterable[Path]) -> dict[str, str]:
    """File name -> sha256 of its bytes, to record which data a model has seen."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    opener = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                yield number, line
    except (EOFError, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path}:{number + 1}: broken gzip data ({error}); fetch the file again") from error


def _record(line: bytes, where: str) -> Record:
    try:
        fields = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CorpusError(f"{where}: not UTF-8 (byte {error.start}); convert the file to UTF-8") from error
    except json.JSONDecodeError as error:
        raise CorpusError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(fields, dict):
        raise CorpusError(f"{where}: a record must be a JSON object, not {type(fields).__name__}")
    source = _text(fields, "source", where) if "source" in fields else "unnamed"
    if "text" in fields:
        return Record(source, None, _text(fields, "text", where))
    if "instruction" not in fields and "output" not in fields:
        raise CorpusError(f'{where}: needs "text", or "instruction" and "output"; found {sorted(fields)}')
    return Record(source, _prompt(fields, where), _text(fields, "output", where))


def _prompt(fields: dict[str, Any], where: str) -> str:
    instruction = _text(fields, "instruction", where)
    if not fields.get("input"):
        return instruction
    return f"{instruction}\n\n{_text(fields, 'input', where)}"


def _text(fields: dict[str, Any], name: str, where: str) -> str:
    if name not in fields:
        raise CorpusError(f'{where}: field "{name}" is missing')
    value = fields[name]
    if not isinstance(value, str):
        raise CorpusError(f'{where}: field "{name}" must be text, not {type(value).__name__}')
    if not value.strip():
        raise CorpusError(f'{where}: field "{name}" is empty')
    return value.strip()
