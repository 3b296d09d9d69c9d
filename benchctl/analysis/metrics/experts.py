"""Expert loading, for methods that count the experts they load.

Counts and tokens are those of decoding: prefill needs nearly every expert and would dominate short answers.
"""

import pandas as pd

from benchctl.analysis.frame.rows import COUNTER
from benchctl.analysis.metrics.metric import Better, Column, Metric, Unit, column, ones, where_known

_TOKENS = column("committed_tokens")


def has_loading(frame: pd.DataFrame) -> bool:
    """Whether any generation counted the experts it needed."""
    return COUNTER + "needed" in frame and bool(frame[COUNTER + "needed"].notna().any())


def _counter(name: str) -> Column:
    return column(COUNTER + name, 0.0)


def _loaded_bytes(pairs: pd.DataFrame) -> pd.Series:
    return _counter("loads")(pairs) * _counter("expert_bytes")(pairs)


def _loading(
    name: str, label: str, unit: Unit, top: Column, counter: str, *, title: str, cell: str, scale: float = 1
) -> Metric:
    """A metric per token of the generations that have this counter."""
    bottom = where_known(COUNTER + counter, _TOKENS)
    table = "Expert loading, per token"
    return Metric(
        name, label, unit, "lower", top, bottom, needs=has_loading, table=table, title=title, cell=cell, scale=scale
    )


def _share(name: str, label: str, better: Better, top: str, bottom: str, *, title: str) -> Metric:
    table = "Experts at the moment of need"
    tops, bottoms = _counter(top), _counter(bottom)
    return Metric(name, label, "share", better, tops, bottoms, needs=has_loading, table=table, title=title)


STALL = _loading(
    "stall_per_token_s",
    "stall per token",
    "s",
    _counter("stall_s"),
    "stall_s",
    title="stall ms",
    cell="{:.2f}",
    scale=1e3,
)
LOADS = _loading(
    "loads_per_token",
    "experts loaded per token",
    "experts",
    _counter("loads"),
    "loads",
    title="experts loaded",
    cell="{:.2f}",
)
LOADED = _loading(
    "loaded_per_token_bytes",
    "bytes loaded per token",
    "bytes",
    _loaded_bytes,
    "loads",
    title="MB loaded",
    cell="{:.2f}",
    scale=1e-6,
)
EVICTED_UNUSED = _loading(
    "evicted_unused_per_token",
    "evicted before use per token",
    "experts",
    _counter("evicted_unused"),
    "loads",
    title="evicted unused",
    cell="{:.2f}",
)
# Such times are those of a link of this bandwidth, not of the machine.
THROTTLE = Metric(
    "throttled_to_mb_s",
    "loading throttled to",
    "MB/s",
    "higher",
    _counter("bandwidth_mb_s"),
    where_known(COUNTER + "bandwidth_mb_s", ones),
    needs=has_loading,
    table="Expert loading, per token",
    title="loading throttled to",
    cell="{:g} MB/s",
)
RESIDENCY = _share("residency", "residency at the moment of need", "higher", "ready", "needed", title="resident")
LATE = _share("late_share", "fetched ahead, but late", "lower", "late", "needed", title="late")
RECALL = _share(
    "prediction_recall", "prediction recall", "higher", "predicted_needed", "foreseeable", title="prediction recall"
)
PRECISION = _share(
    "prediction_precision",
    "prediction precision",
    "higher",
    "predicted_needed",
    "predicted",
    title="prediction precision",
)
