"""Keys and values of sequences that are decoded together, padded on the left so that all write the same slot next.

Padding on the left costs the slots before shorter prompts and nothing else: what a row may see changes only when a
sequence leaves, and a sliding window is the same last slots for all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from benchctl.decoding.cache import Cache


class BatchCache:
    """Slot i of a sequence holds its position i - offset, its offset being what it lacks of the longest prompt.

    length   slots in use, the same for every sequence and layer; positions: where the row comes that each writes next
    places   sequences stand at places 0, 1, ...; when one leaves, the last takes its place

    Per layer keys and values are [2, sequences, kv_heads, slots, head_dim]. A layer that was not run by every earlier
    row of every sequence cannot be run again: what a row sees of it would not be what it sees unbatched.
    """

    def __init__(self, prompts: Sequence[int], new_tokens: int) -> None:
        """For prompts of so many tokens each, and ``new_tokens`` rows more."""
        self.length = max(prompts)
        self._slots = self.length + new_tokens
        self._offsets = [self.length - tokens for tokens in prompts]
        self._kv: dict[int, Tensor] = {}
        self._ends: dict[int, int] = {}  # up to which slot a layer holds every row
        self._bias: Tensor | None = None

    @property
    def positions(self) -> list[int]:
        return [self.length - offset for offset in self._offsets]

    def take(self, place: int, cache: Cache) -> None:
        """Copy what a prompt left in the layers that all its rows ran."""
        tokens = self.positions[place]
        for layer, held in enumerate(cache.lengths):
            whole = held == tokens and not cache.absent[layer]
            self._ends[layer] = min(self._ends.get(layer, self.length), self.length if whole else 0)
            if whole:
                rows = cache.kv[layer][:, :tokens].view(2, cache.kv_heads, tokens, -1)
                kv = self._of(layer, rows)[:, place]
                kv[:, :, : self._offsets[place]].zero_()  # what is hidden must be finite, or it comes through the mask
                kv[:, :, self._offsets[place] : self.length].copy_(rows)

    def _of(self, layer: int, like: Tensor) -> Tensor:
        if layer not in self._kv:
            self._kv[layer] = like.new_empty(2, len(self._offsets), like.shape[1], self._slots, like.shape[3])
        return self._kv[layer]

    def write(self, layer: int, rows: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
        """Store the next row of every sequence, ``rows`` [2 * kv_heads, sequences, head_dim].

        Returns views of the keys and of the values that they may see, but for padding: [sequences * kv_heads, slots,
        head_dim] each. Raises ValueError for a layer that earlier rows have passed by.
        """
        if self._ends.get(layer) != self.length:
            raise ValueError(f"layer {layer} was not run by every earlier row, so the batch cannot run it")
        kv = self._kv[layer][:, : len(self._offsets)]
        kv[:, :, :, self.length].copy_(rows.view(2, kv.shape[2], kv.shape[1], -1).transpose(1, 2))
        self._ends[layer] = self.length + 1
        keys, values = kv[:, :, :, self._first(window) : self.length + 1].flatten(1, 2)
        return keys, values

    def bias(self, layer: int, window: int | None) -> Tensor | None:
        """[sequences * kv_heads, 1, slots] for what write returns: -inf in padding, else 0; None without padding."""
        first = self._first(window)
        if max(self._offsets) <= first:
            return None
        if self._bias is None:
            self._bias = self._padding(self._kv[layer])
        return self._bias[:, :, first : self.length + 1]

    def _first(self, window: int | None) -> int:
        """The first slot that is padding for some sequences at most, and within the window."""
        padding = min(self._offsets)
        return padding if window is None else max(padding, self.length + 1 - window)

    def _padding(self, kv: Tensor) -> Tensor:
        empty = torch.arange(self._slots) < torch.tensor(self._offsets)[:, None]
        bias = torch.zeros(empty.shape, dtype=kv.dtype).masked_fill_(empty, -torch.inf).to(kv.device)
        return bias.repeat_interleave(kv.shape[2], 0).unsqueeze(1)

    def advance(self) -> None:
        """The row is done: the next one is written behind it."""
        self.length += 1

    def leave(self, place: int) -> None:
        """Drop a sequence; the last one moves to its place."""
        last = len(self._offsets) - 1
        if place != last:
            for kv in self._kv.values():
                kv[:, place, :, : self.length].copy_(kv[:, last, :, : self.length])
            self._offsets[place] = self._offsets[last]
        del self._offsets[last]
        self._bias = None
