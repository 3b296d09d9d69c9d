"""A/A: the baseline against itself. How often do equal arms seem to differ, and which effect is detectable?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
import pandas as pd
from scipy.special import ndtri

from benchctl.analysis.frame.build import to_frames
from benchctl.analysis.stats.intervals import LEAST_PROMPTS, LEVEL, Floats, Levels, codes_of, critical, ratio_intervals
from benchctl.errors import UserError
from benchctl.records.writer import RunFile

SPLITS = 400
POWER = 0.8


@dataclass(frozen=True)
class SelfComparison:
    """Comparisons of equal arms, each with half of the repeats.

    `false_positive_rate` is the share of splits whose 95% interval excludes 1; it should be about 0.05. A speed-up of
    `1 + minimum_detectable_effect`, equal on all prompts, would be called significant with a probability of 80%.
    """

    baseline: str
    false_positive_rate: float
    minimum_detectable_effect: float
    prompts: int
    repeats: int
    sessions: int
    splits: int = SPLITS


def compare_with_itself(files: Sequence[RunFile], *, splits: int = SPLITS) -> SelfComparison:
    """Assign the repeats of each of the baseline's answers to two equal arms at random, `splits` times.

    Repeats of an answer are measured close to each other, as the arms of a comparison are. So each split is a
    comparison whose arms do not differ, with the pairs, the interval and the noise of these files.

    Raises UserError for files with fewer than LEAST_PROMPTS prompts of two repeats each, and for sampled answers, whose
    repeats differ.
    """
    run = files[0].run
    if run.temperature > 0:
        raise UserError(
            "sampled_answers",
            f"{files[0].path}: its answers are sampled, so repeats differ. Measure with --temperature 0.",
        )
    times_s, levels = _cells(to_frames(files, ["free"])["free"], run.baseline)
    prompts = int(levels.prompt.max(initial=-1)) + 1
    if prompts < LEAST_PROMPTS:
        raise UserError(
            "too_few_repeats",
            f"{files[0].path}: {prompts} prompts of {run.baseline} have enough repeats in a session, and an interval "
            f"needs {LEAST_PROMPTS}. Measure at least {LEAST_PROMPTS} prompts with --repeats 4 or more.",
        )
    # Two arms [cells, splits]: sums of one half of the repeats of each cell, and of the other.
    cells, repeats = times_s.shape
    first = np.argsort(np.random.default_rng(0).random((splits, cells, repeats)), axis=2) < repeats // 2
    above = (times_s * first).sum(axis=2).T
    below = times_s.sum(axis=1)[:, None] - above
    intervals = [interval for interval in ratio_intervals(above, below, levels) if interval is not None]
    wrong = sum(not interval.low <= 1 <= interval.high for interval in intervals)
    spread = float(np.log(above.sum(axis=0) / below.sum(axis=0)).std(ddof=1))
    standard_errors = critical(LEVEL, prompts - 1) + float(ndtri(POWER))
    return SelfComparison(
        baseline=run.baseline,
        false_positive_rate=wrong / len(intervals),
        minimum_detectable_effect=exp(standard_errors * spread) - 1,
        prompts=prompts,
        repeats=repeats,
        sessions=int(levels.session.max()) + 1,
        splits=splits,
    )


def _cells(frame: pd.DataFrame, baseline: str) -> tuple[Floats, Levels]:
    """Whole seconds [cells, repeats] of each prompt in each session, all turns summed, and the level of each cell.

    The number of repeats is the even one that uses the most generations: cells with fewer repeats are left out, and so
    are the last repeats of cells with more.
    """
    valid = frame[(frame["label"] == baseline) & frame["error"].isna() & ~frame["round_invalid"]]
    where = ["file", "session", "suite", "batch"]
    turns = valid.groupby([*where, "repeat"])["whole_s"].agg(["sum", "size"])
    # A repeat that lost one of its turns would look fast.
    whole = turns[turns["size"] == turns.groupby(level=where)["size"].transform("max")]["sum"]
    cells: dict[tuple[object, ...], list[float]] = {}
    for cell, time_s in zip(whole.reset_index()[where].itertuples(index=False, name=None), whole, strict=True):
        cells.setdefault(cell, []).append(time_s)
    # For cells of 8, 8, 7 and 2 repeats it is 6: 18 generations, where 8 would keep 16 and 2 only 8.
    counts = [len(times) for times in cells.values()]
    evens = range(2, max(counts, default=0) + 1, 2)
    repeats = max(evens, key=lambda even: even * sum(count >= even for count in counts), default=0)
    kept = [(cell, times[:repeats]) for cell, times in cells.items() if len(times) >= repeats]
    if not kept or not repeats:
        return np.zeros((0, 2)), Levels(codes_of([]), codes_of([]))
    sessions, prompts = ([cell[:2] for cell, _ in kept], [cell[2:] for cell, _ in kept])
    return np.array([times for _, times in kept], dtype=float), Levels(codes_of(sessions), codes_of(prompts))
