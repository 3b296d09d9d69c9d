"""Files of records: read, and appended to so that a kill at any moment costs only the generation in flight."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchctl.errors import InvalidData, UserError
from benchctl.locks import try_lock
from benchctl.records.reader import StoredRows, index, is_json, run_of, torn_batch, with_current_labels
from benchctl.records.schema import MethodInfo, ModelInfo, Row, Run, SuiteInfo, to_line

_SAME_ON_RESUME = (
    *("weights", "target", "draft", "baseline", "methods", "suites", "dtype", "device", "executor", "attention"),
    *("threads", "temperature", "top_p", "top_k", "seed", "max_new_tokens", "repeats", "batch_size", "modes"),
    *("context_fill", "order"),
)


def check_same_run(path: Path, stored: Run, run: Run) -> None:
    """Raises UserError, naming the setting, unless `run` may go on in `path`, whose first line is `stored`."""
    for name, old in {"commit": stored.commit, **stored.versions}.items():
        new = {"commit": run.commit, **run.versions}.get(name, "")
        if old and new and old != new:
            raise UserError(
                "other_versions",
                f"{path}: cannot be resumed: {name} was {old} and is {new} now. "
                f"Go back to {old}, or give another --out.",
            )
    for field in ("target", "draft"):  # in files of earlier versions stop tokens are not known
        old, new = getattr(stored, field), getattr(run, field)
        if old and new and not old.stop_ids:
            stored = replace(stored, **{field: replace(old, stop_ids=new.stop_ids)})
    for field in _SAME_ON_RESUME:
        old, new = getattr(stored, field), getattr(run, field)
        if old != new:
            raise UserError(
                "other_settings",
                f"{path}: cannot be resumed, {field} differs: {_difference(old, new)}. Use the settings of its first "
                "line, or give another --out.",
            )
    for fact in ("cpu", "gpu"):
        if stored.machine.get(fact) != run.machine.get(fact):
            raise UserError(
                "other_machine", f"{path}: was measured on another machine ({fact} differs). Give another --out."
            )


def _difference(old: Any, new: Any) -> str:
    """What `old` has and `new` has not, by name where it has one: lists of methods and suites are long."""
    if isinstance(old, ModelInfo) and isinstance(new, ModelInfo) and _short(old) == _short(new):
        return ", ".join(each.name for each in fields(old) if getattr(old, each.name) != getattr(new, each.name))
    if not (isinstance(old, tuple) and isinstance(new, tuple)):
        return f"it has {_short(old)}, this run has {_short(new)}"
    for one, other in zip(old, new, strict=False):
        if isinstance(one, MethodInfo) and one != other and one.label == other.label:
            names = ", ".join(
                each.name
                for each in fields(one)
                if each.compare and getattr(one, each.name) != getattr(other, each.name)
            )
            return f"{one.label} differs in {names}"
    lost, added = ([_short(item) for item in one if item not in other] for one, other in ((old, new), (new, old)))
    if not (lost or added):
        return "it has them in another order"
    return f"it has {', '.join(lost) or 'nothing'}, this run has {', '.join(added) or 'nothing'} instead"


def _short(value: Any) -> str:
    if isinstance(value, SuiteInfo):
        return f"{value.name} ({value.prompts} prompts, {value.source} from {value.origin}, {value.sha256[:8]})"
    if isinstance(value, ModelInfo):
        return f"{value.name} (weights {value.weights_sha256[:8]})"
    modules = getattr(value, "modules_sha256", "")
    return str(getattr(value, "label", value)) + (f" (modules {modules[:8]})" if modules else "")


_RUN_STARTS = b'{"kind":"run"'


@dataclass(frozen=True)
class RunFile:
    """A results file as read. `whole_bytes` is its length up to the last whole line; `notices` are for the user."""

    path: Path
    run: Run
    rows: Sequence[Row] = ()
    notices: tuple[str, ...] = ()
    whole_bytes: int = 0


def read(path: Path | str) -> RunFile:
    """The run and rows of a results file; a torn last line or batch, left by a killed run, is dropped with a notice.

    Raises UserError for a file that cannot be read, and InvalidData, with file and line, for one that is empty, not of
    benchctl, of a newer version, broken elsewhere than where a kill tore it (a line that ends in a newline was written
    whole), or whose rows cannot be true (see Row) or occur twice.
    """
    file = scan(path)
    return replace(file, rows=tuple(file.rows))


def scan(path: Path | str) -> RunFile:
    """The same for a file of any size: its rows stay where they are, and are made and checked as they are gone through.

    So they can be large in sum, and what `read` raises for rows is raised there.
    """
    path = Path(path)
    try:
        starts = index(path)
        with path.open("rb") as file:
            first = file.readline()
            blank = not first.strip() and not any(line.strip() for line in file)
            file.seek(starts[-2] if first else 0)
            last = file.read()
    except OSError as error:
        raise UserError("cannot_read", f"{path}: cannot be read: {error.strerror}.") from error
    if blank:
        raise InvalidData("empty_file", f"{path}: is empty. Give a file that `benchctl run --out` wrote.")
    notices: list[str] = []
    lines = len(starts) - 1
    if lines > 1 and not last.endswith(b"\n") and not is_json(last):
        notices.append(_torn(path, lines, "line"))
        starts.pop()
    run = with_current_labels(run_of(path, first))
    rows = StoredRows(path, run, starts[1:])
    if rows and run.batch_size > 1 and (lost := torn_batch(rows)):
        notices.append(_torn(path, len(starts) - lost, "batch"))
        del starts[-lost:]
        rows = StoredRows(path, run, starts[1:])
    return RunFile(path, run, rows, tuple(notices), starts[-1])


def _torn(path: Path, line: int, what: str) -> str:
    return f"{path}:{line}: the last {what} is torn (its run was killed, or still writes) and is left out."


def check_output(path: Path | str, *, resume: bool = False) -> None:
    """Whether a run may write `path`, asked before anything slow is done.

    Raises UserError if the file exists and is not to be resumed, or if it or its folder cannot be written.
    """
    path = Path(path)
    check_writable(path)
    if path.exists() and path.stat().st_size and not resume:
        raise UserError("file_exists", f"{path}: exists. Continue it with --resume, or give another --out.")


def check_writable(path: Path) -> None:
    """Raises UserError unless `path` is an ordinary file that may be written, or may become one."""
    try:
        if path.exists() and not path.is_file():
            raise UserError("cannot_write", f"{path}: is not an ordinary file. Give --out the name of one.")
        writable = path if path.exists() else next(folder for folder in path.absolute().parents if folder.exists())
    except OSError as error:
        raise UserError("cannot_write", f"{path}: cannot be opened: {error.strerror}. Give another --out.") from error
    if not os.access(writable, os.W_OK) or (writable != path and not writable.is_dir()):
        raise UserError(
            "cannot_write", f"{path}: {writable} cannot be written. Give another --out, or change its rights."
        )


class LineFile:
    """Appends lines to a file, and keeps it locked while it is entered. For the errors, `writer` names the program that
    writes such files, `instead` is the advice while another process has the lock, and `full` that for a full disk.

    Entering raises UserError if the file is being written or cannot be, and as `begin` does.
    """

    def __init__(self, path: Path, *, writer: str, instead: str, full: str) -> None:
        self.path, self._writer, self._instead, self._full = path, writer, instead, full

    def begin(self) -> None:
        """What a subclass does before the first line is appended; no other process writes by then."""

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            problem = f"{self.path}: cannot be written: {error.strerror}. {self._instead}"
            raise UserError("cannot_write", problem) from error
        try:
            self._lock()
            self._size = os.fstat(self._file).st_size
            self.begin()
        except BaseException:
            os.close(self._file)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)

    def _lock(self) -> None:
        if not try_lock(self._file):
            wait = f"Wait for it, or {self._instead[0].lower()}{self._instead[1:]}"
            raise UserError("file_in_use", f"{self.path}: another {self._writer} is writing it. {wait}")

    def cut(self, size: int) -> None:
        """Keep the first `size` bytes, the last of which ends a line: a line that lacks only its end is given it."""
        os.ftruncate(self._file, size)
        self._size = size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self.append_lines(b"\n")

    def append_lines(self, lines: bytes) -> None:
        """Hand whole lines to the system at once. Raises UserError, the file as it was, if the disk refuses them."""
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            problem = f"{self.path}: cannot be written: {error.strerror}. {self._full}"
            raise UserError("cannot_write", problem) from error
        self._size += len(lines)


class Writer(LineFile):
    """Appends rows to a results file, and keeps the file locked while it is entered.

    With `resume` an existing file is continued: a torn last line is cut off, with a notice, and `stored` contains
    the rows that are done. Entering raises UserError if the file is another run's, is being written, or cannot be.

        with Writer(path, run, resume=True) as writer:
            done = writer.stored.rows
            writer.append(row)
    """

    def __init__(
        self, path: Path | str, run: Run, *, resume: bool = False, notify: Callable[[str], None] = lambda notice: None
    ) -> None:
        full = "Rows so far are kept; make room and use --resume."
        super().__init__(Path(path), writer="run", instead="Give another --out.", full=full)
        self.stored = RunFile(self.path, run)
        self._resume = resume
        self._notify = notify

    def __enter__(self) -> Self:
        check_output(self.path, resume=self._resume)
        return super().__enter__()

    def append(self, *rows: Row) -> None:
        """Hand the rows of a batch, or one row, to the system at once. Raises as `append_lines` does."""
        self.append_lines(b"".join(map(to_line, rows)))

    def begin(self) -> None:
        """Write the run, or find it in the file."""
        with self.path.open("rb") as file:
            first = file.readline()
        if first and not self._resume:
            check_output(self.path)
        if first.endswith(b"\n") or not _RUN_STARTS.startswith(first[: len(_RUN_STARTS)]):
            check_same_run(self.path, run_of(self.path, first), self.stored.run)
            self.stored = read(self.path)
            for notice in self.stored.notices:
                self._notify(notice)
            self.cut(self.stored.whole_bytes)
            return
        if first:
            self._notify(f"{self.path}: was killed before its first line was whole; it starts again.")
            self.cut(0)
        self.append_lines(to_line(self.stored.run))
