"""Expert loading, for methods that count the experts they load.

Counts and tokens are those of decoding: prefill needs nearly every expert and would dominate short answers.
"""

from functools import partial

import pandas as pd

from benchctl.analysis.frame.rows import COUNTER
from benchctl.analysis.metrics.metric import Better, Column, Metric, Unit, column, ones, where_known

_TABLE = "Expert loading, per token"


def has_loading(frame: pd.DataFrame) -> bool:
    """Whether any generation counted the experts it needed."""
    return COUNTER + "needed" in frame and bool(frame[COUNTER + "needed"].notna().any())


def _counter(name: str) -> Column:
    return column(COUNTER + name, 0.0)


def _loaded_bytes(pairs: pd.DataFrame) -> pd.Series:
    return _counter("loads")(pairs) * _counter("expert_bytes")(pairs)


def _loading(
    name: str, label: str, unit: Unit, counter: str, title: str, scale: float = 1, top: Column | None = None
) -> Metric:
    """What `counter` counts per token of the generations that have it, or `top` per such token."""
    tops, bottoms = top or _counter(counter), where_known(COUNTER + counter, column("committed_tokens"))
    shown = partial(Metric, needs=has_loading, table=_TABLE, title=title, cell="{:.2f}", scale=scale)
    return shown(name, label, unit, "lower", tops, bottoms)


def _share(name: str, label: str, better: Better, top: str, bottom: str, title: str = "") -> Metric:
    table = "Experts at the moment of need"
    tops, bottoms = _counter(top), _counter(bottom)
    return Metric(name, label, "share", better, tops, bottoms, needs=has_loading, table=table, title=title)


STALL = _loading("stall_per_token_s", "stall per token", "s", "stall_s", "stall ms", scale=1e3)
LOADS = _loading("loads_per_token", "experts loaded per token", "experts", "loads", "experts loaded")
LOADED = _loading(
    "loaded_per_token_bytes", "bytes loaded per token", "bytes", "loads", "MB loaded", scale=1e-6, top=_loaded_bytes
)
EVICTED_UNUSED = _loading(
    "evicted_unused_per_token",
    "evicted before use per token",
    "experts",
    "loads",
    "evicted unused",
    top=_counter("evicted_unused"),
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
    table=_TABLE,
    cell="{:g} MB/s",
)
RESIDENCY = _share("residency", "residency at the moment of need", "higher", "ready", "needed", "resident")
LATE = _share("late_share", "fetched ahead, but late", "lower", "late", "needed", "late")
RECALL = _share("prediction_recall", "prediction recall", "higher", "predicted_needed", "foreseeable")
PRECISION = _share("prediction_precision", "prediction precision", "higher", "predicted_needed", "predicted")
