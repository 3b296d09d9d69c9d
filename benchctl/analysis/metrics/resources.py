"""Use of the machine: memory, energy, and how near the baseline comes to the memory's bandwidth."""

from __future__ import annotations

from functools import partial

import pandas as pd

from benchctl.analysis.metrics.metric import Metric, column, ones, where_known


def has_resources(pairs: pd.DataFrame) -> bool:
    """Whether any generation has more than the largest memory its process ever held."""
    names = ("energy_j", "least_read_s", "reserved_memory_bytes")
    return any(bool(pairs[name].notna().any()) for name in names)


_of_machine = partial(Metric, needs=has_resources, table="Machine")

BANDWIDTH_SHARE = _of_machine(
    "bandwidth_share",
    "share of the memory-bandwidth bound",
    "ratio",  # above 1 where weights stay in a cache
    "higher",
    where_known("least_read_s"),
    where_known("least_read_s", column("decode_s")),
    title="memory bandwidth reached",
)
# Of a GPU's board, or of all packages of a CPU: this includes what idles during decoding.
ENERGY = _of_machine(
    "energy_per_token_j",
    "energy per token",
    "J",
    "lower",
    where_known("energy_j"),
    where_known("energy_j", column("new_tokens")),
    title="J per token",
    cell="{:.3g}",
)


def _memory(name: str, label: str, title: str) -> Metric:
    """Of a GPU: on a CPU the peak is the most that the process ever held, and no figure of one method."""
    tops, bottoms = (where_known("reserved_memory_bytes", each) for each in (column(name), ones))
    return _of_machine(name, label, "bytes", "lower", tops, bottoms, title=title, cell="{:,.0f}", scale=1e-6)


PEAK_MEMORY = _memory("peak_memory_bytes", "peak memory", "peak memory MB")
RESERVED_MEMORY = _memory("reserved_memory_bytes", "memory held by torch", "held by torch MB")
