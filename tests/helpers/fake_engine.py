"""A server that speaks the dialects of vLLM, SGLang and llama.cpp, or text alone, over HTTP. It misbehaves on demand.

    with FakeEngine("vllm", answers_of(target, "prompt_lookup")) as server:
        ... openai[base_url={server.url}]

As a program it takes the place of llama-server, `vllm` or a Python with SGLang, and needs neither torch nor benchctl:

    python fake_engine.py DIALECT MISBEHAVIOUR ... --port PORT
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

PROBE = [0, 1]  # the prompt that is asked at the start
VERSION = "0.0-fake"
SLOW_S = 0.05


@dataclass(frozen=True)
class Step:
    """Tokens that a step commits, and how many were drafted and accepted. The first step of an answer is prefill."""

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0


Answers = Callable[[Sequence[int], int, Sequence[int]], Sequence[Step]]
"""Prompt ids, the most tokens and stop ids in, steps out."""


def counting(prompt: Sequence[int], most: int, stops: Sequence[int]) -> list[Step]:
    """The tokens 5, 6, 7 ..: an engine without a model."""
    return [Step((5 + index,)) for index in range(most)]


def speculating(prompt: Sequence[int], most: int, stops: Sequence[int]) -> list[Step]:
    """The same tokens in steps that draft 3 and accept 2, as far as they go."""
    tokens = list(range(5, 5 + most))
    later = [tuple(tokens[start : start + 3]) for start in range(1, most, 3)]
    return [Step((5,)), *(Step(each, 3, len(each) - 1) for each in later)]


class FakeEngine:
    """Serves while it is entered. `asked` holds the bodies of the requests; `posted` the paths of other posts.

    misbehaves  any of: merged (two steps in an event), split (an event in two packets), joined (all events in one
                packet), apart (an event for each token), cached, false_counts, other_sums, other_prompt, wrong_ids,
                no_ids, no_usage, no_tokens, two_models, lost, slow, dying, hanging, refusing, broken,
                refusing_all (the probe too), silent (cached tokens unknown)
    """

    def __init__(self, dialect: str, answers: Answers, *misbehaves: str, port: int = 0) -> None:
        self.dialect, self.answers, self.misbehaves = dialect, answers, set(misbehaves)
        self.asked: list[dict[str, Any]] = []
        self.posted: list[str] = []
        self.ended = threading.Event()
        self._server = _Server(self, port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeEngine:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self) -> None:
        self._server.serve_forever()

    def page(self, path: str) -> dict[str, Any] | None:
        """What a GET of the path shows; None where there is no such page."""
        pages: dict[str, dict[str, Any]] = {
            "vllm": {"/version": {"version": VERSION}, "/v1/models": {"data": [{"id": "the-model"}]}, "/health": {}},
            "sglang": {"/server_info": {"version": VERSION}, "/health": {}},
            "llama_cpp": {
                "/props": {"build_info": VERSION},
                "/v1/models": {"data": [{"meta": {"n_params": 10, "size": 40}}]},
                "/health": {"status": "ok"},
            },
            "text": {
                "/v1/models": {"data": [{"id": f"model-{n}"} for n in range(1 + ("two_models" in self.misbehaves))]}
            },
        }
        if path == "/health" and "never_ready" in self.misbehaves:
            return None
        return pages[self.dialect].get(path)

    def texts(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a server that knows text alone: a step in an event, and none of its ids."""
        steps = [] if "no_tokens" in self.misbehaves else self.answers([], body["max_tokens"], ())
        tokens = sum(len(step.tokens) for step in steps)
        texts = ["".join(f" {token}" for token in step.tokens) for step in steps]
        ends = [{"index": 0, "text": text, "finish_reason": None} for text in texts]
        ends += [{"index": 0, "text": "", "finish_reason": "length" if tokens == body["max_tokens"] else "stop"}]
        events: list[dict[str, Any]] = [{"choices": [end]} for end in ends]
        details = {"cached_tokens": 3 * ("cached" in self.misbehaves and body["max_tokens"] > len(PROBE))}
        usage = {"completion_tokens": tokens, "prompt_tokens_details": details}
        return events if "no_usage" in self.misbehaves else [*events, {"choices": [], "usage": usage}]

    def events(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        if self.dialect == "text":
            return self.texts(body)
        prompt: list[int] = body["input_ids" if self.dialect == "sglang" else "prompt"]
        sampling = body.get("sampling_params", body)
        most = next(sampling[name] for name in ("max_tokens", "max_new_tokens", "n_predict") if name in sampling)
        steps = list(self.answers(prompt, most, sampling.get("stop_token_ids", ())))
        wrong = self.misbehaves if prompt != PROBE else self.misbehaves & {"no_ids"}
        chunks = [list(step.tokens) for step in steps]
        if "wrong_ids" in wrong:
            chunks[-1][-1] = 10**6
        if "merged" in wrong:
            chunks = [[*chain(*chunks[start : start + 2])] for start in range(0, len(chunks), 2)]
        if "apart" in wrong or self.dialect == "llama_cpp":
            chunks = [[token] for chunk in chunks for token in chunk]
        tokens = sum(map(len, chunks))
        if "lost" in wrong:
            del chunks[len(chunks) // 2]
        drafted, accepted = [step.drafted for step in steps[1:]], [step.accepted for step in steps[1:]]
        if "false_counts" in wrong:
            accepted = [count + 1 for count in drafted]
        sums = {"steps": len(drafted), "drafted": sum(drafted), "accepted": sum(accepted) + ("other_sums" in wrong)}
        finish = "length" if tokens == most else "stop"
        cached = None if "silent" in self.misbehaves else 3 * ("cached" in wrong)
        read = len(prompt) + ("other_prompt" in wrong)
        write = {"vllm": self._vllm, "sglang": self._sglang, "llama_cpp": self._llama_cpp}[self.dialect]
        told = (sums, drafted, accepted) if any(step.drafted for step in steps) else None
        written = list(write(chunks, finish, read, cached, tokens, told))
        if "no_ids" in wrong:
            for event in written:
                for part in (event, *event.get("choices", ())):
                    for name in ("token_ids", "output_ids", "tokens"):
                        part.pop(name, None)
        return written

    def _vllm(
        self, chunks: list[list[int]], finish: str, read: int, cached: int | None, tokens: int, told: Any
    ) -> Iterable[dict[str, Any]]:
        for index, chunk in enumerate(chunks):
            ends = finish if index == len(chunks) - 1 else None
            yield {"choices": [{"index": 0, "text": "x", "token_ids": chunk, "finish_reason": ends}]}
        usage = {"prompt_tokens": read, "completion_tokens": tokens}
        details = None if cached is None else {"cached_tokens": cached}
        metrics = None
        if told:
            sums, drafted, accepted = told
            metrics = {
                "num_spec_steps": sums["steps"],
                "num_draft_tokens": sums["drafted"],
                "num_accepted_draft_tokens": sums["accepted"],
                "per_step_drafted": drafted,
                "per_step_accepted": accepted,
            }
        yield {
            "choices": [],
            "usage": usage | {"prompt_tokens_details": details},
            "metrics": {"speculative_decoding": metrics},
        }

    def _sglang(
        self, chunks: list[list[int]], finish: str, read: int, cached: int | None, tokens: int, told: Any
    ) -> Iterable[dict[str, Any]]:
        so_far: list[int] = []
        lost = tokens - sum(map(len, chunks))
        for index, chunk in enumerate(chunks):
            so_far += chunk
            is_last = index == len(chunks) - 1
            meta: dict[str, Any] = {"prompt_tokens": read, "completion_tokens": len(so_far) + lost * is_last}
            meta |= {"cached_tokens": cached} if cached is not None else {}
            meta["finish_reason"] = {"type": finish} if is_last else None
            if told and is_last:
                meta |= {"spec_verify_ct": told[0]["steps"], "spec_num_correct_drafts": told[0]["accepted"]}
                meta |= {"spec_num_proposed_drafts": told[0]["drafted"]}
            yield {"text": "x", "output_ids": list(so_far), "meta_info": meta}

    def _llama_cpp(
        self, chunks: list[list[int]], finish: str, read: int, cached: int | None, tokens: int, told: Any
    ) -> Iterable[dict[str, Any]]:
        for chunk in chunks:
            yield {"content": "x", "tokens": chunk, "stop": False}
        timings: dict[str, Any] = {"prompt_ms": 2.0, "predicted_ms": 3.0}
        timings |= {"cache_n": cached} if cached is not None else {}
        if told:
            timings |= {"draft_n": told[0]["drafted"], "draft_n_accepted": told[0]["accepted"]}
        yield {
            "content": "",
            "tokens": [],
            "stop": True,
            "stop_type": {"stop": "eos", "length": "limit"}[finish],
            "tokens_evaluated": read,
            "tokens_predicted": tokens,
            "timings": timings,
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, owner: FakeEngine, port: int) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is none of the server's business."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        page = self.server.owner.page(self.path)
        self._send(404 if page is None else 200, page or {})

    def do_POST(self) -> None:
        owner = self.server.owner
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path not in ("/v1/completions", "/generate", "/completion"):
            owner.posted.append(self.path)
            self._send(200, {})
            return
        asked = json.loads(body)
        owner.asked.append(asked | {"key": self.headers.get("Authorization")})
        is_probe = asked.get("prompt", asked.get("input_ids")) == PROBE
        wrong = set() if is_probe else owner.misbehaves
        if "hanging" in wrong:
            owner.ended.wait()
            return
        if owner.dialect == "text" and not isinstance(asked["prompt"], str):
            self._send(400, {"error": "prompt must be a string"})
            return
        if "refusing" in wrong or "refusing_all" in owner.misbehaves:
            self._send(400, {"error": "as planned"})
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        lines = [f"data: {json.dumps(event)}\n\n".encode() for event in owner.events(asked)]
        lines = [b"data: [1, 2]\n\n"] if "broken" in wrong else lines
        if "dying" in wrong:
            self._write(lines[0])
            if __name__ == "__main__":
                print("out of luck", flush=True)
                os._exit(7)
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        for line in [b"".join(lines)] if "joined" in wrong else lines:
            half = len(line) // 2
            for part in (line[:half], line[half:]) if "split" in wrong else (line,):
                self._write(part)
                time.sleep(SLOW_S * ("slow" in wrong or "split" in wrong))
        self._write(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, status: int, page: dict[str, Any]) -> None:
        body = json.dumps(page).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing on the screen."""


def program(folder: Path, dialect: str, *misbehaves: str) -> Path:
    """A program in `folder` that takes the place of an engine's; misbehaviours of the start are crashing, never_ready,
    stubborn (ignores being asked to end) and parent (has a child, whose id it writes next to itself)."""
    path = folder / f"fake-{dialect}-{'-'.join(misbehaves)}"
    command = " ".join([sys.executable, "-I", str(Path(__file__).resolve()), dialect, *misbehaves])
    path.write_text(f'#!/bin/sh\nexec {command} --folder {folder} "$@"\n')
    path.chmod(0o755)
    return path


def running(folder: Path) -> list[int]:
    """The ids of the processes that the fakes in the folder started and that still run."""
    return [int(file.stem) for file in folder.glob("*.pid") if is_running(int(file.stem))]


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 15) -> bool:
    deadline_s = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return condition()


def main(arguments: Sequence[str]) -> None:
    own, given = arguments[: arguments.index("--folder")], arguments[arguments.index("--folder") + 1 :]
    dialect, *misbehaves = own
    (Path(given[0]) / f"{os.getpid()}.pid").write_text(" ".join(given[1:]))
    if "crashing" in misbehaves:
        sys.exit("no such model")
    if "stubborn" in misbehaves:
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "parent" in misbehaves:
        child = subprocess.Popen(["sleep", "1000"])
        (Path(given[0]) / f"{child.pid}.pid").write_text("child")
    drafts = any(option.startswith(("--spec", "-md")) for option in given)
    port = int(given[list(given).index("--port") + 1])
    FakeEngine(dialect, speculating if drafts else counting, *misbehaves, port=port).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
