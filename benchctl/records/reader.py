"""The rows of a results file: parsed and checked line by line in each pass over them, so that none is kept."""

import json
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, overload

from benchctl.errors import InvalidData, UserError
from benchctl.records.labels import current_label
from benchctl.records.schema import SCHEMA_VERSION, Exactness, MethodInfo, Mode, Row, Run, from_line


class RowKey(NamedTuple):
    """The identity of a generation within its run: no two rows of a file share it."""

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


FIRST_ROW: Final = 2  # its line; the run stands in line 1
LONGEST_LINE: Final = 64 << 20  # bytes

_Record = TypeVar("_Record")


class StoredRows(Sequence[Row]):
    """The rows in the lines of a file, each parsed whenever it is asked for.

    `starts` are the bytes at which their lines start, and at which the last of them ends. A pass over all rows checks
    them: it raises InvalidData, with file and line, for a row that cannot be true (see Row), that is not of the run, or
    occurs twice, and for a batch whose rows do not stand together.
    """

    def __init__(self, path: Path, run: Run, starts: "array[int]") -> None:
        self._path, self._run, self._starts = path, run, starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        indices = range(len(self))[index]
        return self._row(indices) if isinstance(indices, int) else tuple(map(self._row, indices))

    def __iter__(self) -> Iterator[Row]:
        rows = self._checked()
        return rows if self._run.batch_size == 1 else _whole_batches(self._path, rows)

    def _row(self, index: int) -> Row:
        start, end = self._starts[index], self._starts[index + 1]
        with self._path.open("rb") as file:
            file.seek(start)
            return row_of(self._path, index + FIRST_ROW, file.read(end - start))

    def _checked(self) -> Iterator[Row]:
        exactness = {method.label: method.exactness for method in self._run.methods}
        suites = {suite.name for suite in self._run.suites}
        lines: dict[RowKey, int] = {}
        with self._path.open("rb") as file:
            file.seek(self._starts[0])
            for number in range(FIRST_ROW, FIRST_ROW + len(self)):
                row = row_of(self._path, number, file.readline())
                if problem := _problem(self._run, exactness, suites, row):
                    raise InvalidData("row_not_of_run", f"{self._path}:{number}: {problem}")
                if (earlier := lines.setdefault(row_key(row), number)) != number:
                    raise InvalidData(
                        "line_twice",
                        f"{self._path}:{number}: the same generation as line {earlier}. Remove one of the two lines.",
                    )
                yield row


def _problem(run: Run, exactness: Mapping[str, Exactness], suites: set[str], row: Row) -> str:
    """Why a row cannot be one of a run of these labels and suites, or ""."""
    if row.label not in exactness or row.suite not in suites:
        return f"'{row.label}' on '{row.suite}' is not part of the run in line 1."
    if bool(row.batch) != (run.batch_size > 1) or len(row.batch) > run.batch_size:
        return f"a batch of {len(row.batch)} in a run of batch size {run.batch_size}."
    if row.mode not in run.modes:
        return f"a row of mode {row.mode} in a run of mode {', '.join(run.modes)}."
    if row.totals is not None and not (run.imported or run.methods[0].engine):
        return "totals without lists, which only imported files and engines have, in a run that was measured here."
    target, tokens = run.target, len(row.token_ids)
    if run.imported or not tokens:
        return ""
    if tokens > run.max_new_tokens:
        return f"{tokens} token_ids in a run of {run.max_new_tokens} max_new_tokens."
    # The last token needs no row in the context. The prompt of an encoder is in another one: the answer begins at a
    # start token.
    begun = 1 if target.family == "t5" else row.prompt_tokens
    if target.context_tokens and begun + tokens > target.context_tokens + 1:
        return f"{row.prompt_tokens} prompt_tokens and {tokens} token_ids in a context of {target.context_tokens}."
    if (largest := max(row.token_ids)) >= target.vocabulary:
        return f"token {largest} of a vocabulary of {target.vocabulary}."
    # A token may count layers that were run late for earlier tokens, so only their sum is bounded; a drafter that runs
    # layers of the target itself may need more.
    is_bounded = row.label == run.baseline or exactness[row.label] == "lossy"
    if (layers := sum(row.layers)) > target.layers * tokens and is_bounded:
        return f"{layers} layers for {tokens} tokens of a target of {target.layers} layers."
    return ""


def read_file(path: Path) -> bytes:
    """Raises UserError for a file that cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError("cannot_read", f"{path}: cannot be read: {error.strerror or error}.") from error


def whole_lines(path: Path) -> tuple[list[bytes], tuple[str, ...]]:
    """The lines of a file that judging appends to, and a notice if a kill tore the last one, which is then left out.

    A last line that lacks only its newline is whole. Raises UserError for a file that cannot be read.
    """
    lines = read_file(path).splitlines(keepends=True)
    if not lines or lines[-1].endswith(b"\n") or is_json(lines[-1]):
        return lines, ()
    notice = f"{path}:{len(lines)}: the last line is torn (its judging was killed, or goes on) and is left out."
    return lines[:-1], (notice,)


def index(path: Path) -> "array[int]":
    """The bytes where the lines of a file start, and where the last one ends.

    Raises OSError, and InvalidData for a line that no run writes: a file of another kind would fill the memory.
    """
    starts = array("q", [0])
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise InvalidData("line_too_long", f"{path}:{len(starts)}: is longer than {LONGEST_LINE >> 20} MiB.")
            starts.append(starts[-1] + len(line))
    return starts


def run_of(path: Path, line: bytes) -> Run:
    """The run in the first line, under the labels it was written with.

    Raises InvalidData for anything else, and for a run of a newer version.
    """
    record = json.loads(line) if is_json(line) else None
    if not isinstance(record, dict) or record.get("kind") != "run" or "schema_version" not in record:
        raise InvalidData(
            "not_a_results_file",
            f"{path}:1: is not the start of a benchctl run. Give a file that `benchctl run --out` wrote, or turn "
            "another program's answers into one with `benchctl import`.",
        )
    if line.startswith(BOM_UTF8):
        raise InvalidData(
            "byte_order_mark", f"{path}:1: starts with a byte-order mark. Write the file as UTF-8 without one."
        )
    return valid(Run, path, 1, line, SCHEMA_VERSION)


def row_of(path: Path, number: int, line: bytes) -> Row:
    """The row in a line, under the current label. Raises as `valid` does."""
    row = valid(Row, path, number, line)
    label = current_label(row.label)
    return row if label == row.label else replace(row, label=label)


def with_current_labels(run: Run) -> Run:
    """The run with the current labels: rows of older and newer files then share them."""
    methods = tuple(_with_current_label(method) for method in run.methods)
    return run if methods == run.methods else replace(run, methods=methods, baseline=current_label(run.baseline))


def _with_current_label(method: MethodInfo) -> MethodInfo:
    label = current_label(method.label)
    if label == method.label:
        return method
    options = {name: value for name, value in method.options.items() if name != "mode"}
    return replace(method, label=label, name=label.partition("[")[0], options=options)


def torn_batch(rows: StoredRows) -> int:
    """How many rows at the end are of a batch that is not whole, as a killed run leaves it."""
    last = rows[-1]
    torn = last.batch.index(last.prompt_id) + 1 if last.batch else 0
    if not 0 < torn < len(last.batch):
        return 0
    started = rows[-torn:]
    is_batch = tuple(map(row_key, started)) == batch_keys(last)[:torn] and same_batch(started)
    return torn if is_batch else 0  # rows that are no start of a batch stay: the pass over the rows names them


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
    return InvalidData(
        "batch_not_whole", f"{path}:{number}: the rest of its batch does not follow. Restore or remove its lines."
    )


def valid(kind: type[_Record], path: Path, number: int, line: bytes, newest: int = 0) -> _Record:
    """The record in a line. Raises InvalidData, with file and line, for what is none, cannot be true, or is of a newer
    version than `newest`, where lines of this kind have one."""
    try:
        return from_line(kind, line)
    except ValueError as error:
        record = json.loads(line) if newest and is_json(line) else None
        version = record.get("schema_version") if isinstance(record, dict) else None
        if isinstance(version, int) and version > newest:
            newer = f"written by a newer benchctl, schema {version} (this one reads {newest})"
            raise InvalidData("newer_version", f"{path}:{number}: {newer}; upgrade.") from error
        raise InvalidData("broken_line", f"{path}:{number}: {_advice(kind, line, str(error))}") from error


def _advice(kind: type, line: bytes, problem: str) -> str:
    if not line.strip():
        return "the line is empty. Remove it."
    fields = json.loads(line) if is_json(line) else None
    if kind is not Run and isinstance(fields, dict) and fields.get("kind") == "run":
        return "another run begins here. Give every run a file of its own."
    if kind is Row and isinstance(fields, dict) and "kind" not in fields and problem.endswith(": missing"):
        field = problem.removesuffix(": missing")
        return (
            f"has no {field}, so it is no generation of this run. Remove this line; answers of other programs are read "
            "by `benchctl import`."
        )
    return f"{problem}. Restore or remove this line."
