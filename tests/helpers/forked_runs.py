"""Runs without a model in processes of their own: the process is real, and so are file, lock and signals.

A server that imports no torch forks them, so that each starts in milliseconds. It is `serve` in a process of its own;
it takes requests on stdin.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from fakes_sessions import Met, measure

from benchctl.measuring.plan import Plan, Task
from benchctl.measuring.session import Notice, Progress

TIMEOUT_S = 60
_GENERATION_S = 0.01  # so that kills fall between and in generations, also on a busy machine


@dataclass(frozen=True)
class Request:
    """A run to fork. The run appends a line to `log` for each generation that is in its file, and then its error, if
    there is one. `most_file_bytes` is a limit of the system, for a disk that is full. After `halts_at` generations it
    halts until the test lets it go on."""

    plan: Plan
    out: Path
    log: Path
    resume: bool = True
    most_file_bytes: int = 0
    halts_at: int = 0


@dataclass
class ForkedRun:
    """A run that was started; `ended` is its exit status as of os.waitpid, once it has one."""

    pid: int
    log: Path
    _ask: Callable[[object], Any]
    ended: int | None = field(default=None, init=False)

    @property
    def is_running(self) -> bool:
        """Whether it still works. One that has ended is only then no zombie: its lock on the file is gone."""
        if self.ended is None:
            self.ended = self._ask((self.pid, False))
        return self.ended is None

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    @contextmanager
    def halted(self) -> Iterator[None]:
        """From when it halts, which its request asks for, until the end of the block."""
        stat = Path(f"/proc/{self.pid}/stat")
        while self.is_running and stat.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def wait(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        if self.ended is None:
            self.ended = self._ask((self.pid, True))
        assert self.ended is not None
        return os.waitstatus_to_exitcode(self.ended)

    @property
    def done(self) -> int:
        """Generations of the plan that are in its file, according to its log."""
        lines = [line for line in self._lines() if line.isdigit()]
        return int(lines[-1]) if lines else 0

    @property
    def error(self) -> str:
        """What it ended with: the class and message of its exception."""
        return "".join(line for line in self._lines() if not line.isdigit())

    def _lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


class RunServer:
    """Forks runs for as long as it is entered; none of them lives on after that."""

    def __init__(self) -> None:
        self._started: list[ForkedRun] = []

    def __enter__(self) -> RunServer:
        command = [sys.executable, "-c", "import forked_runs; forked_runs.serve()"]
        here = Path(__file__).parent
        self._server = subprocess.Popen(command, cwd=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for started in self._started:
            if started.is_running:
                started.kill()
        self._server.communicate(timeout=TIMEOUT_S)

    def start(self, request: Request) -> ForkedRun:
        request.log.unlink(missing_ok=True)
        self._started.append(ForkedRun(self._ask(request), request.log, self._ask))
        return self._started[-1]

    def _ask(self, request: object) -> Any:
        assert self._server.stdin is not None and self._server.stdout is not None
        pickle.dump(request, self._server.stdin)
        self._server.stdin.flush()
        return pickle.load(self._server.stdout)


def serve() -> None:
    """Answer each request on stdin until it ends: see RunServer."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_start(request) if isinstance(request, Request) else _status(*request), answers)
        answers.flush()


def _start(request: Request) -> int:
    """The id of the process that a run became."""
    process = os.fork()
    if process == 0:
        os._exit(_run(request))
    return process


def _status(process: int, until_it_ends: bool) -> int | None:
    """As of os.waitpid; None while it works."""
    ended, status = os.waitpid(process, 0 if until_it_ends else os.WNOHANG)
    return status if ended else None


def _run(request: Request) -> int:
    log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(event: Notice | Progress) -> None:
        if isinstance(event, Progress):
            os.write(log, b"%d\n" % event.done)
            if event.done == request.halts_at:
                os.kill(os.getpid(), signal.SIGSTOP)

    try:
        if request.most_file_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (request.most_file_bytes, resource.RLIM_INFINITY))
        measure(request.out, request.plan, _take_time, None, write, resume=request.resume)
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        os.write(log, traceback.format_exception_only(error)[-1].encode())
        return 1
    return 0


def _take_time(task: Task) -> Met:
    time.sleep(_GENERATION_S)
    return Met({})
