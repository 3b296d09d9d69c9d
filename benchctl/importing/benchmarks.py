"""Which program wrote a file of a serving benchmark, recognised by its first object, and its requests."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from benchctl.importing import Format, aiperf, guidellm, vllm_bench
from benchctl.importing.requests import Requests
from benchctl.records.reader import read_file

_READERS: Mapping[Format, Callable[[Path, bytes], Requests]] = {
    "vllm-bench": vllm_bench.read,
    "aiperf": aiperf.read,
    "guidellm": guidellm.read,
}


def read_requests(path: Path, format: Format | None) -> Requests | None:
    """The requests in a file; None for one that no serving benchmark wrote. Raises UserError for a file that cannot be
    read, InvalidData for one that is not of its format."""
    if format is not None and format not in _READERS:
        return None
    text = read_file(path)
    found = format or _format_of(text)
    return _READERS[found](path, text) if found else None


def _format_of(text: bytes) -> Format | None:
    for part in (text.partition(b"\n")[0], text):  # most write an object on one line
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            names = msgspec.json.decode(part, type=dict[str, msgspec.Raw]).keys()
            if "aiperf_version" in names or {"metadata", "metrics"} <= names:
                return "aiperf"
            if "benchmarks" in names:
                return "guidellm"
            return "vllm-bench" if {"request_throughput", "endpoint_type"} <= names else None
    return None
