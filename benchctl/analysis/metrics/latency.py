"""How long each generation took for its first token, and for each further one: what means over all tokens hide."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from benchctl.analysis.frame.build import pair
from benchctl.analysis.frame.comparison import Estimate, Group
from benchctl.analysis.metrics.metric import TPOT, TTFT, Metric
from benchctl.analysis.stats.bootstrap import Floats

FEW = 20  # of fewer generations the 95th percentile is hardly more than the slowest one


@dataclass(frozen=True)
class Latency:
    """Seconds of a method's generations, [generations]; `mean` is the figure of the tables: of all tokens together for
    TPOT, which gives long answers more weight, and of all generations for TTFT."""

    label: str
    seconds: Floats
    mean: Estimate

    @property
    def few(self) -> bool:
        """Whether they are too few to speak of the slowest twentieth."""
        return len(self.seconds) < FEW


def latencies(group: Group, metric: Metric, labels: Sequence[str]) -> tuple[Latency, ...]:
    """TPOT or TTFT of those of `labels` that the group has measured, in that order; those without times are left out,
    as methods of other programs' files may be."""
    methods = {method.label: method for method in group.pooled.methods}
    found = (
        Latency(label, times(group, label)[metric.name].dropna().to_numpy(), methods[label].estimate(metric))
        for label in labels
        if label in methods
    )
    return tuple(latency for latency in found if len(latency.seconds))


def times(group: Group, label: str) -> pd.DataFrame:
    """Of each generation that a method's figures rest on (see frame.pair) the suite and, by the names of these metrics,
    TPOT and TTFT; nothing (NaN) where it has no further token, or tells no times."""
    pairs = pair(group.frame, label, group.run.baseline)
    committed = pairs["committed_tokens"].astype(float)
    return pd.DataFrame(
        {
            "suite": pairs["suite"],
            TPOT.name: pairs["decode_s"].astype(float) / committed.where(committed > 0),
            TTFT.name: pairs["ttft_s"].astype(float),
        }
    )
