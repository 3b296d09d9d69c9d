"""Reports of guidellm, `benchmarks.json` of version 0.8: the requests of one benchmark.

The id of a prompt is a hash of the messages that were sent. A time ends with the last token. Without usage from the
server guidellm counts chunks as tokens; then the count is left out.
"""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from benchctl.importing.published_answers import Answer
from benchctl.importing.published_lines import not_as_published
from benchctl.importing.requests import (
    Count,
    Requests,
    Speculation,
    decode,
    most_at_once,
    only_means,
    several_loads,
    with_counts,
)


class _Times(Struct, frozen=True):
    """Unix times in seconds."""

    request_start: float | None = None
    first_token_iteration: float | None = None
    last_token_iteration: float | None = None
    request_end: float | None = None


class _Info(Struct, frozen=True):
    timings: _Times


class _Usage(Struct, frozen=True):
    total_tokens: Count | None = None


class _Metrics(Struct, frozen=True):
    speculative_decoding: Speculation | None = None


class _Request(Struct, frozen=True):
    info: _Info
    input_metrics: _Usage
    output_metrics: _Usage
    request_args: str | None = None
    output: str | None = None
    response_metrics: _Metrics | None = None


class _Requests(Struct, frozen=True):
    successful: list[_Request]
    incomplete: list[_Request]
    errored: list[_Request]


class _Benchmark(Struct, frozen=True):
    requests: _Requests


class _Report(Struct, frozen=True):
    benchmarks: list[_Benchmark]


class _Body(Struct, frozen=True):
    """Of a request: `messages` of a chat, or a `prompt`."""

    model: str = ""
    messages: Any = None
    prompt: Any = None


class _Arguments(Struct, frozen=True):
    body: _Body


def read(path: Path, text: bytes) -> Requests:
    """Raises InvalidData for a file without single requests, of several loads, or of another shape."""
    results = decode(path, text, _Report).benchmarks
    if len(results) > 1:
        raise several_loads(path, len(results), "Run guidellm with one load, such as the profile `synchronous`.")
    requests = results[0].requests if results else _Requests([], [], [])
    if not requests.successful or not all(request.request_args for request in requests.successful):
        raise only_means(path, "Run guidellm without `sample_size`, so that it keeps each request with its prompt.")
    left_out = Counter[str]()
    if requests.incomplete:
        left_out["requests were cut at the end of the benchmark and are left out."] = len(requests.incomplete)
    if requests.errored:
        left_out["requests failed and are stored without their prompt: they are left out."] = len(requests.errored)
    answers, names, spans = list[Answer](), dict[str, None](), list[tuple[float, float]]()
    for request in requests.successful:
        body = decode(path, (request.request_args or "").encode(), _Arguments).body
        names.setdefault(body.model)
        answers.append(_answer(path, request, body, left_out))
    for request in requests.successful + requests.errored + requests.incomplete:
        times = request.info.timings
        if times.request_start is not None and times.request_end is not None:
            spans.append((times.request_start, times.request_end))
    written_s = max((end for _, end in spans), default=0.0)
    return Requests("guidellm", next(iter(names)), tuple(answers), most_at_once(spans), written_s, left_out)


def _answer(path: Path, request: _Request, body: _Body, left_out: Counter[str]) -> Answer:
    asked = body.prompt if body.messages is None else body.messages
    if asked is None:
        raise not_as_published(path, 1, "a request has neither messages nor a prompt")
    prompt_id = hashlib.sha256(msgspec.json.encode(asked)).hexdigest()[:12]
    times = request.info.timings
    start, first, last = times.request_start, times.first_token_iteration, times.last_token_iteration
    end = times.request_end if last is None else last
    answer = Answer(
        *(prompt_id, 0, 0, request.output or ""),
        new_tokens=request.output_metrics.total_tokens,
        wall_s=None if start is None or end is None else end - start,
        prompt_tokens=request.input_metrics.total_tokens or 0,
        ttft_s=None if start is None or first is None else first - start,
    )
    reported = request.response_metrics.speculative_decoding if request.response_metrics else None
    return with_counts(answer, reported, left_out)
