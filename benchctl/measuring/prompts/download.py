"""Fetching one small file over https without ever making a machine that is offline wait twice."""

import queue
import threading
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

FIRST_ANSWER_S = 5.0
CONTENT_S = 30.0
SIZE_LIMIT_BYTES = 4 * 1024 * 1024

Opener = Callable[[str, float], IO[bytes]]
_Answer = bytes | OSError | HTTPException | ValueError


class UnreachableError(Exception):
    """The address gave nothing; the message says why."""


class HttpsOnly(HTTPRedirectHandler):
    """Follows a redirection to https and refuses any other."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if not newurl.lower().startswith("https://"):
            raise URLError(f"it redirects to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_https(address: str, timeout_s: float) -> IO[bytes]:
    """The open answer of an https address. Raises OSError or HTTPException, and ValueError for any other scheme."""
    if not address.startswith("https://"):
        raise ValueError(f"{address} is not an https address")
    answer: IO[bytes] = build_opener(HttpsOnly).open(address, timeout=timeout_s)
    return answer


class Downloader:
    """Fetches files; once the network gave no answer, `offline` says why, and from then on it fails at once."""

    def __init__(
        self, opener: Opener = open_https, first_answer_s: float = FIRST_ANSWER_S, content_s: float = CONTENT_S
    ) -> None:
        self._opener = opener
        self._first_answer_s = first_answer_s
        self._content_s = content_s
        self.offline = ""

    def fetch(self, address: str) -> bytes:
        """The content, cut at SIZE_LIMIT_BYTES (the caller's checksum finds the cut). Raises UnreachableError."""
        if self.offline:
            raise UnreachableError(self.offline)
        answers: queue.Queue[_Answer] = queue.Queue()
        # A thread, because a socket's timeout bounds neither the look-up of the name nor the sum of all tries;
        # a daemon, so that one stuck there does not hold up the end of the program.
        worker = threading.Thread(target=self._answer, args=(address, answers), daemon=True)
        worker.start()
        self._next(answers, self._first_answer_s)
        return self._next(answers, self._content_s)

    def _answer(self, address: str, answers: "queue.Queue[_Answer]") -> None:
        try:
            with self._opener(address, self._first_answer_s) as answer:
                answers.put(b"")
                answers.put(answer.read(SIZE_LIMIT_BYTES))
        except (OSError, HTTPException, ValueError) as error:
            answers.put(error)

    def _next(self, answers: "queue.Queue[_Answer]", wait_s: float) -> bytes:
        try:
            answer = answers.get(timeout=wait_s)
        except queue.Empty:
            self.offline = f"no answer within {wait_s:g} s"
            raise UnreachableError(self.offline) from None
        if isinstance(answer, HTTPError):
            answer.close()
            raise UnreachableError(f"HTTP {answer.code} {answer.reason}")
        if isinstance(answer, Exception):
            self.offline = _reason(answer)
            raise UnreachableError(self.offline)
        return answer


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(error).__name__
