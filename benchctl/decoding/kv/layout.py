"""Where the rows of a pass stand, and which rows each may see."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Layout:
    """Where rows stand: their first cache slot, the position of each, and which slots each may see.

    base         cache slot of the first open row; every slot before it is visible to all rows
    positions    [open rows] position of each open row in the text
    ancestors    per open row the open rows it may see, itself included; None for a chain
    skip         open rows that the layers of this pass have run already; the rest are the rows of this pass
    absent_bias  [slots] -inf at slots that hold nothing in the layers of this pass, since rows passed these layers by,
                 else 0; None where all slots hold something
    """

    def __init__(
        self,
        base: int,
        positions: Sequence[int],
        ancestors: Sequence[Sequence[int]] | None,
        rotary: Tensor,
        skip: int = 0,
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
        self.rotary = rotary[index].unsqueeze(1)
        self._bias: dict[tuple[int | None, int], Tensor] = {}

    def bias(self, window: int | None, dtype: torch.dtype, copies: int = 1) -> Tensor | None:
        """[copies * rows, slots] 0 where a row may look, else -inf; None when all may see everything.

        [1, slots] where all rows may see the same.
        """
        if window is not None and self._last < window:
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
            visible[:, self._base :] = False  # siblings stand at one position: only the own branch is seen
            for row, seen in enumerate(self._ancestors[self._skip :]):
                visible[row, [self._base + ancestor for ancestor in seen]] = True
        if window is not None:
            positions = torch.tensor(list(self._positions))
            slots = torch.cat((torch.arange(self._base), positions))  # a committed slot's number is its position
            visible &= positions[self._skip :, None] - slots[None, :] < window
        bias = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf).to(self._device)
        return bias if self.absent_bias is None else bias.add_(self.absent_bias)
