"""Layers beside a target that a drafter runs: their own cache of committed rows, and open rows of a draft behind it.

EAGLE, Li et al. 2024, arXiv 2401.15077: rows of the text are made of the target's features, rows of a draft of the
layers' own states. The latter are forgotten after each draft, and the accepted ones are made again of features.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from benchctl.decoding.kv.cache import Cache, Layout, branches
from benchctl.decoding.model.layers import Layer, run_layers


class SideLayers:
    """``layers`` with a cache of their own for one text.

    ``rotary`` [positions, head_dim / 2] are their rotations, ``like`` a tensor with their dtype and
    device. ``length`` counts committed rows; row i stands at position i.
    """

    def __init__(self, layers: Sequence[Layer], rotary: Tensor, like: Tensor, capacity: int) -> None:
        attention = layers[0].attention
        self._layers, self._rotary = layers, rotary
        self.cache = Cache(len(layers), attention.kv_heads, attention.head_dim, capacity, like)
        self.length = 0
        self._parents: list[int] = []

    def read(self, x: Tensor, normed: Tensor | None = None) -> Tensor:
        """Commit the next rows of the text: residuals ``x`` [rows, width] in, those after the last layer out.

        ``normed`` is as in run_layers. Open rows are forgotten.
        """
        self.forget()
        layout = Layout(self.length, range(self.length, self.length + len(x)), None, self._rotary)
        self.length += len(x)
        return run_layers(self._layers, 0, x, self.cache, layout, normed)

    def grow(self, x: Tensor, parents: Sequence[int], normed: Tensor | None = None) -> Tensor:
        """Run open rows in the same way; ``parents`` are open rows by number, -1 for the last committed row."""
        done, base = len(self._parents), self.length
        self._parents += parents
        positions: Sequence[int] = range(base, base + len(self._parents))
        ancestors: list[list[int]] | None = None
        if self._parents != list(range(-1, len(self._parents) - 1)):
            positions, ancestors = branches(base, self._parents)
        layout = Layout(base, positions, ancestors, self._rotary, done)
        return run_layers(self._layers, 0, x, self.cache, layout, normed)

    def forget(self) -> None:
        """Drop the open rows."""
        self._parents = []
        self.cache.truncate(self.length)

    def truncate(self, length: int) -> None:
        """Go back to the first ``length`` committed rows."""
        self.length = length
        self.forget()
