"""A file that whole lines are appended to, by one writer at a time, so that a kill costs only the line in flight."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from benchctl.errors import UserError


class LineFile:
    """Holds a file for itself while it is open. `writer` says who writes such files, for whom another one is told to
    wait, `instead` what else can be done, and `full` what to do once the disk refuses a line.

    Raises UserError, on opening, if the file is being written or cannot be.
    """

    def __init__(self, path: Path, *, writer: str, instead: str, full: str) -> None:
        self._path, self._full = path, full
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}. {instead}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            other = instead[0].lower() + instead[1:]
            raise UserError(f"{path}: another {writer} is writing it. Wait for it, or {other}") from error
        self._size = os.fstat(self._file).st_size

    def close(self) -> None:
        os.close(self._file)

    def cut(self, size: int) -> None:
        """Keep the first `size` bytes, the last of which ends a line: a line that lacks only its end is given it."""
        os.ftruncate(self._file, size)
        self._size = size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self.append(b"\n")

    def append(self, lines: bytes) -> None:
        """Hand whole lines to the system at once. Raises UserError, the file as it was, if the disk refuses them."""
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise UserError(f"{self._path}: cannot be written: {error.strerror}. {self._full}") from error
        self._size += len(lines)
