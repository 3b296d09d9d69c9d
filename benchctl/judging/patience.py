"""Waiting between tries: longer after each failure, by chance a little less, and as long as a server asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from benchctl.errors import UserError
from benchctl.judging.judge import TryAgain

_SLICE_S = 0.5  # so that whoever waits sees soon that all is to stop
_Found = TypeVar("_Found")


class Timer(Protocol):
    """Seconds since an arbitrary moment, and sleep until one of them."""

    def now_s(self) -> float: ...
    def wait_until(self, moment_s: float) -> None: ...


class Stopped(Exception):
    """All is to stop; nothing was sent."""


@dataclass(frozen=True)
class BackOff:
    """How often a request is sent at most before its judging is given up, and how long to wait in between. While none
    has come to a server, `unreached_tries` are enough: an outage passes, a wrong address does not."""

    tries: int = 8
    unreached_tries: int = 3
    first_s: float = 1.0
    longest_s: float = 60.0
    longest_asked_s: float = 900.0


class Patience:
    """Lets requests wait. A wait that a server asks for is everybody's: it is about the key, not the request.

    `chance` gives numbers from 0 to 1, so that requests that failed together do not come back together.
    """

    def __init__(self, timer: Timer, chance: Callable[[], float], back_off: BackOff) -> None:
        self._timer, self._chance, self.back_off = timer, chance, back_off
        self._open_s = float("-inf")
        self._reached = False
        self._lock = threading.Lock()
        self.stop = threading.Event()

    def turn(self) -> None:
        """Return when requests may be sent. Raises Stopped when none may any more."""
        self._until(lambda: self._open_s)

    def pause(self, seconds: float) -> None:
        """Wait so long. Raises Stopped."""
        until_s = self._timer.now_s() + seconds
        self._until(lambda: until_s)

    def insist(self, send: Callable[[], _Found]) -> _Found:
        """What `send` gives, called again after each TryAgain that it raises. Raises what `after` does."""
        failures = 0
        while True:
            self.turn()
            try:
                found = send()
            except TryAgain as failure:
                failures += 1
                self.after(failure, failures)
            else:
                self._reached = True
                return found

    def after(self, failure: TryAgain, failures: int) -> None:
        """Wait after the failure of a request that failed `failures` times by now.

        Raises UserError where it failed too often, or the server asks for a longer wait than anybody would sit through,
        and Stopped.
        """
        kept = "What is judged is kept: judge again to go on."
        self._reached = self._reached or not failure.unreached
        if not self._reached and failures >= self.back_off.unreached_tries:
            raise UserError(
                f"no server of the judge can be reached: {failure.reason}. See that it runs, and that --base-url and "
                "the network are right."
            )
        if failures >= self.back_off.tries:
            raise UserError(f"the judge gave no reply in {failures} tries: {failure.reason}. {kept}")
        asked_s = failure.retry_after_s
        if asked_s is not None and asked_s > self.back_off.longest_asked_s:
            raise UserError(f"the judge asks to wait for {asked_s:.0f} s: {failure.reason}. {kept}")
        now_s = self._timer.now_s()
        if asked_s is not None:
            with self._lock:
                self._open_s = max(self._open_s, now_s + asked_s)
            # Never earlier than asked, and not all at the same moment.
            until_s = now_s + asked_s + self._chance() * self.back_off.first_s
        else:
            longest_s = min(self.back_off.longest_s, self.back_off.first_s * 2.0 ** (failures - 1))
            until_s = now_s + longest_s * (0.5 + self._chance() / 2)
        self._until(lambda: until_s)

    def _until(self, moment_s: Callable[[], float]) -> None:
        while not self.stop.is_set():
            now_s = self._timer.now_s()
            if now_s >= moment_s():
                return
            self._timer.wait_until(min(moment_s(), now_s + _SLICE_S))
        raise Stopped
