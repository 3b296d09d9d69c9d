"""A function at work in a process of its own, while this one goes on."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Generic, TypeVar

_Answer = TypeVar("_Answer")

# It takes its work before it imports anything large, so that whoever hands that over need not wait. What is printed
# meanwhile, as by a library that warns when it is imported, goes with the complaints: the answer stands alone.
_PROGRAM = """
import os, pickle, sys
told = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
path, work = pickle.load(sys.stdin.buffer)
sys.path[:] = path
function, arguments = pickle.loads(work)
answer = pickle.dumps(function(*arguments), protocol=-1)
told.write(answer)
told.close()
"""


class Aside(Generic[_Answer]):
    """Calls `function`, which a fresh process must be able to import, with `arguments`, as soon as it is entered.

    That is no copy of this process, whose libraries may have threads. It is silent, and ends with the context: an
    interrupt is this process's to answer.

        with Aside(parse, second_half) as aside:
            first = parse(first_half)
            second = aside.answer()
    """

    def __init__(self, function: Callable[..., _Answer], *arguments: object) -> None:
        work = pickle.dumps((function, arguments), protocol=-1)
        self._work = pickle.dumps((sys.path, work), protocol=-1)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Aside[_Answer]":
        command = [sys.executable, "-P", "-c", _PROGRAM]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        with suppress(OSError):
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, start_new_session=True)
            assert self._process.stdin
            with self._process.stdin as work:
                work.write(self._work)
        return self

    def answer(self) -> _Answer | None:
        """What the function returned; None where that is lost, with its process or on the way."""
        if self._process is None or self._process.stdout is None:
            return None
        told = self._process.stdout.read()
        if self._process.wait():
            return None
        found: _Answer = pickle.loads(told)
        return found

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.kill()
            self._process.stdout.close()
            self._process.wait()
