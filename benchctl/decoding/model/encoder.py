"""An encoder and what a decoder reads of it: cross attention, and layouts that bias by distance. T5 uses these.

An encoder reads the prompt once. Source: Raffel et al. 2020, arXiv 1910.10683, section 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchctl.decoding.kv.layout import Layout
from benchctl.decoding.model.kernels import Linear, Norm


class CrossAttention:
    """x -> x + what rows [rows, width] take from the encoder's states, after a norm; see ``read``."""

    def __init__(self, norm: Norm, query: Linear, keys_values: Linear, out: Linear, heads: int) -> None:
        self._norm, self._query, self._keys_values, self._out, self._heads = norm, query, keys_values, out, heads
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (self._norm.gain, self._query.weight, self._keys_values.weight, self._out.weight)

    def read(self, encoded: Tensor) -> None:
        """From now on look at ``encoded`` [tokens, width], the encoder's states of one prompt."""
        both = self._keys_values(encoded).view(encoded.shape[0], 2, self._heads, -1)
        # Keys [heads, head_dim, tokens], ready for the product with queries; values [heads, tokens, head_dim].
        self._keys, self._values = both[:, 0].permute(1, 2, 0).contiguous(), both[:, 1].transpose(0, 1).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        assert self._keys is not None and self._values is not None, "no prompt was read"
        # T5 does not scale scores by head_dim ** -0.5, and no position enters: every row sees the whole prompt.
        queries = self._query(self._norm(x)).view(x.shape[0], self._heads, -1).transpose(0, 1)
        scores = torch.bmm(queries, self._keys)  # [heads, rows, prompt tokens]
        wide = torch.promote_types(x.dtype, torch.float32)
        mixed = torch.bmm(scores.softmax(-1, dtype=wide).to(x.dtype), self._values)
        return self._out.add_to(x, mixed.transpose(0, 1).reshape(x.shape[0], -1))


class Encoder:
    """The model's own encoder, and what the decoder's layers keep of its answer."""

    def __init__(self, module: Any, crosses: Sequence[CrossAttention], start: int, biases: Tensor) -> None:
        """``start`` is the decoder's first token, ``biases`` [heads, distances] what a distance adds to a score."""
        self.start, self.biases = start, biases
        self._module, self._crosses = module, crosses

    def read(self, prompt_ids: Sequence[int]) -> None:
        """Encode a prompt: what every decoder layer looks at from now on."""
        ids = torch.tensor([list(prompt_ids)], device=self.biases.device)
        encoded = self._module(input_ids=ids).last_hidden_state[0]
        for cross in self._crosses:
            cross.read(encoded)

    def tensors(self) -> Iterator[Tensor]:
        """All weights beside those of the decoder's own layers."""
        yield from self._module.parameters()
        for cross in self._crosses:
            yield from cross.weights
        yield self.biases


class RelativeLayout(Layout):
    """A layout whose scores depend on how far apart two rows are: ``biases`` [heads, distances]."""

    def __init__(self, biases: Tensor, *where: Any) -> None:
        super().__init__(*where)
        self._biases = biases
        self._by_head: Tensor | None = None

    def bias(self, window: int | None, dtype: torch.dtype, copies: int = 1) -> Tensor:
        """[heads, rows, slots], -inf where a row may not look; there are no windows and no groups of heads."""
        if self._by_head is None:
            visible = super().bias(None, dtype)
            apart = self._distances()
            self._by_head = self._biases[:, apart] if visible is None else self._biases[:, apart] + visible
        return self._by_head

    def _distances(self) -> Tensor:
        """[rows, slots] how far each slot lies before each row; 0 where it lies behind, and is not seen."""
        slots = torch.tensor([*range(self._base), *self._positions], device=self._device)
        return (slots[self._base + self._skip :, None] - slots[None, :]).clamp_(min=0)


def distance_biases(weight: Tensor, distances: int, furthest: int) -> Tensor:
    """[heads, distances] from T5's table [buckets, heads].

    With n buckets, h = n / 2 and distance d: bucket d for d < h, else h + floor(h ln(d / h) / ln(furthest / h)), at
    most n - 1. Example of 32 buckets up to 128: distance 5 is bucket 5, 16 is 16, 32 is 21, 128 and more are 31.
    """
    single = weight.shape[0] // 2
    far = torch.arange(distances, device=weight.device)
    steps = torch.log(far.clamp(min=1).float() / single) / math.log(furthest / single) * (weight.shape[0] - single)
    grown = (single + steps.long()).clamp(max=weight.shape[0] - 1)
    return weight[torch.where(far < single, far, grown)].t().contiguous()
