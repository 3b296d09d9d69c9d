"""Engines that are servers: one that is started here, or one that is running."""

from __future__ import annotations

import re
import threading
from abc import abstractmethod
from copy import copy
from pathlib import Path

from benchctl.errors import UserError
from benchctl.records.schema import EngineInfo
from benchctl.serving.client import Client
from benchctl.serving.dialects import Dialect
from benchctl.serving.engine import Answer, Deployment, Engine, Question
from benchctl.serving.process import ServerProcess, check_program, free_port

_POLL_S = 0.1
_END_S = 2.0  # between the end of a connection and that of the server
_PROBE, _PROBE_TEXT = (0, 1), "1, 2,"
_FOLDERS = re.compile(r"""(^|["'=])/[^"'\s]*/""")  # of an absolute path in an argument


class Served(Engine):
    """An engine that is asked over HTTP. The dataclass has an option ``limit_s``: what a start and an answer may take.

    dialect  how its servers are spoken to
    """

    dialect: Dialect
    limit_s: float
    _client: Client | None = None
    _process: ServerProcess | None = None

    def answer(self, question: Question) -> Answer:
        """After an answer that did not end, the engine is stopped: it would make all others wait."""
        if self._client is None or not self._is_alive:
            raise self._died()
        body = self.dialect.body(self._client, question)
        try:
            events = self._client.stream(self.dialect.path, body, question.clock, self.limit_s)
            return self.dialect.read(events)
        except UserError as error:
            if error.id in ("engine_gone", "answer_cut") and self._has_ended:
                raise self._died() from error
            if error.id == "engine_too_slow":
                self.stop()
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                "engine_not_understood",
                f"the engine's events are not those of a known version ({type(error).__name__}: {error}).",
            ) from error

    def stop(self) -> None:
        process, self._process, self._client = self._process, None, None
        if process is not None:
            process.stop()

    def cpu_s(self) -> float:
        return self._process.cpu_s() if self._process is not None else 0.0

    @property
    def _is_alive(self) -> bool:
        return self._process is None or self._process.is_alive

    @property
    def _has_ended(self) -> bool:
        return self._process is not None and self._process.ended_within(_END_S)

    def _died(self) -> UserError:
        words = f": {self._process.last_words()}" if self._process is not None else ""
        return UserError("engine_died", f"the engine is not running any more{words}.")

    def check_weights(self, deployment: Deployment, client: Client) -> None:
        """Raises UserError where the run asks for float16 weights, and the server says that it has others."""
        if deployment.weights == "F16" and self.dialect.dtype(client) == "float32":
            raise UserError(
                "other_weights",
                "--weights float16 was asked for, but the engine's file has float32 weights. Leave the option out, or "
                "give a file with float16 weights.",
            )

    def probe(self, deployment: Deployment) -> Answer:
        """A short answer, which shows that the engine takes ids and returns ids. Raises UserError where it does not."""
        return self.answer(Question(_PROBE, len(_PROBE), (), deployment.clock, _PROBE_TEXT))


class Started(Served):
    """A server that benchctl starts on a free port of the loopback, and ends.

    The dataclass has an option ``server``: the program. ``takes_threads`` says whether the command sets the number of
    CPU threads; otherwise that is unknown.
    """

    takes_threads: bool = False
    server: str

    def check(self, target: str) -> None:
        check_program(self.server)

    def recorded(self) -> Started:
        other = copy(self)
        other.server = Path(self.server).name
        return other

    @abstractmethod
    def command(self, deployment: Deployment, port: int) -> list[str]:
        """The program and its arguments. Raises UserError for a target that the engine cannot read."""

    def start(self, deployment: Deployment) -> EngineInfo:
        port = free_port()
        command = self.command(deployment, port)
        self._process, client = ServerProcess(command), Client(f"http://127.0.0.1:{port}")
        deadline_s = deployment.clock() + self.limit_s
        while client.get("/health") is None:
            if not self._process.is_alive:
                problem = self._died()
            elif deployment.clock() > deadline_s:
                words = self._process.last_words()
                problem = UserError(
                    "engine_start_too_slow",
                    f"{command[0]} was not ready after {self.limit_s:g} s: {words}. Allow more seconds with `limit_s`.",
                )
            else:
                threading.Event().wait(_POLL_S)
                continue
            self.stop()
            raise problem
        self._client = client
        try:
            self.check_weights(deployment, client)
            self.probe(deployment)
            return EngineInfo(
                name=self.dialect.name,
                version=self.dialect.version(client) or "",
                run="started",
                command=tuple("0" if part == str(port) else _FOLDERS.sub(r"\1", part) for part in command),
                dtype=self._dtype(deployment, client),
                threads=deployment.threads if self.takes_threads else 0,
                prefix_cache="off",
                steps_from="chunks" if self.dialect.shows_steps else "counts",
            )
        except BaseException:
            self.stop()
            raise

    def _dtype(self, deployment: Deployment, client: Client) -> str:
        """What was asked for; where that is the default, what the server says it computes in, if it says so."""
        return (deployment.dtype == "float32" and self.dialect.dtype(client)) or deployment.dtype
