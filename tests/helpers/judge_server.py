"""A server that speaks OpenAI's protocol over real HTTP: it replies as it is told, goes wrong as it is told, and keeps
account of what it was asked and what it would have billed.

    with JudgeServer(plan) as server:
        ... --base-url {server.url}

A plan takes what was asked and gives what to do about it: Says, Fails, Sends, Drips, Hangs or Cuts. Whatever
made a reply is billed, whether or not it arrives, as providers do.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

MODEL = "judge-1"  # the one model it has
KEY = "sk-test-0123456789abcdef"
_MARK = re.compile(r"[0-9a-f]{16}(?=[].])")
_PER_MESSAGE, _PER_REPLY = 3, 3  # tokens that OpenAI bills beside the text


@dataclass(frozen=True)
class Asked:
    """A request. `number` counts all of them from 0, `tries` those before it with the same messages."""

    number: int
    tries: int
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    at: float

    @property
    def content(self) -> str:
        """The messages without their mark, as one text: what tells one judgement from another."""
        return content_of(self.body)


@dataclass(frozen=True)
class Says:
    """A reply; a refusal where `refused`, which has no content."""

    text: str
    refused: bool = False
    finish: str = "stop"


@dataclass(frozen=True)
class Fails:
    """An error of this status."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    code: str = "made_up"


@dataclass(frozen=True)
class Sends:
    """A body of status 200 that is not what the protocol says."""

    body: bytes
    content_type: str = "application/json"


@dataclass(frozen=True)
class Drips:
    """Blanks, one every `pause_s`, where a body of status 200 is due; from the head on where `headless`."""

    pause_s: float
    headless: bool = False


@dataclass(frozen=True)
class Hangs:
    """No reply at all for so many seconds, or until the server ends; then the connection is closed."""

    seconds: float


@dataclass(frozen=True)
class Cuts:
    """The first bytes of a reply, then the end of the connection."""

    text: str
    sent_bytes: int


def content_of(body: Mapping[str, Any]) -> str:
    return _MARK.sub("", json.dumps(body["messages"], sort_keys=True))


Deed = Says | Fails | Sends | Drips | Hangs | Cuts
Plan = Callable[[Asked], Deed]
_HEAD = {"id": "x", "object": "chat.completion", "created": 1, "model": MODEL}
EMPTY = Sends(json.dumps({**_HEAD, "choices": []}).encode())
MALFORMED = Sends(b'{"id": "x", "object": "chat.comple')
NO_JSON = Sends(b"<html><body>Bad gateway</body></html>", "text/html")


def marks(text: str) -> int:
    """Tokens, roughly: words and marks."""
    return len(re.findall(r"\w+|[^\w\s]", text))


@dataclass(frozen=True)
class Bill:
    """What one reply costs; `arrived` says whether it was sent whole."""

    content: str
    prompt_tokens: int
    reply_tokens: int
    arrived: bool


class JudgeServer:
    """Serves while it is entered, each request after `delay_s`. `count` counts the tokens of a text; `asked` and
    `bills` grow with the requests."""

    def __init__(self, plan: Plan, count: Callable[[str], int] = marks, delay_s: float = 0.0) -> None:
        self._plan, self._count, self._delay_s = plan, count, delay_s
        self.asked: list[Asked] = []
        self.bills: list[Bill] = []
        self.most_at_once = 0
        self.ended = threading.Event()
        self._at_once = 0
        self._lock = threading.Lock()
        self._server = _Server(self)

    @property
    def url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def paid_twice(self) -> list[str]:
        """Contents that more than one reply arrived for."""
        arrived = Counter(bill.content for bill in self.bills if bill.arrived)
        return [content for content, times in arrived.items() if times > 1]

    def tokens(self) -> tuple[int, int]:
        """Prompt and reply tokens billed so far."""
        return sum(bill.prompt_tokens for bill in self.bills), sum(bill.reply_tokens for bill in self.bills)

    def __enter__(self) -> JudgeServer:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
        """Enter a request into the account."""
        with self._lock:
            content = content_of(body)
            tries = sum(asked.content == content for asked in self.asked)
            self.asked.append(asked := Asked(len(self.asked), tries, body, headers, time.monotonic()))
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        return asked

    def done(self) -> None:
        """One request less is being served."""
        with self._lock:
            self._at_once -= 1

    def plan(self, asked: Asked) -> Deed:
        """What to do about a request of a model that is there."""
        time.sleep(self._delay_s)
        return self._plan(asked) if asked.body.get("model") == MODEL else Fails(404, code="model_not_found")

    def bill(self, asked: Asked, text: str, arrived: bool) -> dict[str, int]:
        """Charge for a reply; gives its `usage`."""
        messages = asked.body["messages"]
        prompt = sum(self._count(message["content"]) + _PER_MESSAGE for message in messages) + _PER_REPLY
        reply = self._count(text)
        with self._lock:
            self.bills.append(Bill(asked.content, prompt, reply, arrived))
        return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, owner: JudgeServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away, or was killed, is none of the server's business."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each reply waits 40 ms for the client to acknowledge its head
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        owner, headers = self.server.owner, {name.lower(): value for name, value in self.headers.items()}
        if not self._knows_key():
            return
        if self.path != "/v1/chat/completions":
            self._send(404, _error(Fails(404, code="not_found")))
            return
        asked = owner.take(json.loads(body), headers)
        try:
            self._act(owner, asked, owner.plan(asked))
        finally:
            owner.done()

    def do_GET(self) -> None:
        if not self._knows_key():
            return
        known = self.path == f"/v1/models/{MODEL}"
        model = {"id": MODEL, "object": "model", "created": 1, "owned_by": "nobody"}
        self._send(*((200, model) if known else (404, _error(Fails(404, code="model_not_found")))))

    def _knows_key(self) -> bool:
        known = self.headers.get("Authorization") == f"Bearer {KEY}"
        if not known:
            self._send(401, _error(Fails(401, code="invalid_api_key")))
        return known

    def _act(self, owner: JudgeServer, asked: Asked, deed: Deed) -> None:
        match deed:
            case Says(text):
                self._send(200, _reply(asked, deed, owner.bill(asked, text, True)))
            case Fails(status, headers):
                self._send(status, _error(deed), headers)
            case Sends(body, content_type):
                owner.bill(asked, "", True)
                self._write(200, body, {"Content-Type": content_type})
            case Drips(pause_s, headless):
                head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n"
                self.wfile.write(head + (b"X-Slow: " if headless else b"\r\n"))
                while not owner.ended.wait(pause_s):
                    self.wfile.write(b" ")
            case Hangs(seconds):
                owner.ended.wait(seconds)
                self.close_connection = True
            case Cuts(text, sent):
                whole = json.dumps(_reply(asked, Says(text), owner.bill(asked, text, False))).encode()
                self._write(200, whole, {}, sent)
                self.close_connection = True

    def _send(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        self._write(status, body if isinstance(body, bytes) else json.dumps(body).encode(), headers or {})

    def _write(self, status: int, body: bytes, headers: Mapping[str, str], sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:sent])
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing on the screen."""


def _error(fails: Fails) -> dict[str, Any]:
    return {"error": {"message": "as planned", "type": fails.code, "code": fails.code}}


def _reply(asked: Asked, says: Says, usage: Mapping[str, int]) -> dict[str, Any]:
    said = {"content": None, "refusal": says.text} if says.refused else {"content": says.text, "refusal": None}
    choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": says.finish, "logprobs": None}
    return {**_HEAD, "id": f"chatcmpl-{asked.number}", "choices": [choice], "usage": usage}
