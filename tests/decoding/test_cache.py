"""The cache of keys and values against plain lists."""

from __future__ import annotations

import math
import random
from itertools import count

import pytest
import torch
from torch import Tensor

from benchctl.decoding.kv.cache import Cache

LAYERS = 3
Row = float | None  # its key, or nothing where it passed the layer by


def new_cache() -> Cache:
    """What memory happened to hold, NaN among it, must not come through a mask."""
    cache = Cache(LAYERS, kv_heads=1, head_dim=1, capacity=4, like=torch.zeros(0, dtype=torch.float64))
    for kv in cache.kv:
        kv.fill_(math.nan)
    return cache


def kv(keys: list[float]) -> Tensor:
    """[2, rows, 1]: these keys, and ten times as much for the values."""
    return torch.tensor([keys, [10.0 * key for key in keys]], dtype=torch.float64)[..., None]


def check(cache: Cache, layer: int, rows: list[Row]) -> None:
    there = [slot for slot, row in enumerate(rows) if row is not None]
    assert (cache.lengths[layer], cache.absent[layer]) == (len(rows), sorted(set(range(len(rows))) - set(there)))
    assert torch.equal(cache.kv[layer][:, there], kv([row for row in rows if row is not None]))


def check_hidden(cache: Cache, layer: int, rows: list[Row]) -> None:
    """Slots that hold nothing are hidden from who looks at two more than there are."""
    bias = cache.absent_bias(layer, len(rows) + 2)
    expected = [-math.inf if row is None else 0.0 for row in rows]
    assert (None if bias is None else bias.tolist()) == ([*expected, 0.0, 0.0] if None in rows else None)


@pytest.mark.parametrize("seed", range(30))
def test_rows_written_skipped_kept_and_forgotten_at_random_are_those_of_plain_lists(seed: int) -> None:
    chance, numbers, cache = random.Random(seed), count(1), new_cache()
    plain: list[list[Row]] = [[] for _ in range(LAYERS)]
    for _ in range(60):
        layer = chance.randrange(LAYERS)
        rows, longest = plain[layer], max(map(len, plain))
        does = chance.choice(("write", "write", "skip", "keep", "truncate"))
        if does == "write":
            start = chance.choice((len(rows), chance.randint(0, len(rows))))
            written = [float(next(numbers)) for _ in range(chance.choice((1, 2, 3, 40)))]
            keys, values = cache.write(layer, start, kv(written))
            assert keys.shape == values.shape == (1, start + len(written), 1)
            assert keys.isfinite().all() and values.isfinite().all()
            rows[start:] = written
            left_out = [slot for slot in range(start, len(rows)) if chance.random() < 0.2]
            cache.leave_out(layer, left_out)
            for slot in left_out:
                rows[slot] = None
        elif does == "skip":
            last = len(rows) + chance.choice((0, 1, 40))
            cache.skip(layer, last)
            rows += [None] * (last + 1 - len(rows))
        elif does == "keep":
            start = chance.randint(0, longest)
            slots = sorted(chance.sample(range(start, longest), chance.randint(0, min(4, longest - start))))
            slots = list(range(start, start + len(slots))) if chance.random() < 0.3 else slots
            cache.keep(start, slots)
            plain = [[*rows[:start], *(rows[slot] for slot in slots if slot < len(rows))] for rows in plain]
        else:
            length = chance.randint(0, longest + 1)
            cache.truncate(length)
            plain = [rows[:length] for rows in plain]
        for index, rows in enumerate(plain):
            check(cache, index, rows)
            if chance.random() < 0.5:
                check_hidden(cache, index, rows)


def test_views_survive_a_later_growth() -> None:
    cache = new_cache()
    seen, _ = cache.write(0, 0, kv([1, 2, 3]))
    cache.write(0, 3, kv([9.0] * cache.capacity))
    assert seen.flatten().tolist() == [1, 2, 3]


def test_passing_by_writes_nothing_until_somebody_comes_to_read() -> None:
    """And then zeros: a weight of 0 times what memory happened to hold need not be 0."""
    cache = new_cache()
    cache.write(1, 0, kv([1]))
    cache.skip(1, 3)
    assert cache.kv[1][0, 1:4].isnan().all()
    keys, _ = cache.write(1, 4, kv([1]))
    assert keys.flatten().tolist() == [1, 0, 0, 0, 1]


def test_the_cache_has_the_dtype_of_the_model() -> None:
    assert Cache(1, 2, 3, 4, like=torch.zeros(0, dtype=torch.bfloat16)).kv[0].dtype == torch.bfloat16
