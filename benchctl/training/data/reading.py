"""Reads training data from wherever it lies: JSON lines, JSON, text, parquet, folders of them, the hub."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchctl.training.data.corpus import CorpusError, Record, record_of
from benchctl.training.data.hub_data import Rows, hub_splits, is_saved, parquet_rows, saved_splits

LINES, TEXTS = (".jsonl", ".jsonl.gz"), (".txt", ".md")
KINDS = ((*LINES, ".parquet"), (".json",), TEXTS)  # of a folder's files, those of the first kind that occurs are data
HELD_OUT_NAME = re.compile(r"(^|[^a-z])(e?val|validation|evaluation)([^a-z]|$)")
TEST_SPLIT = re.compile(r"(^|[^a-z])test([^a-z]|$)")
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:[\w.-]+)?")
SECTION_CHARS = 2000
UNNAMED = "unnamed"


@dataclass(frozen=True)
class Part:
    """The records of one file or split, whether they are for measuring only, and the sha256 of what they came from."""

    name: str
    held_out: bool
    records: list[Record]
    sha256: str


def read_parts(sources: Sequence[str]) -> Iterator[Part]:
    """Everything that files, folders and names of data sets on the hub hold. Raises CorpusError or UserError."""
    for source in sources:
        path = Path(source)
        if path.is_dir() and is_saved(path):
            yield from _split_parts(path.name, saved_splits(path))
        elif path.is_dir():
            yield from (_file_part(file) for file in folder_files(path))
        elif path.is_file():
            yield _file_part(path)
        elif HUB_NAME.fullmatch(source) and not source.endswith(sum(KINDS, ())):
            yield from _split_parts(source, hub_splits(source))
        else:
            raise CorpusError(
                f"{source}: no such file or folder; give a JSON lines file, a folder of them, or a data set on the hub "
                "(owner/name)"
            )


def folder_files(folder: Path) -> list[Path]:
    """The data files of a folder, sorted, see KINDS; parquet files at any depth. Raises CorpusError without any."""
    files = sorted({*(entry for entry in folder.iterdir() if entry.is_file()), *folder.rglob("*.parquet")})
    for kind in KINDS:
        if found := [file for file in files if file.name.endswith(kind)]:
            return found
    raise CorpusError(f"{folder}: no *.jsonl, *.jsonl.gz, *.parquet, *.json, *.txt or *.md file in this folder")


def read_records(path: Path) -> Iterator[Record]:
    """The records of one file. Raises CorpusError naming file and line; an empty file is an error."""
    count = 0
    for record in _records(path):
        count += 1
        yield record
    if count == 0:
        raise CorpusError(f"{path}: no records in this file")


def sections(text: str) -> Iterator[str]:
    """Plain text cut at blank lines into sections of at least SECTION_CHARS characters, the last one shorter."""
    section: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        section.append(paragraph)
        if sum(map(len, section)) >= SECTION_CHARS:
            yield "\n\n".join(section)
            section = []
    if section:
        yield "\n\n".join(section)


def _file_part(path: Path) -> Part:
    try:
        records = list(read_records(path))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CorpusError(
            f"{path}: cannot be read ({error.strerror or error}); check the file and its rights"
        ) from error
    return Part(path.name, is_held_out_name(path.name), records, digest)


def is_held_out_name(name: str) -> bool:
    """Whether a file or a split called so is for measuring: `instruct_val` and `validation` are, `interval` is not."""
    return HELD_OUT_NAME.search(name.lower()) is not None


def _split_parts(name: str, splits: dict[str, Rows]) -> Iterator[Part]:
    for split, rows in splits.items():
        digest = hashlib.sha256()
        records = list(_row_records(rows, f"{name}[{split}]", name.partition(":")[0], digest))
        if not records:
            raise CorpusError(f"{name}: its split {split} is empty")
        held_out = is_held_out_name(split) or TEST_SPLIT.search(split.lower()) is not None
        yield Part(f"{name}[{split}]", held_out, records, digest.hexdigest())


def _row_records(rows: Rows, where: str, source: str, digest: Any) -> Iterator[Record]:
    for number, row in enumerate(rows, start=1):
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
        yield record_of(row, f"{where}:{number}", source)


def _records(path: Path) -> Iterator[Record]:
    if path.name.endswith(".parquet"):
        yield from (record_of(row, f"{path}:{n}", UNNAMED) for n, row in enumerate(parquet_rows(path), start=1))
    elif path.name.endswith(TEXTS):
        yield from _sections_of(path)
    elif path.name.endswith(".json") and (whole := _decoded(path.read_bytes(), f"{path}:1")).lstrip().startswith("["):
        entries = _json(whole, str(path))
        yield from (record_of(entry, f"{path}: entry {n}", UNNAMED) for n, entry in enumerate(entries, start=1))
    else:
        for number, line in _lines(path):
            where = f"{path}:{number}"
            if line.strip():
                yield record_of(_json(_decoded(line, where), where), where, UNNAMED)


def _sections_of(path: Path) -> Iterator[Record]:
    lines = (_decoded(line, f"{path}:{number}") for number, line in _lines(path))
    text = "".join(lines).replace("\r\n", "\n")
    yield from (Record.plain(UNNAMED, section.strip()) for section in sections(text) if section.strip())


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    opener = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{path}:{number + 1}: broken gzip data ({error}); fetch the file again") from error


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise CorpusError(f"{where}: not UTF-8 (byte {error.start}); convert the file to UTF-8") from error


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise CorpusError(f"{where}: not JSON ({error.msg} at {place})") from error
