"""Where the rows of a pass stand, and which rows each may see."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor


class Layout:
    """Where rows stand: their first cache slot, the position of each, and which slots each may see.

    base        cache slot of the first open row; every slot before it is visible to all rows
    positions   [open rows] position of each open row in the text
    ancestors   per open row the open rows it may see, itself included; None for a chain
    skip        open rows that the layers in question have run already; the rest are the rows of this pass
    companions  of so many of the last rows another row runs along behind all of them, which stands where they stand,
                sees what they see, and enters no cache
    hiding      [slots] -inf for those that hold nothing in the layers in question, so that no row may see them, else 0;
                None where all hold something
    """

    def __init__(
        self,
        base: int,
        positions: Sequence[int],
        ancestors: Sequence[Sequence[int]] | None,
        rotary: Tensor,
        skip: int = 0,
        companions: int = 0,
        hiding: Tensor | None = None,
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
        self._companions = companions
        self._hiding = hiding
        self.rotary = _with_companions(rotary[index].unsqueeze(1), companions)
        self._only: Tensor | None = None
        self._bias: dict[tuple[int | None, int], Tensor] = {}

    def only(self, rows: Sequence[int]) -> Layout:
        """The same for these rows of the pass alone, ascending; without companions."""
        twin = copy.copy(self)
        twin._only, twin._bias = torch.tensor(rows), {}
        twin.rotary = self.rotary[twin._only.to(self._device)]
        return twin

    def bias(self, window: int | None, dtype: torch.dtype, copies: int = 1) -> Tensor | None:
        """[copies * (rows + companions), slots] 0 where a row may look, else -inf; None when all may see everything.

        [1, slots] where all rows may see the same.
        """
        if window is not None and self._last < window:
            window = None
        if self._is_plain(window):
            return None if self._hiding is None else self._hiding.unsqueeze(0)
        key = (window, copies)
        if key not in self._bias:
            built = self._build(window, dtype)
            self._bias[key] = built if copies == 1 else built.repeat(copies, 1)
        return self._bias[key]

    def _is_plain(self, window: int | None) -> bool:
        """Whether there is but one row, which sees all before it that are there."""
        return self.rows == 1 and self._ancestors is None and window is None

    def _build(self, window: int | None, dtype: torch.dtype) -> Tensor:
        visible = torch.ones(self.rows, self.start + self.rows, dtype=torch.bool)
        if self._ancestors is None:
            visible.tril_(self.start)
        else:
            visible[:, self._base :] = False
            for row, seen in enumerate(self._ancestors[self._skip :]):
                visible[row, [self._base + other for other in seen]] = True
        if window is not None:
            positions = torch.tensor(list(self._positions))
            slots = torch.cat((torch.arange(self._base), positions))
            visible &= positions[self._skip :, None] - slots[None, :] < window
        if self._only is not None:
            visible = visible[self._only]
        bias = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)
        bias = _with_companions(bias, self._companions).to(self._device)
        return bias if self._hiding is None else bias.add_(self._hiding)


def _with_companions(lines: Tensor, companions: int) -> Tensor:
    """[rows + companions, ...]: the lines of the last rows once more."""
    return torch.cat((lines, lines[-companions:])) if companions else lines
