"""Runs a server and ends it with the process that started this one: `python guard.py COMMAND ...`.

Standard input is a pipe whose other end the parent holds. However the parent ends, the system closes the pipe. Then,
and when the server ends, the whole process group, which this process leads, is killed. A file of its own without
imports of benchctl: it starts fast.
"""

import os
import signal
import subprocess
import sys
import threading

_PATIENCE_S = 5.0  # between asking a server to end and killing it


def _end_with_the_parent() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGTERM)
    threading.Event().wait(_PATIENCE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    # A handler, unlike an ignored signal, is not inherited by the server.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    code = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
    print(f"the server ended with exit code {code}", flush=True)  # noqa: T201 into the log
    os.killpg(0, signal.SIGKILL)
