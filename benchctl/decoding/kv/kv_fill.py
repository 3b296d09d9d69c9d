"""What the layers above an exit hold of a row that left there, and how keys and values are made without running it.

Filling layer by layer would mostly take the time of starting small operations: norms, rotations and sums of all layers
are one operation each here, and queries, which nobody needs, are not made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchctl.decoding.kv.cache import Cache
from benchctl.decoding.kv.layout import Layout
from benchctl.decoding.model.kernels import Norm
from benchctl.decoding.model.layers import Attention, Layer, finish

if TYPE_CHECKING:  # the target, which the stream runs, fills
    from benchctl.decoding.adaptive import View
    from benchctl.decoding.kv.stream import Stream


def copy_h(stream: Stream, view: View) -> None:
    """Of the slow state at the exit, in every layer: state propagation (CALM 2207.07061, section 3.1)."""
    stream.fill(view.layer)


def copy_p(stream: Stream, view: View) -> None:
    """Of the state that spoke at the exit, in every layer."""
    stream.fill(view.layer, view.state)


def deferred_exact(stream: Stream, view: View) -> None:
    """The row's own, computed with the next row that goes deeper (DEED 2311.08623)."""


def absent(stream: Stream, view: View) -> None:
    """Nothing: later rows do not see it there (as Mixture-of-Depths, 2404.02258, has it)."""
    stream.skip(view.layer)


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
