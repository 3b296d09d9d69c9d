"""Use of the machine: memory, energy, and how near the baseline comes to the memory's bandwidth."""

from __future__ import annotations

import pandas as pd

from benchctl.analysis.metrics.metric import Metric, column, ones, where_known

_TABLE = "Machine"


def has_resources(pairs: pd.DataFrame) -> bool:
    """Whether any generation has more than the largest memory its process ever held."""
    names = ("energy_j", "least_read_s", "reserved_memory_bytes")
    return any(bool(pairs[name].notna().any()) for name in names)


BANDWIDTH_SHARE = Metric(
    "bandwidth_share",
    "share of the memory-bandwidth bound",
    "share",
    "higher",
    where_known("least_read_s"),
    where_known("least_read_s", column("decode_s")),
    needs=has_resources,
    table=_TABLE,
    title="of the bandwidth bound",
)
# Of a GPU's board, or of all packages of a CPU: this includes what idles during decoding.
ENERGY = Metric(
    "energy_per_token_j",
    "energy per token",
    "J",
    "lower",
    where_known("energy_j"),
    where_known("energy_j", column("new_tokens")),
    needs=has_resources,
    table=_TABLE,
    title="J per token",
    cell="{:.3g}",
)
# On a CPU this is the largest memory that the process ever held, no figure of one method: no column.
PEAK_MEMORY = Metric(
    "peak_memory_bytes",
    "peak memory",
    "bytes",
    "lower",
    where_known("peak_memory_bytes"),
    where_known("peak_memory_bytes", ones),
    needs=has_resources,
    table=_TABLE,
    title="peak memory MB",
    cell="{:,.0f}",
    scale=1e-6,
    on=lambda run: run.device != "cpu",
)
RESERVED_MEMORY = Metric(
    "reserved_memory_bytes",
    "memory held by torch",
    "bytes",
    "lower",
    where_known("reserved_memory_bytes"),
    where_known("reserved_memory_bytes", ones),
    needs=has_resources,
    table=_TABLE,
    title="held by torch MB",
    cell="{:,.0f}",
    scale=1e-6,
)
