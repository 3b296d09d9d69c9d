"""What generations take of the machine: memory, energy, and how near the baseline comes to the memory's bandwidth; only
for groups whose rows tell."""

from __future__ import annotations

import pandas as pd

from benchctl.analysis.metrics.metric import Column, Metric, ones

_TOLD = ("energy_j", "least_read_s", "reserved_memory_bytes")


def has_resources(frame: pd.DataFrame) -> bool:
    """Whether any generation tells more than the most memory its process held."""
    return any(bool(frame[name].notna().any()) for name in _TOLD)


def _told(name: str, amount: Column | None = None) -> Column:
    """`amount`, or the column itself, of the generations that have this column, 0 of the others."""

    def column(pairs: pd.DataFrame) -> pd.Series:
        own = pairs[name].astype(float)
        values = own if amount is None else amount(pairs)
        return values.where(own.notna(), 0.0)

    return column


def _column(name: str) -> Column:
    return lambda pairs: pairs[name].astype(float)


# Of a GPU's rows the energy of its board, of a CPU's that of all packages: what idles beside the decoding is in it.
ENERGY = Metric(
    "energy_per_token_j",
    "energy per token",
    "J",
    "lower",
    _told("energy_j"),
    _told("energy_j", _column("new_tokens")),
)
BANDWIDTH_SHARE = Metric(
    "bandwidth_share",
    "share of the memory-bandwidth bound",
    "share",
    "higher",
    _told("least_read_s"),
    _told("least_read_s", _column("decode_s")),
)
PEAK_MEMORY = Metric(
    "peak_memory_bytes",
    "peak memory",
    "bytes",
    "lower",
    _told("peak_memory_bytes"),
    _told("peak_memory_bytes", ones),
)
RESERVED_MEMORY = Metric(
    "reserved_memory_bytes",
    "memory held by torch",
    "bytes",
    "lower",
    _told("reserved_memory_bytes"),
    _told("reserved_memory_bytes", ones),
)

RESOURCE_METRICS = (BANDWIDTH_SHARE, ENERGY, PEAK_MEMORY, RESERVED_MEMORY)
