"""Kangaroo's adapter: its weights, as a layer that drafts, and over the texts of a training batch.

Liu et al. 2024, arXiv 2404.18911: RMSNorm, attention over the exit states of the text and a residual, then RMSNorm and
the target's LM head; no MLP. Ours: rotations and head size are the target's (authors' code: base 10000, width / heads).
The last norm is the target's times a trained gain, where theirs has a gain of its own. The first epsilon is fixed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchctl.decoding.model.kernels import Form, Linear, Norm
from benchctl.decoding.model.layers import Attention, Layer, Mlp, finish
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.adapters import TextAttention
from benchctl.decoding.modules.trainable import TrainingBatch

_EPS = 1e-5


class Adapter(nn.Module):
    """The trained weights; ``qkv`` has queries, keys and values, heads interleaved as in layers.Attention.

    ``gain`` multiplies the target's final norm. A fresh adapter adds nothing: it is the bare exit.
    """

    def __init__(self, info: TargetInfo) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(info.hidden_size, eps=_EPS)
        self.qkv = nn.Linear(info.hidden_size, 3 * info.query_size, bias=False)
        self.out = nn.Linear(info.query_size, info.hidden_size, bias=False)
        self.gain = nn.Parameter(torch.ones(info.hidden_size))
        nn.init.zeros_(self.out.weight)

    def layer(self, target: Target) -> Layer:
        """For decoding: exit states [rows, width] in, what the LM head reads out."""
        norm, attention = Norm(self.norm.weight, _EPS), self.attention(target.blocks[0].attention, target.form)
        return Layer(norm, attention, target.final_norm.scaled(self.gain), _NoMlp())

    def attention(self, of_target: Attention, form: Form = "plain") -> Attention:
        """With as many query heads as a layer of the target, and keys and values for each."""
        heads, head_dim = of_target.heads, of_target.head_dim
        qkv, out = (Linear(product.weight, None, form) for product in (self.qkv, self.out))
        return Attention(qkv, out, heads, heads, head_dim, scale=head_dim**-0.5)

    def normed(self, batch: TrainingBatch, exit_layer: int) -> Tensor:
        """[rows, n, width] what the head reads of the texts of a batch."""
        state, texts = batch.states[exit_layer].float(), TextAttention(batch)
        attention = self.attention(batch.layer(0).attention)
        queries, held = finish(attention, self.qkv(self.norm(state)).flatten(0, 1), texts.rotary)
        attended = state + self.out(texts.mix(attention, queries, held))
        return batch.norm(attended) * self.gain


class _NoMlp(Mlp):
    """In place of an MLP: a layer with it gives what its second norm gives, here the norm before the LM head."""

    def __init__(self) -> None:
        pass

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return x
