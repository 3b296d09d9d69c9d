"""One run at a time: what a run writes to belongs to it until it ends, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import IO


def locked(path: Path, busy: Callable[[], None]) -> IO[str]:
    """The open file `path`; until it is closed no other process gets it from here. The system closes it for the killed.

    `busy` is called where another process has it; if that returns, this waits until the file is free.
    """
    file = path.open("a")
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: nobody can be told apart there
            pass
    except BaseException:
        file.close()
        raise
    return file
