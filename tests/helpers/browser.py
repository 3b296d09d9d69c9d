"""A headless Chromium spoken to through its debugging pipe: no driver, no library, no network."""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE_S = 60.0
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-extensions"),
)
# Chromium reads from descriptor 3 and writes to 4, so the ends of the pipes are moved there.
_WITH_PIPES = """
import os, sys
ends = [os.dup(int(end)) for end in sys.argv[1:3]]
for end, place in zip(ends, (3, 4)):
    os.dup2(end, place)
    os.set_inheritable(place, True)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """A page of the browser. `complaints` are its errors and warnings so far, `requests` the addresses it asked for."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._sent = 0
        self._session = ""
        self._seen: set[str] = set()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, file: Path) -> None:
        """Load a file and wait until it and its scripts are done."""
        self._seen.discard("Page.loadEventFired")
        self._call("Page.navigate", url=file.resolve().as_uri())
        end = monotonic() + PATIENCE_S
        while "Page.loadEventFired" not in self._seen and monotonic() < end:
            self._take(self._read(end))

    def run(self, script: str) -> Any:
        """The value of an expression in the page. Raises AssertionError where it throws."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key, such as Tab (9) or Enter (13)."""
        text = "\r" if key == "Enter" else ""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def size(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def _call(self, method: str, **params: object) -> dict[str, Any]:
        self._sent += 1
        message: dict[str, object] = {"id": self._sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = monotonic() + PATIENCE_S
        while True:
            answer = self._read(end)
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._take(answer)

    def _read(self, end: float) -> dict[str, Any]:
        """The next message. Raises TimeoutError."""
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], max(0.0, end - monotonic()))[0]:
                raise TimeoutError("the browser is silent")
            self._buffer += (part := os.read(self._from, 1 << 20))
            if not part:
                raise TimeoutError("the browser has gone")
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def _take(self, event: dict[str, Any]) -> None:
        name, params = event.get("method", ""), event.get("params", {})
        self._seen.add(name)
        if name == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str(params["args"]))
        elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@contextmanager
def browser() -> Iterator[Page]:
    """A fresh browser that forgets everything. Call only where PROGRAM is one."""
    assert PROGRAM
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        command = [PROGRAM, *_FLAGS, f"--user-data-dir={home}", "--remote-debugging-pipe"]
        process = subprocess.Popen(
            [sys.executable, "-c", _WITH_PIPES, str(in_read), str(out_write), *command],
            pass_fds=(in_read, out_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(in_read)
        os.close(out_write)
        try:
            yield Page(in_write, out_read)
        finally:
            os.close(in_write)
            os.close(out_read)
            process.terminate()
            process.wait(PATIENCE_S)
