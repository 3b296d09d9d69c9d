"""How far a judged difference can be told with so many prompts, and how many a wanted margin needs.

The margin is half of the 95% interval. Published judgements of GPT-4 (FasterDecoding/Medusa, llm_judge: 80 prompts of
MT-Bench, two turns, three models) spread by 3.0 to 3.2 points from prompt to prompt, and the differences of two models
on the same prompts by 0.84 to 1.25: so 80 prompts tell one method's mean score to about 0.68, and 730 prompts tell a
paired difference to 0.06 to 0.09.
"""

from itertools import count
from math import ceil, sqrt
from statistics import NormalDist

import numpy as np
import pandas as pd

from benchctl.analysis.stats.bootstrap import LEVEL
from benchctl.analysis.stats.student import critical

_FEWEST = 2  # prompts: one has no spread
_MANY = 10**5  # from here on Student's t is as good as normal
_NORMAL = NormalDist().inv_cdf(1 - LEVEL / 2)


def spread(pairs: pd.DataFrame) -> float | None:
    """The standard deviation of the differences in score from prompt to prompt; None with fewer than two prompts.

    Where prompts have different numbers of pairs, it is that of what each adds to the mean of all pairs.
    """
    differences = pairs["difference"].astype(float)
    added = (differences - differences.mean()).groupby([pairs["suite"], pairs["prompt_id"]]).sum()
    prompts = len(added)
    if prompts < _FEWEST:
        return None
    return float(np.sqrt((added**2).sum() / (prompts - 1))) * prompts / len(pairs)


def margin(spread: float, prompts: int) -> float:
    """Half of the 95% interval of a mean over `prompts` (at least two) that spread so far.

    >>> round(margin(3.05, 80), 2), round(margin(0.84, 730), 2), round(margin(1.25, 730), 2)
    (0.68, 0.06, 0.09)
    """
    return critical(LEVEL, prompts - 1) * spread / sqrt(prompts)


def prompts_needed(spread: float, wanted: float) -> int:
    """The fewest prompts whose margin is `wanted` (above 0) or less.

    >>> prompts_needed(1.0, 0.1)
    387
    """
    few = max(_FEWEST, ceil((_NORMAL * spread / wanted) ** 2))  # Student's t is larger, so it takes some more
    return few if few > _MANY else next(prompts for prompts in count(few) if margin(spread, prompts) <= wanted)
