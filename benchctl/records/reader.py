"""The rows of a results file, parsed and checked line by line as they are gone through, so that none has to be kept."""

import json
import re
from array import array
from bisect import bisect_left
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from msgspec import Meta, Struct, defstruct
from msgspec.json import Decoder
from msgspec.structs import asdict as fields_of
from pydantic import TypeAdapter, ValidationError

from benchctl.errors import InvalidData
from benchctl.records.schema import ROW, RUN, SCHEMA_VERSION, Mode, Row, Run, Totals, row_problem


class RowKey(NamedTuple):
    """What names a generation within its run; no two rows of a file share it."""

    suite: str
    prompt_id: str
    turn: int
    label: str
    repeat: int
    session: int
    mode: Mode = "free"


def row_key(row: Row) -> RowKey:
    return RowKey(row.suite, row.prompt_id, row.turn, row.label, row.repeat, row.session, row.mode)


def batch_keys(row: Row) -> tuple[RowKey, ...]:
    """The keys of the rows of its batch, in their order; its own alone where it was decoded alone."""
    return tuple(row_key(row)._replace(prompt_id=prompt_id) for prompt_id in row.batch or (row.prompt_id,))


def same_batch(rows: Sequence[Row]) -> bool:
    """Whether these rows can be of one batch: each has the times of the longest, up to its own end."""
    longest = max(rows, key=lambda row: len(row.step_s))
    return all(
        (row.ttft_s, row.step_s) == (longest.ttft_s, longest.step_s[: len(row.step_s)])
        and (row.batch, row.error is None) == (longest.batch, longest.error is None)
        for row in rows
    )


def decoded(line: bytes) -> Row | None:
    """The row in a line, or None where the records have to be asked what is wrong with it, if anything is."""
    try:
        fields = _DECODER.decode(line)
    except ValueError:
        return None
    row = object.__new__(Row)
    vars(row).update(fields_of(fields))  # all are checked, and a frozen row takes them in no other way unchecked
    return None if row_problem(row) else row


def _struct() -> type[Struct]:
    """The fields of a row as this decoder has them: the same names, types and defaults, and no others."""
    hints = get_type_hints(Row, include_extras=True)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, field in Row.__pydantic_fields__.items():  # type: ignore[attr-defined]
        default = () if field.is_required() else (field.get_default(call_default_factory=True),)
        fields.append((name, _translated(hints[name]), *default))
    return defstruct("RowFields", fields, kw_only=True, forbid_unknown_fields=True, gc=False)


def _translated(hint: Any) -> Any:
    """A type of the records with its bounds as this decoder takes them. Fails for one that it could not hold to.

    Totals, which imported files alone have, are left to the records.
    """
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        inner, field = parts
        bounds = {name: bound for one in field.metadata for name, bound in asdict(one).items() if name != "strict"}
        return Annotated[_translated(inner), Meta(**bounds)] if bounds else _translated(inner)
    if kind in (Union, UnionType):
        return Union[tuple(map(_translated, parts))]  # noqa: UP007
    if kind is tuple:
        return GenericAlias(tuple, (_translated(parts[0]), ...))
    if kind is Mapping:
        return GenericAlias(dict, (str, _translated(parts[1])))
    if hint is Totals:
        return None
    if hint in (str, int, float, NoneType) or kind is Literal:
        return hint
    raise TypeError(f"{hint}: no type of rows that lines are decoded to")


_DECODER: Final = Decoder(_struct())


FIRST_ROW: Final = 2  # its line; the run stands in line 1

Lines = dict[tuple[object, ...], int]  # of generations, by their keys, in the order of the file

_Record = TypeVar("_Record")


class StoredRows(Sequence[Row]):
    """The rows in the lines of a file, or in some of them, each made anew whenever it is asked for.

    `starts` are the bytes where their lines start, and where the last of them ends; `first` is the number of the first.
    Whoever goes through all rows gets them checked: raises InvalidData, with file and line, for a row that cannot be
    true (see Row), that is not of the run, or occurs twice, and for a batch whose rows do not stand together.
    """

    def __init__(self, path: Path, run: Run, starts: "array[int]", first: int = FIRST_ROW) -> None:
        self._path, self._run, self._starts, self._first = path, run, starts, first

    @property
    def size_bytes(self) -> int:
        return self._starts[-1] - self._starts[0]

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        numbers = range(len(self))[index]
        return self._row(numbers) if isinstance(numbers, int) else tuple(map(self._row, numbers))

    def __iter__(self) -> Iterator[Row]:
        return self.checked({})

    def checked(self, lines: Lines) -> Iterator[Row]:
        """The rows, whose lines are added to `lines` as they are gone through."""
        rows = self._checked(lines)
        return rows if self._run.batch_size == 1 else _whole_batches(self._path, rows)

    def parted(self, size_bytes: int) -> "tuple[StoredRows, StoredRows]":
        """Rows of so many bytes, and the others. Batches are not parted: there the first are all."""
        at = bisect_left(self._starts, self._starts[0] + size_bytes, 0, len(self))
        at = at if self._run.batch_size == 1 else len(self)
        return (
            StoredRows(self._path, self._run, self._starts[: at + 1], self._first),
            StoredRows(self._path, self._run, self._starts[at:], self._first + at),
        )

    def _row(self, number: int) -> Row:
        start, end = self._starts[number], self._starts[number + 1]
        with self._path.open("rb") as file:
            file.seek(start)
            return row_of(self._path, number + self._first, file.read(end - start))

    def _checked(self, lines: Lines) -> Iterator[Row]:
        belongs = _Belonging(self._run)
        with self._path.open("rb") as file:
            file.seek(self._starts[0])
            for number in range(self._first, self._first + len(self)):
                row = row_of(self._path, number, file.readline())
                if problem := belongs.problem(row):
                    raise InvalidData(f"{self._path}:{number}: {problem}")
                # A plain tuple is none that the garbage collector would go through again and again.
                if (earlier := lines.setdefault(tuple(row_key(row)), number)) != number:
                    raise _doubled(self._path, number, earlier)
                yield row


def doubled(path: Path, lines: Lines, later: Lines) -> InvalidData | None:
    """What is wrong with the first of the `later` rows of a file that is among those before them; None if none is."""
    found = next((key for key in later if key in lines), None)
    return None if found is None else _doubled(path, later[found], lines[found])


def _doubled(path: Path, number: int, earlier: int) -> InvalidData:
    return InvalidData(f"{path}:{number}: the same generation as line {earlier}. Remove one of the two lines.")


class _Belonging:
    """Whether a row can be one of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._labels = {method.label for method in run.methods}
        self._suites = {suite.name for suite in run.suites}

    def problem(self, row: Row) -> str:
        """What speaks against it, or ""."""
        run = self._run
        if row.label not in self._labels or row.suite not in self._suites:
            return f"'{row.label}' on '{row.suite}' is not part of the run in line 1."
        if bool(row.batch) != (run.batch_size > 1) or len(row.batch) > run.batch_size:
            return f"a batch of {len(row.batch)} in a run of batch size {run.batch_size}."
        if row.mode not in run.modes:
            return f"a row of mode {row.mode} in a run of mode {', '.join(run.modes)}."
        if row.totals is not None and not run.imported:
            return "totals without lists, which only imported files have, in a run that was measured here."
        return "" if run.imported or not row.token_ids else self._excess(row)

    def _excess(self, row: Row) -> str:
        """What is more than there can be. A token may carry layers that were caught up for earlier ones: only their sum
        is bounded."""
        target, tokens = self._run.target, len(row.token_ids)
        if tokens > self._run.max_new_tokens:
            return f"{tokens} token_ids in a run of {self._run.max_new_tokens} max_new_tokens."
        if (largest := max(row.token_ids)) >= target.vocabulary:
            return f"token {largest} of a vocabulary of {target.vocabulary}."
        if (layers := sum(row.layers)) > target.layers * tokens:
            return f"{layers} layers for {tokens} tokens of a target of {target.layers} layers."
        return ""


def index(path: Path) -> "array[int]":
    """The bytes where the lines of a file start, and where the last one ends. Raises OSError."""
    starts = array("q", [0])
    with path.open("rb") as file:
        for line in file:
            starts.append(starts[-1] + len(line))
    return starts


def run_of(path: Path, line: bytes) -> Run:
    """The run in the first line. Raises InvalidData for anything else, and for one of a newer version."""
    record = json.loads(line) if is_json(line) else None
    if not isinstance(record, dict) or record.get("kind") != "run" or "schema_version" not in record:
        raise InvalidData(
            f"{path}:1: is not the start of a benchctl run. Give a file that `benchctl run --out` wrote, or turn "
            "another program's answers into one with `benchctl import`."
        )
    if line.startswith(BOM_UTF8):
        raise InvalidData(f"{path}:1: starts with a byte-order mark. Write the file as UTF-8 without one.")
    version = record["schema_version"]
    if isinstance(version, bool):  # which counts as 1 where a number is asked for
        raise InvalidData(
            f"{path}:1: schema_version: {str(version).lower()} is no version. Restore or remove this line."
        )
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise InvalidData(
            f"{path}:1: written by a newer benchctl, schema {version} (this one reads {SCHEMA_VERSION}); upgrade."
        )
    return valid(RUN, path, 1, line)


def row_of(path: Path, number: int, line: bytes) -> Row:
    """The row in a line. Raises as `valid` does."""
    return decoded(line) or valid(ROW, path, number, line)


def torn_batch(rows: StoredRows) -> int:
    """How many rows at the end are of a batch that is not whole, as a killed run leaves it."""
    last = rows[-1]
    torn = last.batch.index(last.prompt_id) + 1 if last.batch else 0
    if not 0 < torn < len(last.batch):
        return 0
    found = rows[-torn:]
    whole = tuple(map(row_key, found)) == batch_keys(last)[:torn] and same_batch(found)
    return torn if whole else 0  # what is no part of a batch stays, to be named when the rows are gone through


def is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _whole_batches(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows, batch by batch. Raises InvalidData for a batch whose rows do not follow each other."""
    waiting: list[Row] = []
    for number, row in enumerate(rows, FIRST_ROW):
        waiting.append(row)
        keys = batch_keys(waiting[0])
        if row_key(row) != keys[len(waiting) - 1] or not same_batch(waiting):
            raise _not_whole(path, number + 1 - len(waiting))
        if len(waiting) == len(keys):
            yield from waiting
            waiting = []
    if waiting:
        raise _not_whole(path, number + 1 - len(waiting))


def _not_whole(path: Path, number: int) -> InvalidData:
    return InvalidData(f"{path}:{number}: the rest of its batch does not follow. Restore or remove its lines.")


def valid(adapter: TypeAdapter[_Record], path: Path, number: int, line: bytes) -> _Record:
    """The record in a line. Raises InvalidData, with file and line, for what is none or cannot be true."""
    if not line.strip():
        raise InvalidData(f"{path}:{number}: the line is empty. Remove it.")
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        if problem["loc"] == ("kind",) and is_json(line) and json.loads(line)["kind"] == "run":
            raise InvalidData(f"{path}:{number}: another run begins here. Give every run a file of its own.") from error
        place = ".".join(str(part) for part in problem["loc"])
        if adapter is ROW and problem["type"] == "missing" and "kind" not in json.loads(line):
            raise InvalidData(
                f"{path}:{number}: has no {place}, so it is no generation of this run. Remove this line; answers of "
                "other programs are read by `benchctl import`."
            ) from error
        # What the JSON parser calls line 1 is this line.
        message = re.sub(r" at line \d+ column \d+$", "", problem["msg"]).removeprefix("Value error, ")
        raise InvalidData(
            f"{path}:{number}: {place + ': ' if place else ''}{message}. Restore or remove this line."
        ) from error
