"""The one HTTP client of engines: JSON in, and JSON or a stream of events out, each event with the time it came."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from benchctl.errors import UserError

KEY = "BENCHCTL_ENGINE_KEY"  # the environment variable with the key of a server that asks for one
_QUICK_S = 10.0  # for a request that needs no model
_SHOWN = 200  # characters of a refusal


@dataclass(frozen=True)
class Event:
    """One event of a stream, `at_s` seconds after the request was sent."""

    at_s: float
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Client:
    """A server at `base_url`, such as http://127.0.0.1:8000. Raises UserError for an address that is none."""

    base_url: str

    def __post_init__(self) -> None:
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query or url.fragment:
            raise UserError(
                "bad_base_url",
                f"'{self.base_url}' is not the address of a server. Write http://HOST:PORT; put a key into the "
                f"environment variable {KEY}.",
            )

    @property
    def is_local(self) -> bool:
        """Whether what is sent stays on this machine."""
        host = urlsplit(self.base_url).hostname or ""
        try:
            return host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def is_there(self) -> bool:
        """Whether anything takes a connection at this address."""
        try:
            self._connect(_QUICK_S).close()
        except OSError:
            return False
        return True

    def get(self, path: str) -> Any:
        """The JSON of a page; None where the server has no such page, or is not there."""
        try:
            connection = self._connect(_QUICK_S)
            try:
                connection.request("GET", self._path(path), headers=_headers())
                response = connection.getresponse()
                body = response.read()
            finally:
                connection.close()
            return (json.loads(body) if body.strip() else {}) if response.status == 200 else None
        except (OSError, HTTPException, ValueError):
            return None

    def post(self, path: str) -> bool:
        """Whether the server did what the path names."""
        try:
            connection = self._connect(_QUICK_S)
            try:
                connection.request("POST", self._path(path), headers=_headers())
                return connection.getresponse().status == 200
            finally:
                connection.close()
        except (OSError, HTTPException):
            return False

    def stream(self, path: str, body: Mapping[str, Any], clock: Callable[[], float], limit_s: float) -> list[Event]:
        """The events of an answer, all of them within `limit_s`; the clock starts before the request is written.

        Raises UserError: engine_refused, engine_too_slow, engine_gone.
        """
        payload = json.dumps(body).encode()
        lines: list[tuple[float, bytes]] = []  # parsed at the end, so that marks do not wait for it
        try:
            connection = self._connect(limit_s)
            transport = connection.sock
            try:
                started_s = clock()
                connection.request("POST", self._path(path), payload, _headers())
                response = connection.getresponse()
                if response.status != 200:
                    text = _without_key(response.read(_SHOWN).decode(errors="replace"))
                    raise UserError("engine_refused", f"{self.base_url} answered {response.status}: {text}")
                while (left_s := started_s + limit_s - clock()) > 0:
                    transport.settimeout(left_s)
                    line = response.readline()
                    if not line:
                        return [Event(at_s, _json(data)) for at_s, data in lines]
                    if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                        lines.append((clock() - started_s, data))
            finally:
                connection.close()
        except TimeoutError:
            pass
        except (OSError, HTTPException) as error:
            raise UserError("engine_gone", f"{self.base_url} ended the connection ({error!r}).") from error
        raise UserError(
            "engine_too_slow",
            f"{self.base_url} did not finish an answer in {limit_s:g} s. Allow more seconds with `limit_s`.",
        )

    def _connect(self, limit_s: float) -> HTTPConnection:
        url = urlsplit(self.base_url)
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=limit_s)
        connection.connect()
        return connection

    def _path(self, path: str) -> str:
        return urlsplit(self.base_url).path.rstrip("/") + path


def _headers() -> dict[str, str]:
    key = os.environ.get(KEY)
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})


def _without_key(text: str) -> str:
    """Messages end up in results files."""
    key = os.environ.get(KEY)
    return text.replace(key, "...") if key else text


def _json(data: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise UserError("engine_not_understood", f"the engine sent an event that is not a JSON object: {data[:80]!r}")
    return event
