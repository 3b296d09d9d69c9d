"""Files of records: read whole, and appended to so that a kill at any moment costs only the generation in flight."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from benchctl.errors import UserError
from benchctl.records import (
    ROW,
    RUN,
    SCHEMA_VERSION,
    ModelInfo,
    Row,
    Run,
    SuiteInfo,
    to_line,
)
from benchctl.rowkeys import RowKey, batch_keys, row_key, same_batch

_Record = TypeVar("_Record", Run, Row)
_RUN_STARTS = b'{"kind":"run"'
_SAME_ON_RESUME = (
    *("target", "draft", "baseline", "methods", "suites", "dtype", "device", "executor", "attention", "threads"),
    *("temperature", "top_p", "top_k", "seed", "max_new_tokens", "repeats", "batch_size", "order"),
)


@dataclass(frozen=True)
class RunFile:
    """A results file as read. `whole_bytes` is its length up to the last whole line; `notices` are for the user."""

    path: Path
    run: Run
    rows: tuple[Row, ...] = ()
    notices: tuple[str, ...] = ()
    whole_bytes: int = 0

    def keys(self) -> frozenset[RowKey]:
        """The generations that are done, failed ones included."""
        return frozenset(map(row_key, self.rows))


def read(path: Path | str) -> RunFile:
    """The run and rows of a results file; a torn last line or batch, left by a killed run, is dropped with a notice.

    Raises UserError, with file and line, for a file that is missing, empty, not of benchctl, of a newer version, broken
    elsewhere than in its last line or batch, or whose rows cannot be true (see Row) or occur twice.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
    if not data.strip():
        raise UserError(f"{path}: is empty. Give a file that `benchctl run --out` wrote.")
    return _parse(path, data)


def check_output(path: Path | str, *, resume: bool = False) -> None:
    """Whether a run may write `path`, asked before anything slow is done.

    Raises UserError if the file exists and is not to be resumed, or if it or its folder cannot be written.
    """
    path = Path(path)
    check_writable(path)
    if path.exists() and path.stat().st_size and not resume:
        raise UserError(f"{path}: exists. Continue it with --resume, or give another --out.")


def check_writable(path: Path) -> None:
    """Raises UserError unless `path` is an ordinary file that may be written, or may become one."""
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: is not an ordinary file. Give --out the name of one.")
        place = path if path.exists() else next(folder for folder in path.absolute().parents if folder.exists())
    except OSError as error:
        raise UserError(f"{path}: cannot be looked at: {error.strerror}. Give another --out.") from error
    if not os.access(place, os.W_OK) or (place != path and not place.is_dir()):
        raise UserError(f"{path}: {place} cannot be written. Give another --out, or the permission to write it.")


class Writer:
    """Appends rows to a results file, and holds the file for itself while it is open.

    With `resume` an existing file is continued: a torn last line is cut off (told through `notify`) and `stored` holds
    the rows that are done. Entering raises UserError if the file is another run's, is being written, or cannot be.

        with Writer(path, run, resume=True) as writer:
            done = writer.stored.keys()
            writer.append(row)
    """

    def __init__(
        self, path: Path | str, run: Run, *, resume: bool = False, notify: Callable[[str], None] = lambda notice: None
    ) -> None:
        self.path = Path(path)
        self.stored = RunFile(self.path, run)
        self._resume = resume
        self._notify = notify
        self._file = -1
        self._size = 0

    def __enter__(self) -> "Writer":
        check_output(self.path, resume=self._resume)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}. Give another --out.") from error
        try:
            self._lock()
            self._begin()
        except BaseException:
            os.close(self._file)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)

    def append(self, *rows: Row) -> None:
        """Hand the rows of a batch, or one row, to the system at once.

        Raises UserError, with the file left as it was, if the disk refuses them.
        """
        self._write(b"".join(map(to_line, rows)))

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"{self.path}: another run is writing it. Wait for it, or give another --out.") from error

    def _begin(self) -> None:
        """Write the run, or find it in the file. Only now is nobody else writing."""
        data = self.path.read_bytes()
        if data and not self._resume:
            raise UserError(f"{self.path}: exists. Continue it with --resume, or give another --out.")
        if b"\n" in data or not _RUN_STARTS.startswith(data[: len(_RUN_STARTS)]):
            self._continue(data)
            return
        if data:
            self._notify(f"{self.path}: was killed before its first line was whole; it starts again.")
            os.ftruncate(self._file, 0)
        self._write(to_line(self.stored.run))

    def _continue(self, data: bytes) -> None:
        stored = _parse(self.path, data)
        _check_same_run(stored, self.stored.run)
        for notice in stored.notices:
            self._notify(notice)
        os.ftruncate(self._file, stored.whole_bytes)
        self._size = stored.whole_bytes
        self.stored = stored
        if not data[: self._size].endswith(b"\n"):
            self._write(b"\n")

    def _write(self, line: bytes) -> None:
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise UserError(
                f"{self.path}: cannot be written: {error.strerror}. Rows so far are kept; make room and use --resume."
            ) from error
        self._size += len(line)


def _parse(path: Path, data: bytes) -> RunFile:
    lines = data.splitlines(keepends=True)
    torn = len(lines) > 1 and not _is_json(lines[-1])
    whole = lines[:-1] if torn else lines
    killed = "(its run was killed, or still writes) and is left out."
    notices = [f"{path}:{len(lines)}: the last line is torn {killed}"] if torn else []
    run = _run_of(path, whole[0])
    rows = list(_rows_of(path, run, whole))
    if lost := _check_batches(path, rows):
        notices.append(f"{path}:{len(whole) - lost + 1}: the last batch is torn {killed}")
        del rows[-lost:], whole[-lost:]
    return RunFile(path, run, tuple(rows), tuple(notices), sum(map(len, whole)))


def _check_batches(path: Path, rows: Sequence[Row]) -> int:
    """How many rows at the end belong to a batch that is not whole. Raises UserError for such a batch elsewhere."""
    start = 0
    while start < len(rows):
        keys = batch_keys(rows[start])
        found = rows[start : start + len(keys)]
        if tuple(map(row_key, found)) != keys[: len(found)] or not same_batch(found):
            raise UserError(f"{path}:{start + 2}: the rest of its batch does not follow. Restore or remove its lines.")
        if len(found) < len(keys):
            return len(found)
        start += len(keys)
    return 0


def _run_of(path: Path, line: bytes) -> Run:
    record = json.loads(line) if _is_json(line) else None
    if not isinstance(record, dict) or record.get("kind") != "run" or "schema_version" not in record:
        raise UserError(f"{path}:1: is not the start of a benchctl run. Give a file that `benchctl run --out` wrote.")
    version = record["schema_version"]
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UserError(
            f"{path}:1: written by a newer benchctl, schema {version} (this one reads {SCHEMA_VERSION}); upgrade."
        )
    return _valid(RUN, path, 1, line)


def _rows_of(path: Path, run: Run, lines: list[bytes]) -> Iterator[Row]:
    labels, suites = {method.label for method in run.methods}, {suite.name for suite in run.suites}
    line_of: dict[RowKey, int] = {}
    for number, line in enumerate(lines[1:], 2):
        row = _valid(ROW, path, number, line)
        if row.label not in labels or row.suite not in suites:
            raise UserError(f"{path}:{number}: '{row.label}' on '{row.suite}' is not part of the run in line 1.")
        if bool(row.batch) != (run.batch_size > 1) or len(row.batch) > run.batch_size:
            raise UserError(f"{path}:{number}: a batch of {len(row.batch)} in a run of batch size {run.batch_size}.")
        first = line_of.setdefault(row_key(row), number)
        if first != number:
            raise UserError(f"{path}:{number}: the same generation as line {first}. Remove one of the two lines.")
        yield row


def _valid(adapter: TypeAdapter[_Record], path: Path, number: int, line: bytes) -> _Record:
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        raise UserError(
            f"{path}:{number}: {place + ': ' if place else ''}{message}. Restore or remove this line."
        ) from error


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _check_same_run(stored: RunFile, run: Run) -> None:
    for field in _SAME_ON_RESUME:
        old, new = getattr(stored.run, field), getattr(run, field)
        if old != new:
            raise UserError(
                f"{stored.path}: cannot be resumed, {field} differs: {_difference(old, new)}. "
                "Use the settings of its first line, or give another --out."
            )
    for fact in ("cpu", "gpu"):
        if stored.run.machine.get(fact) != run.machine.get(fact):
            raise UserError(f"{stored.path}: was measured on another machine ({fact} differs). Give another --out.")


def _difference(old: Any, new: Any) -> str:
    """What `old` has and `new` has not, by name where it has one: lists of methods and suites are long."""
    if not (isinstance(old, tuple) and isinstance(new, tuple)):
        return f"it has {_short(old)}, this run has {_short(new)}"
    lost, added = ([item for item in one if item not in other] for one, other in ((old, new), (new, old)))
    if not (lost or added):
        return "it has them in another order"
    return f"it has {_names(lost)}, this run has {_names(added)} instead"


def _names(items: list[Any]) -> str:
    return ", ".join(map(_short, items)) or "nothing"


def _short(value: Any) -> str:
    if isinstance(value, SuiteInfo):
        return f"{value.name} ({value.prompts} prompts, {value.source} from {value.origin}, {value.sha256[:8]})"
    if isinstance(value, ModelInfo):
        return f"{value.name} (weights {value.weights_sha256[:8]})"
    modules = getattr(value, "modules_sha256", "")
    return str(getattr(value, "label", value)) + (f" (modules {modules[:8]})" if modules else "")
