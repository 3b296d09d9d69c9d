"""Figures of methods that load experts ahead of their use; only for groups with rows that count them.

Counts and tokens are those of decoding: prefill needs nearly every expert and would drown them in short answers.
"""

import pandas as pd

from benchctl.analysis.frame.rows import COUNTER
from benchctl.analysis.metrics.metric import Better, Column, Metric, Unit


def has_loading(frame: pd.DataFrame) -> bool:
    """Whether any generation counted the experts it needed."""
    return COUNTER + "needed" in frame and bool(frame[COUNTER + "needed"].notna().any())


def _counter(name: str) -> Column:
    def column(pairs: pd.DataFrame) -> pd.Series:
        found = pairs.get(COUNTER + name)
        return pd.Series(0.0, index=pairs.index) if found is None else found.astype(float).fillna(0.0)

    return column


def _lines_with(name: str, amount: Column) -> Column:
    """`amount` of the generations that have this counter, 0 of the others."""

    def column(pairs: pd.DataFrame) -> pd.Series:
        found = pairs.get(COUNTER + name)
        has = pd.Series(False, index=pairs.index) if found is None else found.notna()
        return amount(pairs).where(has, 0.0)

    return column


def _tokens(pairs: pd.DataFrame) -> pd.Series:
    return pairs["committed_tokens"].astype(float)


def _loaded_bytes(pairs: pd.DataFrame) -> pd.Series:
    return _counter("loads")(pairs) * _counter("expert_bytes")(pairs)


def _per_token(name: str, label: str, unit: Unit, top: Column, counter: str) -> Metric:
    return Metric(name, label, unit, "lower", top, _lines_with(counter, _tokens))


def _share(name: str, label: str, better: Better, top: str, bottom: str) -> Metric:
    return Metric(name, label, "share", better, _counter(top), _counter(bottom))


STALL = _per_token("stall_per_token_s", "stall per token", "s", _counter("stall_s"), "stall_s")
LOADS = _per_token("loads_per_token", "experts loaded per token", "experts", _counter("loads"), "loads")
LOADED = _per_token("loaded_per_token_bytes", "bytes loaded per token", "bytes", _loaded_bytes, "loads")
EVICTED_UNUSED = _per_token(
    "evicted_unused_per_token", "evicted before use per token", "experts", _counter("evicted_unused"), "loads"
)
RESIDENCY = _share("residency", "residency at the moment of need", "higher", "ready", "needed")
LATE = _share("late_share", "fetched ahead, but late", "lower", "late", "needed")
RECALL = _share("prediction_recall", "prediction recall", "higher", "predicted_needed", "foreseeable")
PRECISION = _share("prediction_precision", "prediction precision", "higher", "predicted_needed", "predicted")
THROTTLE = Metric(
    "throttled_to_mb_s",
    "loading throttled to",
    "MB/s",
    "higher",
    _counter("bandwidth_mb_s"),
    _lines_with("bandwidth_mb_s", lambda pairs: pd.Series(1.0, index=pairs.index)),
)

LOADING_METRICS = (STALL, LOADS, LOADED, EVICTED_UNUSED, RESIDENCY, LATE, RECALL, PRECISION, THROTTLE)
