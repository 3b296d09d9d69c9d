"""The cache of keys and values, on numbers that can be read off."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from benchctl.decoding.kv.cache import Cache


def new_cache(layers: int = 2, capacity: int = 4) -> Cache:
    return Cache(layers, kv_heads=1, head_dim=1, capacity=capacity, like=torch.zeros(0, dtype=torch.float64))


def kv(*keys: float) -> Tensor:
    """[2, rows, 1]: these keys, and ten times as much for the values."""
    return torch.tensor([keys, [10.0 * key for key in keys]], dtype=torch.float64)[..., None]


def keys(cache: Cache, layer: int) -> list[float]:
    return [float(key) for key in cache.kv[layer][0, : cache.lengths[layer], 0]]


def values(cache: Cache, layer: int) -> list[float]:
    return [float(value) for value in cache.kv[layer][1, : cache.lengths[layer], 0]]


def filled(*rows: int) -> Cache:
    """Layer n holds rows 0, 1, ... up to its number."""
    cache = new_cache(layers=len(rows))
    for layer, count in enumerate(rows):
        cache.write(layer, 0, kv(*(float(row) for row in range(count))))
    return cache


def test_a_write_gives_back_all_rows_up_to_its_last() -> None:
    cache = new_cache()
    cache.write(0, 0, kv(1, 2))
    seen_keys, seen_values = cache.write(0, 2, kv(3))
    assert seen_keys.shape == seen_values.shape == (1, 3, 1)
    assert seen_keys.flatten().tolist() == [1, 2, 3]
    assert seen_values.flatten().tolist() == [10, 20, 30]


def test_layers_hold_different_numbers_of_rows() -> None:
    cache = filled(4, 1)
    assert cache.lengths == [4, 1]
    assert (keys(cache, 0), keys(cache, 1)) == ([0, 1, 2, 3], [0])


def test_writing_over_drafted_rows_forgets_what_came_after() -> None:
    cache = filled(4)
    cache.write(0, 1, kv(7))
    assert keys(cache, 0) == [0, 7]


def test_a_write_beyond_the_capacity_keeps_every_layer() -> None:
    cache = filled(3, 2)
    room = cache.capacity
    cache.write(0, 3, kv(*(float(row) for row in range(3, room + 5))))
    assert cache.capacity > room
    assert keys(cache, 0) == list(range(room + 5))
    assert values(cache, 0) == [10.0 * row for row in range(room + 5)]
    assert keys(cache, 1) == [0, 1]
    cache.write(1, 2, kv(*(float(row) for row in range(2, room + 5))))
    assert keys(cache, 1) == list(range(room + 5))


def test_views_survive_a_later_growth() -> None:
    cache = filled(3)
    seen, _ = cache.write(0, 3, kv(3))
    cache.write(0, 4, kv(*([9.0] * cache.capacity)))
    assert seen.flatten().tolist() == [0, 1, 2, 3]


def test_keep_moves_the_rows_of_a_path_together_in_every_layer() -> None:
    cache = filled(7, 7)
    cache.keep(2, [2, 4, 5])
    for layer in (0, 1):
        assert keys(cache, layer) == [0, 1, 2, 4, 5]
        assert values(cache, layer) == [0, 10, 20, 40, 50]


@pytest.mark.parametrize(
    ("rows", "start", "slots", "kept"),
    [
        pytest.param((5, 5), 1, [1, 2], [[0, 1, 2], [0, 1, 2]], id="a prefix"),
        pytest.param((5, 2), 3, [], [[0, 1, 2], [0, 1]], id="nothing"),
        pytest.param((7, 5, 2), 2, [2, 4, 6], [[0, 1, 2, 4, 6], [0, 1, 2, 4], [0, 1]], id="layers lack kept rows"),
        pytest.param((6, 3), 2, [2, 3, 4], [[0, 1, 2, 3, 4], [0, 1, 2]], id="in place, a layer lacks rows"),
    ],
)
def test_keep_leaves_each_layer_the_kept_rows_that_it_has(
    rows: tuple[int, ...], start: int, slots: list[int], kept: list[list[float]]
) -> None:
    cache = filled(*rows)
    cache.keep(start, slots)
    assert [keys(cache, layer) for layer in range(len(rows))] == kept


def test_truncate_shortens_only_what_is_longer() -> None:
    cache = filled(6, 3)
    cache.truncate(4)
    assert cache.lengths == [4, 3]


def test_rows_written_after_truncation_follow_what_is_left() -> None:
    cache = filled(6)
    cache.truncate(2)
    seen, _ = cache.write(0, 2, kv(8))
    assert seen.flatten().tolist() == [0, 1, 8]


def test_a_row_that_passes_a_layer_by_is_done_with_and_holds_nothing_there() -> None:
    """Nothing is zero: what memory happened to hold, infinities among it, must not come through a mask."""
    cache = filled(3, 3)
    cache.kv[1].fill_(float("inf"))
    cache.skip(1, 3)
    cache.write(0, 3, kv(3))
    assert (cache.lengths, cache.absent) == ([4, 4], [[], [3]])
    cache.write(1, 4, kv(4))
    assert cache.kv[1][:, 3].tolist() == [[0.0], [0.0]]


def test_absent_rows_are_forgotten_with_the_others() -> None:
    cache = filled(3, 3)
    for slot in (3, 4):
        cache.skip(1, slot)
    cache.write(1, 4, kv(4))
    assert cache.absent == [[], [3]]
    cache.truncate(3)
    assert cache.absent == [[], []]


def test_absent_rows_move_with_the_rows_that_are_kept() -> None:
    cache = filled(7, 2)
    for slot in (2, 3, 4, 5):
        cache.skip(1, slot)
    cache.write(1, 6, kv(6))
    cache.keep(3, [4, 6])
    assert (cache.lengths, cache.absent) == ([5, 5], [[], [2, 3]])
    assert keys(cache, 1) == [0, 1, 0, 0, 6]


def hidden(cache: Cache, layer: int, end: int) -> list[int] | None:
    """The slots that are hidden from who looks at the first ``end``."""
    bias = cache.absent_bias(layer, end)
    if bias is None:
        return None
    assert bias.shape == (end,) and set(bias.tolist()) <= {0.0, -math.inf}
    return bias.isinf().nonzero().flatten().tolist()


def test_what_hides_absent_rows_follows_them() -> None:
    cache = filled(3, 3)
    assert hidden(cache, 1, 4) is None
    cache.skip(1, 4)
    assert hidden(cache, 1, 6) == [3, 4]
    cache.write(1, 5, kv(5, 6, 7))
    cache.leave_out(1, [5, 7])
    assert (hidden(cache, 1, 9), hidden(cache, 0, 9)) == ([3, 4, 5, 7], None)
    cache.truncate(5)
    assert hidden(cache, 1, 9) == [3, 4]
    cache.write(1, 4, kv(4))
    cache.skip(1, 6)
    cache.truncate(6)
    assert hidden(cache, 1, 9) == [3, 5]
    cache.truncate(3)
    assert hidden(cache, 1, 9) is None
    cache.skip(1, 3)
    assert hidden(cache, 1, 9) == [3]


def test_what_hides_absent_rows_moves_and_grows_with_them() -> None:
    cache = filled(7, 2)
    cache.skip(1, 5)
    cache.write(1, 6, kv(6))
    assert hidden(cache, 1, 7) == [2, 3, 4, 5]
    cache.keep(3, [4, 6])
    assert hidden(cache, 1, 5) == [2, 3]
    room = cache.capacity
    cache.skip(1, room + 3)
    assert hidden(cache, 1, room + 4) == [2, 3, *range(5, room + 4)]


def test_the_cache_has_the_dtype_of_the_model() -> None:
    assert Cache(1, 2, 3, 4, like=torch.zeros(0, dtype=torch.bfloat16)).kv[0].dtype == torch.bfloat16
