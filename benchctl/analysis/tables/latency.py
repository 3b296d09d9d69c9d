"""The time of each generation to its first token, and per further token: what means over all tokens hide."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from benchctl.analysis.comparison import Group
from benchctl.analysis.frame.build import pair
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.metrics.speed import TPOT, TTFT
from benchctl.analysis.stats.bootstrap import Floats
from benchctl.analysis.stats.estimates import Estimate

FEW = 20  # of fewer generations the 95th percentile is hardly more than the slowest one


@dataclass(frozen=True)
class Latency:
    """Seconds of a method's generations, [generations]. `mean` is the figure of the tables.

    For TPOT that is the mean over all tokens, which gives long answers more weight; for TTFT over all generations.
    """

    label: str
    seconds: Floats
    mean: Estimate

    @property
    def few(self) -> bool:
        """Whether there are too few generations for a 95th percentile."""
        return len(self.seconds) < FEW


def latencies(group: Group, metric: Metric, labels: Sequence[str]) -> tuple[Latency, ...]:
    """TPOT or TTFT of those of `labels` that the group has measured, in that order, without those that have no times.

    Imported files may have none.
    """
    methods = {method.label: method for method in group.pooled.methods}
    measured = (
        Latency(label, times(group, label)[metric.name].dropna().to_numpy(), methods[label].estimate(metric))
        for label in labels
        if label in methods
    )
    return tuple(latency for latency in measured if len(latency.seconds))


def times(group: Group, label: str) -> pd.DataFrame:
    """The suite, TPOT and TTFT (columns of these metrics' names) of each generation that a method's figures rest on.

    NaN where a generation has no further token or no times.
    """
    pairs = pair(group.frame, label, group.run.baseline)
    committed = pairs["committed_tokens"].astype(float)
    return pd.DataFrame(
        {
            "suite": pairs["suite"],
            TPOT.name: pairs["decode_s"].astype(float) / committed.where(committed > 0),
            TTFT.name: pairs["ttft_s"].astype(float),
        }
    )
