"""A server as a process group of its own, which ends with this process however that ends (guard.py)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which

from benchctl.errors import UserError
from benchctl.serving import guard

_SHOWN_LINES = 5  # of the log, in an error
_STOP_S = 10.0


class ServerProcess:
    """Runs while it is not stopped. What the server prints goes into a log, whose end errors show."""

    def __init__(self, command: Sequence[str]) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="benchctl-engine-", suffix=".log")  # noqa: SIM115 until stop
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(guard.__file__), *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal goes to this process alone, which then stops the server
        )
        self._ticks = os.sysconf("SC_CLK_TCK")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ended_within(self, seconds: float) -> bool:
        """Whether it ends in this time: the guard needs a moment after the server."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return not self.is_alive

    def last_words(self) -> str:
        """The end of the log."""
        lines = Path(self._log.name).read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(line.strip() for line in lines[-_SHOWN_LINES:]) or "it printed nothing"

    def cpu_s(self) -> float:
        """Processor time so far of all processes of the group, without those that have ended."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                # pid (name) state parent group ...; the name may contain spaces. Fields 14 and 15 are the times.
                fields = stat.read_bytes().rpartition(b")")[2].split()
                if int(fields[2]) == self._process.pid:
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / self._ticks

    def stop(self) -> None:
        """End the whole group: ask first, then kill."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what a killed guard left
        self._process.wait()
        self._log.close()


def check_program(name: str) -> None:
    """Raises UserError for a program that is not there."""
    if which(name) is None:
        raise UserError(
            "engine_not_found",
            f"{name}: no such program. Install the engine, put it on PATH, or name it with the option `server`.",
        )


def free_port() -> int:
    """A port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
