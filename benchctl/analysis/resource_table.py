"""The table of what generations took of the machine, with the columns that this machine could tell."""

from __future__ import annotations

from collections.abc import Iterator

from benchctl.analysis.cells import Block, Column, number
from benchctl.analysis.comparison import Group
from benchctl.analysis.resources import BANDWIDTH_SHARE, ENERGY, PEAK_MEMORY, RESERVED_MEMORY

_COLUMNS = (
    (BANDWIDTH_SHARE, Column("of the bandwidth bound", number(BANDWIDTH_SHARE, "{:.3f}"))),
    (ENERGY, Column("J per token", number(ENERGY, "{:.3g}"))),
    (PEAK_MEMORY, Column("peak memory MB", number(PEAK_MEMORY, "{:,.0f}", 1e-6))),
    (RESERVED_MEMORY, Column("held by torch MB", number(RESERVED_MEMORY, "{:,.0f}", 1e-6))),
)


def resource_blocks(group: Group) -> Iterator[Block]:
    """One table, or none where no method has any of these figures. The most memory a process ever held is no figure of
    one method, so without a GPU, which can tell a generation's own, there is no column of it."""
    methods = group.pooled.methods
    told = [
        column
        for metric, column in _COLUMNS
        if any(method.estimate(metric).value is not None for method in methods)
        and (metric is not PEAK_MEMORY or group.run.device != "cpu")
    ]
    if told:
        yield Block("Machine", tuple(told))
