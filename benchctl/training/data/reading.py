"""Reads training data: JSON lines, JSON, text and parquet files, folders of them, data sets of the hub.

This is the one module that imports the library `datasets`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchctl.decoding.model.tokenizer import hub_reachable
from benchctl.errors import UserError
from benchctl.training.data.chats import Message, Record, is_held_out, record_of

SAVED = ("dataset_dict.json", "dataset_info.json")  # what save_to_disk writes, for several splits and for one
LONGEST_REASON = 300
ENOUGH_RECORDS = 500  # with so many, one in a hundred holds out at least one record in 149 of 150 data sets

LINES, TEXTS = (".jsonl", ".jsonl.gz"), (".txt", ".md")
KINDS = ((*LINES, ".parquet"), (".json",), TEXTS)  # of a folder's files, those of the first kind that occurs are data
HELD_OUT_NAME = re.compile(r"(^|[^a-z])(e?val|validation|evaluation)([^a-z]|$)")
TEST_SPLIT = re.compile(r"(^|[^a-z])test([^a-z]|$)")
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:[\w.-]+)?")
SECTION_CHARS = 2000
UNNAMED = "unnamed"


class Recipe(Protocol):
    """How a corpus is weighed and completed; reference/ has the recipe of the embedded models."""

    def weight(self, source: str) -> float:
        """How many times a prompt of this source is answered in self-distillation: 0.25 is one prompt in four."""
        ...

    def requests(self, records: Sequence[Record], count: int, seed: int) -> list[tuple[Message, ...]]:
        """At most `count` prompts that are added to those of the records."""
        ...

    def card_columns(self, source: str) -> tuple[str, str]:
        """Weights and licence of a source, for the card."""
        ...


@dataclass(frozen=True)
class Corpus:
    """Training records, held-out records by kind, and the sha256 of every file by its name.

    Without a `recipe` every record is read once, whole.
    """

    train: list[Record]
    held_out: dict[str, list[Record]]
    hashes: dict[str, str]
    recipe: Recipe | None = None


@dataclass(frozen=True)
class Part:
    """The records of one file or split, whether they are for measuring only, and the sha256 of what they came from."""

    name: str
    held_out: bool
    records: list[Record]
    sha256: str


def read_corpus(sources: Sequence[str]) -> Corpus:
    """Reads files, folders and data sets of the hub.

    Files named *val* are held out. Where chats or texts have no such file, one record in a hundred is held out.
    Raises UserError when there is nothing to train on or nothing to hold out.
    """
    train: list[Record] = []
    held_out: list[Record] = []
    hashes: dict[str, str] = {}
    for part in read_parts(sources):
        (held_out if part.held_out else train).extend(part.records)
        hashes[part.name if part.name not in hashes else f"{part.name} ({len(hashes) + 1})"] = part.sha256
    given = {_kind(record) for record in held_out}  # one record in a hundred of any other kind is held out
    moved = [_kind(record) not in given and is_held_out(record) for record in train]
    held_out += [record for record, out in zip(train, moved, strict=True) if out]
    train = [record for record, out in zip(train, moved, strict=True) if not out]
    if not train:
        raise UserError(
            "no_training_data",
            "nothing is left to train on, since all records are held out: files with val in their name, validation "
            "and test splits, and one record in a hundred; give more data",
        )
    if not held_out:
        raise UserError(
            "too_few_records",
            f"{len(train)} records are too few to hold out one in a hundred; give {ENOUGH_RECORDS} or more, or put "
            "some of them into a file whose name ends in _val",
        )
    by_kind = {kind: [record for record in held_out if _kind(record) == kind] for kind in ("instruct", "text")}
    return Corpus(train, {name: records for name, records in by_kind.items() if records}, hashes)


def _kind(record: Record) -> str:
    return "instruct" if record.messages else "text"


def read_parts(sources: Sequence[str]) -> Iterator[Part]:
    """Everything that files, folders and names of data sets on the hub hold. Raises UserError."""
    for source in sources:
        path = Path(source)
        if path.is_dir() and any((path / name).is_file() for name in SAVED):
            yield from _split_parts(path.name, _saved(path))
        elif path.is_dir():
            yield from (_file_part(file) for file in folder_files(path))
        elif path.is_file():
            yield _file_part(path)
        elif HUB_NAME.fullmatch(source) and not source.endswith(sum(KINDS, ())):
            yield from _split_parts(source, _of_hub(source))
        else:
            raise UserError(
                "no_data_files",
                f"{source}: no such file or folder; give a JSON lines file, a folder of them, or a data set on the hub "
                "(owner/name)",
            )


def folder_files(folder: Path) -> list[Path]:
    """The data files of a folder, sorted, see KINDS; parquet files at any depth. Raises UserError without any."""
    files = sorted({*(entry for entry in folder.iterdir() if entry.is_file()), *folder.rglob("*.parquet")})
    for kind in KINDS:
        if found := [file for file in files if file.name.endswith(kind)]:
            return found
    raise UserError(
        "no_data_files", f"{folder}: no *.jsonl, *.jsonl.gz, *.parquet, *.json, *.txt or *.md file in this folder"
    )


def read_records(path: Path) -> list[Record]:
    """The records of one file. Raises UserError naming file and line; an empty file is an error."""
    records = list(_records(path))
    if not records:
        raise UserError("no_records", f"{path}: no records in this file")
    return records


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
        records = read_records(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            "file_not_readable", f"{path}: cannot be read ({error.strerror or error}); check the file and its rights"
        ) from error
    return Part(path.name, is_held_out_name(path.name), records, digest)


def is_held_out_name(name: str) -> bool:
    """Whether a file or a split called so is for measuring: `instruct_val` and `validation` are, `interval` is not."""
    return HELD_OUT_NAME.search(name.lower()) is not None


def _split_parts(name: str, loaded: Any) -> Iterator[Part]:
    """The splits of a data set; one that is not split as its own."""
    splits = dict(loaded) if isinstance(loaded, Mapping) else {str(loaded.split or "train"): loaded}
    for split, rows in splits.items():
        digest, records = hashlib.sha256(), []
        for number, row in enumerate(rows, start=1):
            digest.update(json.dumps(row, sort_keys=True, default=str).encode())
            records.append(record_of(row, f"{name}[{split}]:{number}", name.partition(":")[0]))
        if not records:
            raise UserError("no_records", f"{name}: its split {split} is empty")
        held_out = is_held_out_name(split) or TEST_SPLIT.search(split.lower()) is not None
        yield Part(f"{name}[{split}]", held_out, records, digest.hexdigest())


def _records(path: Path) -> Iterator[Record]:
    if path.name.endswith(".parquet"):
        yield from (record_of(row, f"{path}:{n}", UNNAMED) for n, row in enumerate(_parquet_rows(path), start=1))
    elif path.name.endswith(TEXTS):
        lines = (_decoded(line, f"{path}:{number}") for number, line in _lines(path))
        found = sections("".join(lines).replace("\r\n", "\n"))
        yield from (Record.plain(UNNAMED, section.strip()) for section in found if section.strip())
    elif path.name.endswith(".json") and (whole := _decoded(path.read_bytes(), f"{path}:1")).lstrip().startswith("["):
        entries = _json(whole, str(path))
        yield from (record_of(entry, f"{path}: entry {n}", UNNAMED) for n, entry in enumerate(entries, start=1))
    else:
        for number, line in _lines(path):
            where = f"{path}:{number}"
            if line.strip():
                yield record_of(_json(_decoded(line, where), where), where, UNNAMED)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    opener = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            "broken_gzip", f"{path}:{number + 1}: broken gzip data ({error}); fetch the file again"
        ) from error


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise UserError("not_utf8", f"{where}: not UTF-8 (byte {error.start}); convert the file to UTF-8") from error


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise UserError("not_json", f"{where}: not JSON ({error.msg} at {place})") from error


def _saved(folder: Path) -> Any:
    """What save_to_disk wrote into a folder."""
    datasets = _library(str(folder))
    complaint = f"{folder}: not a folder that save_to_disk of `datasets` wrote"
    return _loaded("file_not_readable", complaint, lambda: datasets.load_from_disk(str(folder)))


def _parquet_rows(path: Path) -> Any:
    datasets = _library(str(path))
    load = lambda: list(datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True))  # noqa: E731
    return _loaded("file_not_readable", f"{path}: not a parquet file that can be read", load)


def _of_hub(name: str) -> Any:
    """The data set `owner/name` or `owner/name:configuration` of the hub, or of its cache when that is offline."""
    datasets = _library(name)
    identity, _, configuration = name.partition(":")
    cached = Path(datasets.config.HF_DATASETS_CACHE) / identity.replace("/", "___")
    if not hub_reachable() and not cached.is_dir():  # the library would try for half a minute before it says so
        raise UserError(
            "unknown_data_set",
            f"{name}: no such file or folder here, the hub cannot be reached (or HF_HUB_OFFLINE is set), and its cache "
            "does not contain such a data set. Correct the path, connect to the network, or give a folder written by "
            "save_to_disk",
        )
    complaint = (
        f"{name}: no such file or folder here, and not to be had from the hub. Correct the path or the name; where the "
        f"data set asks for a configuration, write {identity}:CONFIGURATION"
    )
    return _loaded("unknown_data_set", complaint, lambda: datasets.load_dataset(identity, configuration or None))


def _library(wanted: str) -> Any:
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise UserError(
            "library_missing",
            f"{wanted}: reading this needs the library `datasets`; install it with "
            "`pip install 'benchctl[datasets]'`, or give JSON lines files",
        ) from error
    return datasets


def _loaded(id: str, complaint: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # a broken file, and the hub's client, raise whatever they happen to raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST_REASON]}"
        raise UserError(id, f"{complaint} ({reason})") from error
