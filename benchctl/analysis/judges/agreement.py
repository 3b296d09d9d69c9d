"""How far two judges say the same of the same pairs of answers, beyond what chance would make them."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from benchctl.analysis.judges.judgements import Judge, Judged
from benchctl.analysis.stats.bootstrap import Floats, Interval, bootstrap_of

_PAIR = ["file", "suite", "prompt_id", "turn", "label", "repeat", "session"]


@dataclass(frozen=True)
class Agreement:
    """Of two judges on `pairs` of answers, of `prompts`: `alike` is the share of equal verdicts (win, tie, loss),
    `kappa` Cohen's (None where both always say one and the same)."""

    one: Judge
    other: Judge
    pairs: int
    prompts: int
    alike: float
    kappa: float | None
    interval: Interval | None


def agreements(found: Judged) -> tuple[Agreement, ...]:
    """Of each two judges that judged the same pairs. Identical answers, which no judge is asked about, do not count."""
    pairs = found.pairs[found.pairs["whole"].astype(bool) & ~found.pairs["identical"].astype(bool)]
    by_judge = {judge: pairs[pairs["judge"] == judge.name] for judge in found.judges}
    both = ((one, other, _shared(by_judge[one], by_judge[other])) for one, other in combinations(found.judges, 2))
    return tuple(_agreement(one, other, shared) for one, other, shared in both if len(shared))


def kappa(tables: Floats) -> Floats:
    """Cohen's kappa, [R], of tables of counts [R, C * C], a row of C for each category of the first judge.

    Cohen: A Coefficient of Agreement for Nominal Scales, 1960. Not a number where both always say the same one thing.

    >>> kappa(np.array([[20.0, 5.0, 10.0, 15.0]]))
    array([0.4])
    """
    size = round(tables.shape[1] ** 0.5)
    joint = tables.reshape(-1, size, size) / tables.sum(axis=1)[:, None, None]
    alike = np.trace(joint, axis1=1, axis2=2)
    chance = (joint.sum(axis=1) * joint.sum(axis=2)).sum(axis=1)
    found = np.divide(alike - chance, 1 - chance, out=np.full_like(alike, np.nan), where=chance < 1 - 1e-12)
    return np.asarray(found)


def _shared(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    return one.merge(other, on=_PAIR, suffixes=("", "_other"))


def _agreement(one: Judge, other: Judge, shared: pd.DataFrame) -> Agreement:
    cells = 3 * (shared["verdict"].to_numpy(int) + 1) + shared["verdict_other"].to_numpy(int) + 1
    counts = np.eye(9)[cells]
    value = float(kappa(counts.sum(axis=0, keepdims=True))[0])
    prompts = shared.groupby(["suite", "prompt_id"]).ngroup().to_numpy().astype(np.int64)
    return Agreement(
        one=one,
        other=other,
        pairs=len(shared),
        prompts=len(np.unique(prompts)),
        alike=float((cells % 4 == 0).mean()),
        kappa=None if np.isnan(value) else value,
        interval=None if np.isnan(value) else bootstrap_of(kappa, counts, prompts),
    )
