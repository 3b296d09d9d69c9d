"""Intervals of ratios of sums by a paired hierarchical bootstrap over sessions, prompts and repeats.

Sessions and prompts are crossed, not nested: another session measures the same prompts, and says nothing new about how
prompts differ. So a resample draws sessions once and prompts once, then repeats within every cell of the two.
The pair (method, baseline) stays together throughout: what slows both down cancels.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESAMPLES = 2000
_PERCENTILES = (2.5, 97.5)
_WEIGHTS_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Interval:
    """Where 95% of the resampled values lie."""

    low: float
    high: float


@dataclass(frozen=True)
class Levels:
    """Which session, prompt and repeat each observation belongs to: three integer codes, [N] each.

    Where prompts are decoded in batches a batch is what `prompt` stands for: its answers share one time, so that
    drawing them apart would make few measurements look like many.
    """

    session: Ints
    prompt: Ints
    repeat: Ints


def bootstrap(
    tops: Floats,
    bottoms: Floats,
    levels: Levels,
    *,
    less: tuple[Floats, Floats] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Interval | None]:
    """The 95% interval of `tops[:, m].sum() / bottoms[:, m].sum()` for each column m of two [N, M] arrays.

    With `less`, two more such arrays, it is the interval of that ratio less theirs. All columns share the resamples,
    and so do calls with the same levels and seed. None where nothing can be told: with fewer than two prompts, or when
    a resample's bottom is 0.
    """
    cells = _cells(levels)
    if cells.prompts < 2:
        return [None] * tops.shape[1]
    sums = [_sum_by_cell(values, cells) for values in (tops, bottoms, *(less or ()))]
    draws = [[weights @ values for values in sums] for weights in _weights(cells, resamples, seed)]
    above, below, *others = (np.concatenate(parts) for parts in zip(*draws, strict=True))
    found = _ratios(above, below) - (_ratios(*others) if others else 0)
    return [_interval(found[:, column]) for column in range(tops.shape[1])]


@dataclass(frozen=True)
class _Cells:
    """The grid of sessions x prompts x repeats: `index` [N] of each observation in it, `present` [S, P, R]."""

    index: Ints
    present: NDArray[np.bool_]

    @property
    def prompts(self) -> int:
        return int(self.present.shape[1])


def _cells(levels: Levels) -> _Cells:
    codes = [np.unique(level, return_inverse=True)[1] for level in (levels.session, levels.prompt, levels.repeat)]
    shape = tuple(int(code.max(initial=-1)) + 1 for code in codes)
    present = np.zeros(shape, dtype=bool)
    present[tuple(codes)] = True
    index = np.ravel_multi_index(tuple(codes), shape) if present.size else np.zeros(0, dtype=np.int64)
    return _Cells(index, present)


def _sum_by_cell(values: Floats, cells: _Cells) -> Floats:
    """Several observations of a cell are the turns of one prompt: they are drawn together. [N, M] -> [cells, M]."""
    sums = np.zeros((cells.present.size, values.shape[1]))
    np.add.at(sums, cells.index, values)
    return sums


def _weights(cells: _Cells, resamples: int, seed: int) -> Iterator[Floats]:
    """How often each cell is drawn, [resamples, cells] in blocks that fit into memory."""
    rng = np.random.default_rng(seed)
    sessions, prompts, _ = cells.present.shape
    repeats = cells.present.sum(axis=2)
    shares = cells.present / np.maximum(repeats, 1)[:, :, None]
    block = max(1, _WEIGHTS_AT_ONCE // cells.present.size)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        session_draws = rng.multinomial(sessions, np.full(sessions, 1 / sessions), size)
        prompt_draws = rng.multinomial(prompts, np.full(prompts, 1 / prompts), size)
        draws = session_draws[:, :, None] * prompt_draws[:, None, :] * repeats
        yield rng.multinomial(draws, shares).reshape(size, -1).astype(float)


def _ratios(above: Floats, below: Floats) -> Floats:
    """[resamples, M]; not a number where there is nothing below."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)


def _interval(values: Floats) -> Interval | None:
    if np.isnan(values).any():
        return None
    low, high = np.percentile(values, _PERCENTILES)
    return Interval(float(low), float(high))
