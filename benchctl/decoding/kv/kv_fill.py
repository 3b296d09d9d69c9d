"""Keys and values of a row that left early, made for the layers above its exit without running them.

Filling layer by layer would mostly take the time of starting small operations: norms, rotations and sums of all layers
are one operation each here, and queries, which nobody needs, are not made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from benchctl.decoding.kv.cache import Cache
from benchctl.decoding.kv.layout import Layout
from benchctl.decoding.model.kernels import Norm
from benchctl.decoding.model.layers import Attention, Layer, finish


class Filler:
    """The key and value products of ``layers``, which are the model's from ``first`` on."""

    def __init__(self, layers: Sequence[Layer], first: int) -> None:
        self._first = first
        self._norm = Norm.stacked([layer.attention_norm for layer in layers])
        attentions = [layer.attention for layer in layers]
        self._products = [attention.qkv.tail(attention.heads * attention.head_dim) for attention in attentions]
        self._attention = replace(attentions[0], heads=0, query_norm=None, key_norm=_key_norm(attentions))

    def fill(self, states: Tensor, cache: Cache, layout: Layout) -> None:
        """Those of the layout's one row, in each layer from its own of ``states`` [layers, width]."""
        normed = self._norm(states).unsqueeze(1)  # [layers, 1, width], each by the gain of its layer
        flat = torch.cat([product(x) for product, x in zip(self._products, normed, strict=True)])
        # To `finish` the layers are rows: all keys turn by the rotation of the row's one position.
        held = finish(self._attention, flat, layout.rotary)[1]
        for index in range(states.shape[0]):
            cache.write(self._first + index, layout.start, held[:, index : index + 1])


def _key_norm(attentions: Sequence[Attention]) -> Norm | None:
    """That of all layers, each for its own row of keys; None where keys are not normed."""
    norms = [attention.key_norm for attention in attentions if attention.key_norm is not None]
    if not norms:
        return None
    norm = Norm.stacked(norms)
    if attentions[0].norm_per_head:
        norm.gain = norm.gain.unsqueeze(1)  # [layers, 1, head_dim] for keys [layers, kv_heads, head_dim]
    return norm
