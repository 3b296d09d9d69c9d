"""How far two judges agree beyond chance, and how many prompts a judged difference needs.

Published judgements of GPT-4 (FasterDecoding/Medusa, llm_judge: 80 prompts of MT-Bench, two turns, three models) have a
standard deviation of 3.0 to 3.2 points from prompt to prompt; differences of two models on the same prompts one of 0.84
to 1.25. So 80 prompts give one method's mean score within 0.68. 730 prompts give a paired difference within 0.06 to
0.09.
"""

from dataclasses import dataclass
from itertools import combinations, count
from math import ceil, sqrt

import numpy as np
import pandas as pd
from scipy.special import ndtri

from benchctl.analysis.judges.judgements import Judge, Judged
from benchctl.analysis.stats.bootstrap import LEVEL, Floats, Interval, bootstrap_of, critical

_PAIR = ["file", "suite", "prompt_id", "turn", "label", "repeat", "session"]
_FEWEST = 2  # prompts: one has no standard deviation
_MANY = 10**5  # from here on Student's t is as good as normal


@dataclass(frozen=True)
class Agreement:
    """Two judges on the same `pairs` of answers, of `prompts`. `alike` is the share of equal verdicts (win, tie, loss).

    `kappa` is Cohen's; None where both judges give the same single verdict to every pair.
    """

    first: Judge
    second: Judge
    pairs: int
    prompts: int
    alike: float
    kappa: float | None
    interval: Interval | None


def agreements(judged: Judged) -> tuple[Agreement, ...]:
    """Of each two judges with pairs in common. Identical answers do not count: no judge is asked about them."""
    pairs = judged.pairs[judged.pairs["whole"].astype(bool) & ~judged.pairs["identical"].astype(bool)]
    by_judge = {judge: pairs[pairs["judge"] == judge.name] for judge in judged.judges}
    shared = (
        (first, second, by_judge[first].merge(by_judge[second], on=_PAIR, suffixes=("", "_second")))
        for first, second in combinations(judged.judges, 2)
    )
    return tuple(_agreement(first, second, both) for first, second, both in shared if len(both))


def kappa(tables: Floats) -> Floats:
    """Cohen's kappa of tables of counts: [R, C * C], with C entries for each category of the first judge, -> [R].

    Cohen: A Coefficient of Agreement for Nominal Scales, 1960. NaN where both always give the same one verdict.

    >>> kappa(np.array([[20.0, 5.0, 10.0, 15.0]]))
    array([0.4])
    """
    size = round(tables.shape[1] ** 0.5)
    joint = tables.reshape(-1, size, size) / tables.sum(axis=1)[:, None, None]
    alike = np.trace(joint, axis1=1, axis2=2)
    chance = (joint.sum(axis=1) * joint.sum(axis=2)).sum(axis=1)
    return np.asarray(np.divide(alike - chance, 1 - chance, out=np.full_like(alike, np.nan), where=chance < 1 - 1e-12))


def _agreement(first: Judge, second: Judge, shared: pd.DataFrame) -> Agreement:
    cells = 3 * (shared["verdict"].to_numpy(int) + 1) + shared["verdict_second"].to_numpy(int) + 1
    counts = np.eye(9)[cells]
    value = float(kappa(counts.sum(axis=0, keepdims=True))[0])
    prompts = shared.groupby(["suite", "prompt_id"]).ngroup().to_numpy().astype(np.int64)
    return Agreement(
        first=first,
        second=second,
        pairs=len(shared),
        prompts=len(np.unique(prompts)),
        alike=float((cells % 4 == 0).mean()),
        kappa=None if np.isnan(value) else value,
        interval=None if np.isnan(value) else bootstrap_of(kappa, counts, prompts),
    )


def deviation(pairs: pd.DataFrame) -> float | None:
    """The standard deviation of the differences in score from prompt to prompt; None with fewer than two prompts.

    Where prompts have different numbers of pairs, it is that of each prompt's contribution to the mean of all pairs.
    """
    differences = pairs["difference"].astype(float)
    contributions = (differences - differences.mean()).groupby([pairs["suite"], pairs["prompt_id"]]).sum()
    prompts = len(contributions)
    if prompts < _FEWEST:
        return None
    return float(np.sqrt((contributions**2).sum() / (prompts - 1))) * prompts / len(pairs)


def margin(deviation: float, prompts: int) -> float:
    """Half of the 95% interval of a mean over `prompts` (at least two) with this standard deviation.

    >>> round(margin(3.05, 80), 2), round(margin(0.84, 730), 2), round(margin(1.25, 730), 2)
    (0.68, 0.06, 0.09)
    """
    return critical(LEVEL, prompts - 1) * deviation / sqrt(prompts)


def prompts_needed(deviation: float, wanted: float) -> int:
    """The fewest prompts whose margin is `wanted` (above 0) or less.

    >>> prompts_needed(1.0, 0.1)
    387
    """
    # Student's t is wider than normal, so the normal count is a lower bound.
    few = max(_FEWEST, ceil((float(-ndtri(LEVEL / 2)) * deviation / wanted) ** 2))
    return few if few > _MANY else next(prompts for prompts in count(few) if margin(deviation, prompts) <= wanted)
