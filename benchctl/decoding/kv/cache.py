"""Keys and values of one sequence, preallocated per layer; layers may hold different numbers of rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_SLACK_ROWS = 64  # room for the rows of a draft beyond the text, so that trees rarely make the cache grow


class Slots(NamedTuple):
    """Views of one layer: the slots ``new`` [2 * kv_heads, rows, head_dim] that rows will take, keys first, and keys
    and values [kv_heads, slots, head_dim] of all slots up to them."""

    new: Tensor
    keys: Tensor
    values: Tensor


class Encoded(NamedTuple):
    """Keys [heads, head_dim, tokens] and values [heads, tokens, head_dim] of a prompt, for one cross attention."""

    keys: Tensor
    values: Tensor


class Cache:
    """Slot i of a layer holds position i once rows are committed; drafted rows follow in row order.

    kv[layer] is [2 * kv_heads, capacity, head_dim], keys first: one copy per layer writes both. lengths[layer] counts
    the rows the layer is done with. It never grows with depth: a row runs layer l before l + 1. absent[layer] are those
    of its slots, ascending, that hold nothing: rows that passed it by. Nobody may look there. _finite[layer] counts the
    leading slots that hold numbers: what memory held before may be none, even where hidden. _absent_bias[layer] is
    [capacity], -inf at the first _marked[layer] of its absent slots, else 0; the rest are written when the bias is next
    needed, so that a slot that rows pass by costs one write at most. encoded[layer] is the prompt, where an encoder
    reads it.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, capacity: int, like: Tensor) -> None:
        self._like = like
        self.encoded: Sequence[Encoded] = ()
        self.kv_heads = kv_heads
        self.capacity = capacity + _SLACK_ROWS
        self._all = like.new_empty(layers, 2 * kv_heads, self.capacity, head_dim)
        self.kv = self._all.unbind(0)
        self.lengths = [0] * layers
        self.absent: list[list[int]] = [[] for _ in range(layers)]
        self._finite = [0] * layers
        self._absent_bias: list[Tensor | None] = [None] * layers
        self._marked = [0] * layers

    def write(self, layer: int, start: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Store ``rows`` [2 * kv_heads, rows, head_dim] at slot ``start``.

        Returns views of the keys and of the values, [kv_heads, slots, head_dim] each, of all slots up to them.
        """
        (slots,) = self.open(layer, layer + 1, start, rows.shape[1])
        slots.new.copy_(rows)
        return slots.keys, slots.values

    def open(self, first: int, last: int, start: int, count: int) -> Iterator[Slots]:
        """For layers ``first`` .. ``last`` - 1 the slots that ``count`` rows from slot ``start`` on take.

        All of them must be written. Views of all layers are made at once: one by one they would take longer.
        """
        end = start + count
        if end > self.capacity:
            self._grow(end)
        for layer in range(first, last):
            self._make_finite(layer, start)  # slots before `start` are read from now on, those that rows passed by too
            self._finite[layer] = max(self._finite[layer], end)
            self._forget_absent(layer, start)
            self.lengths[layer] = end
        held = self._all[first:last].narrow(2, 0, end)
        new, (keys, values) = held.narrow(2, start, count), held.split_with_sizes((self.kv_heads, self.kv_heads), 1)
        return map(Slots, new.unbind(0), keys.unbind(0), values.unbind(0))

    def skip(self, layer: int, slot: int) -> None:
        """Rows up to that of ``slot`` that the layer is not done with pass it by; nothing is computed or written."""
        if slot >= self.capacity:
            self._grow(slot + 1)
        self.absent[layer] += range(self.lengths[layer], slot + 1)
        self.lengths[layer] = slot + 1

    def leave_out(self, layer: int, slots: Sequence[int]) -> None:
        """Of the rows just written these slots, ascending, hold nothing: they passed the layer by."""
        self.absent[layer] += slots

    def absent_bias(self, layer: int, end: int) -> Tensor | None:
        """[end] added to attention scores: -inf at slots that hold nothing in the layer, else 0; None without such.

        A view, right until slots before ``end`` are forgotten or moved.
        """
        if end > self.capacity:
            self._grow(end)
        row, absent = self._absent_bias[layer], self.absent[layer]
        if not absent:
            return None
        if row is None:
            row = self._absent_bias[layer] = self._like.new_zeros(self.capacity)
        if fresh := absent[self._marked[layer] :]:
            first, count = fresh[0], len(fresh)
            if fresh[-1] - first < count:  # adjacent slots: one write
                row.narrow(0, first, count).fill_(-torch.inf)
            else:
                row.index_fill_(0, torch.tensor(fresh, device=row.device), -torch.inf)
            self._marked[layer] = len(absent)
        return row[:end]

    def _make_finite(self, layer: int, end: int) -> None:
        """Zeros in slots that rows passed by, before they are read: a weight of 0 hides numbers only."""
        done = self._finite[layer]
        if done < end:
            self.kv[layer].narrow(1, done, end - done).zero_()
            self._finite[layer] = end

    def _forget_absent(self, layer: int, start: int) -> None:
        absent = self.absent[layer]
        if not absent or absent[-1] < start:
            return
        del absent[bisect_left(absent, start) :]
        row = self._absent_bias[layer]
        if row is not None and self._marked[layer] > len(absent):
            self._marked[layer] = len(absent)
            row[start:] = 0

    def _grow(self, needed: int) -> None:
        self.capacity = max(needed + _SLACK_ROWS, 2 * self.capacity)
        old = self._all
        layers, heads, slots, head_dim = old.shape
        self._all = old.new_empty(layers, heads, self.capacity, head_dim)
        self._all[:, :, :slots].copy_(old)  # all of it: rows may have left keys and values where they still wait
        self.kv = self._all.unbind(0)
        self._absent_bias, self._marked = [None] * len(self.kv), [0] * len(self.kv)

    def hold(self, count: int) -> None:
        """Forget all rows; each layer now has ``count`` from slot 0 on, which `take` writes before they are read."""
        if count > self.capacity:
            self._grow(count)
        self.lengths, self._finite = [count] * len(self.kv), [count] * len(self.kv)

    def take(self, layer: int, source: Cache, slots: Tensor) -> None:
        """Copies of ``slots`` of ``source``, [n] for all heads or [kv_heads, n], into the first slots of a layer.

        None of them may be absent. Keys stay rotated for the positions that they had.
        """
        kv, held = source.kv[layer], self.kv[layer][:, : slots.shape[-1]]
        if slots.ndim == 1:
            held.copy_(kv.index_select(1, slots))
        else:
            index = slots.repeat(2, 1).unsqueeze(-1).expand(-1, -1, kv.shape[-1])
            held.copy_(kv.gather(1, index))

    def keep(self, start: int, slots: Sequence[int]) -> None:
        """From slot ``start`` on, keep only ``slots`` (ascending), moved together; later rows are forgotten.

        A layer that has not run some of the kept rows keeps those it has.
        """
        if list(slots) == list(range(start, start + len(slots))):
            self.truncate(start + len(slots))
            return
        longest = max(self.lengths)
        for layer in range(len(self.kv)):
            self._make_finite(layer, longest)
        there = [slot for slot in slots if slot < longest]
        index = torch.tensor(there, dtype=torch.int64, device=self._all.device)
        # All layers in one copy: slots beyond the rows of a layer move too, and are not read. Moves may overlap.
        self._all.narrow(2, start, len(there)).copy_(self._all.index_select(2, index))
        for layer, length in enumerate(self.lengths):
            held = [slot for slot in slots if slot < length]
            moved = [start + offset for offset, slot in enumerate(held) if slot in self.absent[layer]]
            self._forget_absent(layer, start)
            self.absent[layer] += moved
            self.lengths[layer] = min(length, start + len(held))

    def truncate(self, length: int) -> None:
        """Forget every row from slot ``length`` on."""
        self.lengths = [min(held, length) for held in self.lengths]
        for layer in range(len(self.absent)):
            self._forget_absent(layer, length)


def branches(base: int, parents: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Positions of the rows of a tree behind ``base`` slots, and for each row the rows that it sees.

    Parents -1, 0, 0 behind 5 slots: positions 5, 6, 6; rows [0], [0, 1], [0, 2].
    """
    positions, ancestors = list[int](), list[list[int]]()
    for row, parent in enumerate(parents):
        positions.append(base if parent < 0 else positions[parent] + 1)
        ancestors.append([*(ancestors[parent] if parent >= 0 else []), row])
    return positions, ancestors


class Layout:
    """Where rows stand: their first cache slot, the position of each, and which slots each may see.

    base         cache slot of the first open row; every slot before it is visible to all rows
    positions    [open rows] position of each open row in the text
    ancestors    per open row the open rows it may see, itself included; None for a chain
    skip         open rows that the layers of this pass have run already; the rest are the rows of this pass
    absent_bias  [slots] -inf at slots that hold nothing in the layers of this pass, since rows passed these layers by,
                 else 0; None where all slots hold something
    windows      whether the windows of layers hide slots; not where slots before the first open row were chosen, whose
                 numbers are no positions
    tokens       ids of the rows of this pass, where they stand for tokens of a text
    last_only    whether nothing but the last row's result is read
    rotary       [positions, head_dim / 2] rotations, table 0
    more_rotary  tables 1 and on, for targets whose layers rotate differently
    choose       if given, called for each layer with its index and the queries of its rows, before they look: it may
                 still write slots before the first open row
    """

    def __init__(
        self,
        base: int,
        positions: Sequence[int],
        ancestors: Sequence[Sequence[int]] | None,
        rotary: Tensor,
        skip: int = 0,
        more_rotary: Sequence[Tensor] = (),
    ) -> None:
        self.start = base + skip
        self.rows = len(positions) - skip
        self._base, self._skip = base, skip
        self._positions = positions
        self._ancestors = ancestors
        self._device = rotary.device
        self._last = positions[-1] if ancestors is None else max(positions)
        if self._last >= rotary.shape[0]:
            raise ValueError(f"rows reach position {self._last}, beyond the context of {rotary.shape[0]}")
        if ancestors is None:
            index: slice | Tensor = slice(positions[skip], positions[skip] + self.rows)
        else:
            index = torch.tensor(list(positions[skip:]), device=rotary.device)
        self.absent_bias: Tensor | None = None
        self.windows = True
        self.tokens: Sequence[int] | None = None
        self.last_only = False
        self.choose: Callable[[int, Tensor], None] | None = None
        self.rotary = rotary[index].unsqueeze(1)
        self._index, self._more_rotary = index, more_rotary
        self._turns: dict[int, Tensor] = {}
        self._bias: dict[tuple[int | None, int], Tensor] = {}

    @property
    def is_tree(self) -> bool:
        """Whether the open rows branch."""
        return self._ancestors is not None

    @property
    def positions(self) -> Sequence[int]:
        """The position of each row of this pass."""
        return self._positions[self._skip :]

    def turn(self, rope: int) -> Tensor:
        """[rows, 1, head_dim / 2] rotations of the rows by table ``rope``."""
        return self._more_rotary[rope - 1][self._index].unsqueeze(1) if rope else self.rotary

    def turns(self, rotated: int, heads: int, rope: int = 0) -> Tensor:
        """[rows, heads * head_dim / 2] rotations of the first ``rotated`` heads by table ``rope``; 1 for the others."""
        if rope not in self._turns:
            pairs = self.rotary.shape[-1]
            self._turns[rope] = self.rotary.new_ones(self.rows, heads, pairs)
            self._turns[rope][:, :rotated] = self.turn(rope)
        return self._turns[rope].view(self.rows, -1)

    def bias(self, window: int | None, dtype: torch.dtype, copies: int = 1) -> Tensor | None:
        """[copies * rows, slots], or [1, slots] for all: 0 where a row may look, else -inf; None for 0 everywhere."""
        if window is not None and (not self.windows or self._last < window):
            window = None
        if self.rows == 1 and self._ancestors is None and window is None:  # one row sees all before it that are there
            return None if self.absent_bias is None else self.absent_bias.unsqueeze(0)
        key = (window, copies)
        if key not in self._bias:
            built = self._build(window, dtype)
            self._bias[key] = built if copies == 1 else built.repeat(copies, 1)
        return self._bias[key]

    def _build(self, window: int | None, dtype: torch.dtype) -> Tensor:
        visible = torch.ones(self.rows, self.start + self.rows, dtype=torch.bool)
        if self._ancestors is None:
            visible.tril_(self.start)  # row r sees slots 0 .. start + r
        else:
            # Siblings stand at one position: only the own branch is seen. One write, since each takes microseconds.
            lines = [[False] * len(self._positions) for _ in range(self.rows)]
            for line, seen in zip(lines, self._ancestors[self._skip :], strict=True):
                for ancestor in seen:
                    line[ancestor] = True
            visible[:, self._base :] = torch.tensor(lines)
        if window is not None:
            positions = torch.tensor(list(self._positions))
            slots = torch.cat((torch.arange(self._base), positions))  # a committed slot's number is its position
            visible &= positions[self._skip :, None] - slots[None, :] < window
        bias = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf).to(self._device)
        return bias if self.absent_bias is None else bias.add_(self.absent_bias)
