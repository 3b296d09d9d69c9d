"""Records of aiperf, `profile_export.jsonl`: a line for each request. Its `profile_export_aiperf.json` has only means.

The id of a prompt is that of its conversation. Tokens are those of the server's usage where it reports them, else
aiperf's own count of the text. Records of the warm-up are left out.
"""

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from benchctl.importing.published_answers import Answer
from benchctl.importing.requests import Count, Requests, Speculation, decode, most_at_once, only_means, with_counts


class _Metadata(Struct, frozen=True):
    session_num: int
    request_start_ns: int
    request_end_ns: int
    benchmark_phase: str
    conversation_id: str | None = None
    turn_index: Count | None = None
    was_cancelled: bool = False


class _Time(Struct, frozen=True):
    value: Annotated[float, Meta(ge=0, le=1e9)]
    unit: Literal["ms"]


class _Tokens(Struct, frozen=True):
    value: Count


class _Metrics(Struct, frozen=True):
    request_latency: _Time | None = None
    time_to_first_token: _Time | None = None
    usage_prompt_tokens: _Tokens | None = None
    input_sequence_length: _Tokens | None = None
    usage_completion_tokens: _Tokens | None = None
    output_sequence_length: _Tokens | None = None


class _Error(Struct, frozen=True):
    message: str


class _Record(Struct, frozen=True):
    metadata: _Metadata
    metrics: _Metrics
    spec_decode_acceptance: Speculation | None = None
    error: _Error | None = None


def read(path: Path, text: bytes) -> Requests:
    """Raises InvalidData for the file of means and for lines of another shape."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if lines and lines[0][1].strip() == b"{":  # the file of means is one object on many lines
        raise only_means(path, "Give profile_export.jsonl of the same folder (aiperf's --export-level records).")
    left_out = Counter[str]()
    records = [decode(path, line, _Record, number) for number, line in lines]
    records = [record for record in records if record.metadata.benchmark_phase != "warmup"]
    spans = [(record.metadata.request_start_ns, record.metadata.request_end_ns) for record in records]
    return Requests(
        "aiperf",
        "",  # records do not name the model
        tuple(_answer(record, left_out) for record in records),
        most_at_once(spans),
        max((end for _, end in spans), default=0) / 1e9,
        left_out,
    )


def _answer(record: _Record, left_out: Counter[str]) -> Answer:
    of, metrics = record.metadata, record.metrics
    asked = metrics.usage_prompt_tokens or metrics.input_sequence_length
    came = metrics.usage_completion_tokens or metrics.output_sequence_length
    error = ""
    if record.error is not None or of.was_cancelled:
        error = f"the request failed: {record.error.message[:200] if record.error else 'it was cancelled'}"
    answer = Answer(
        *(of.conversation_id or str(of.session_num), of.turn_index or 0, 0, ""),
        new_tokens=came.value if came else None,
        wall_s=_seconds(metrics.request_latency),
        prompt_tokens=asked.value if asked else 0,
        ttft_s=_seconds(metrics.time_to_first_token),
        error=error,
    )
    return answer if error else with_counts(answer, record.spec_decode_acceptance, left_out)


def _seconds(time: _Time | None) -> float | None:
    return time.value / 1e3 if time else None
