"""Low-rank adapters on the target's own layers: trained next to frozen weights, merged into copies of them to decode.

LoRA, Hu et al. 2021, arXiv 2106.09685: W + (alpha / r) B A, B zero at the start. The target is never written to.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchctl.decoding.model.kernels import Form, Linear
from benchctl.decoding.model.layers import Attention, Layer, Mlp, project
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.losses import exit_losses
from benchctl.decoding.modules.low_rank import AdapterSettings, LowRank
from benchctl.decoding.modules.trainable import Numbered, TrainingBatch


def unsupported_layers(target: TargetInfo) -> str | None:
    """Why a method that changes the parts of the target's layers cannot run on it, or None."""
    if target.plain_layers:
        return None
    return f"it changes parts inside the target's layers, and layers of {target.family!r} differ from Llama's"


class TextAttention:
    """Each token of a batch sees those before it in its document, itself included, within the layer's window."""

    def __init__(self, batch: TrainingBatch) -> None:
        self._batch = batch
        self.rotary = batch.rotary(batch.positions.flatten()).unsqueeze(1)
        self._visible: dict[int | None, Tensor] = {}

    def mix(self, attention: Attention, queries: Tensor, held: Tensor) -> Tensor:
        """[rows, n, queries] what queries take from the values of ``held``, both as layers.project gives them."""
        rows, n = self._batch.tokens.shape
        keys, values = held.view(2, attention.kv_heads, rows, n, -1).transpose(1, 2).to(queries.dtype)
        mixed = F.scaled_dot_product_attention(
            queries.view(rows, n, attention.heads, -1).transpose(1, 2),
            keys,
            values,
            attn_mask=self._mask(attention.window),
            scale=attention.scale,
            enable_gqa=attention.heads != attention.kv_heads,
        )
        return mixed.transpose(1, 2).flatten(2)

    def _mask(self, window: int | None) -> Tensor:
        """[rows, 1, n, n] which tokens each may see."""
        if window not in self._visible:
            documents, positions = self._batch.documents, self._batch.positions
            visible = (documents[:, :, None] == documents[:, None, :]).tril()
            if window is not None:
                visible = visible & (positions[:, :, None] - positions[:, None, :] < window)
            self._visible[window] = visible[:, None]
        return self._visible[window]


def turned(x: Tensor, turn: Tensor) -> Tensor:
    """Values [.., heads, head_dim] whose halves are pairs, rotated by ``turn`` [.., 1, head_dim / 2]."""
    first, second = x.chunk(2, -1)
    cos, sin = turn.real, turn.imag
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class LayerAdapter(nn.Module):
    """W + (alpha / r) B A for each product of one layer, heads interleaved; experts and their router stay."""

    def __init__(self, info: TargetInfo, settings: AdapterSettings, device: torch.device) -> None:
        super().__init__()
        width, inner = info.hidden_size, info.mlp_size
        self.qkv = settings.low_rank(width, info.query_size + 2 * info.kv_size, device)
        self.out = settings.low_rank(info.query_size, width, device)
        self.gate_up = settings.low_rank(width, 2 * inner, device) if inner else None
        self.down = settings.low_rank(inner, width, device) if inner else None

    def merged(self, layer: Layer, form: Form) -> Layer:
        """A layer of its own with the sums as weights; ``form`` as for Linear."""
        attention, mlp = layer.attention, layer.mlp
        qkv, out = _sum(attention.qkv, self.qkv, form), _sum(attention.out, self.out, form)
        if isinstance(mlp, Mlp) and self.gate_up is not None and self.down is not None:
            mlp = replace(mlp, gate_up=_sum(mlp.gate_up, self.gate_up, form), down=_sum(mlp.down, self.down, form))
        return replace(layer, attention=replace(attention, qkv=qkv, out=out), mlp=mlp)


def _sum(product: Linear, trained: LowRank, form: Form) -> Linear:
    """The product by W + scale * B A, added up in float32 at least."""
    weight = product.weight  # of float16 weights a copy
    kind = torch.promote_types(weight.dtype, torch.float32)
    change = trained.scale * (trained.up.weight.to(kind) @ trained.down.weight.to(kind))
    return Linear((weight.to(kind) + change).to(weight.dtype), product.bias, form)


class Adapters(nn.Module):
    """One LayerAdapter for every layer of a target, by the layer's number from 1 on."""

    def __init__(self, info: TargetInfo, settings: AdapterSettings, device: torch.device) -> None:
        super().__init__()
        self.info = info
        self.layers = Numbered({n: LayerAdapter(info, settings, device) for n in range(1, info.layers + 1)})

    @torch.no_grad()
    def merge(self, target: Target) -> Target:
        """A view of ``target`` on merged layers; it holds all products of the layers a second time."""
        return target.with_blocks(
            [self.layers.of(n).merged(block, target.form) for n, block in enumerate(target.blocks, 1)]
        )


class AdaptedTexts:
    """The adapted layers over the texts of a batch, all tokens at once, documents apart."""

    def __init__(self, adapters: Adapters, batch: TrainingBatch) -> None:
        self._adapters, self._batch = adapters, batch
        self._attention = TextAttention(batch)

    def through(self, index: int, state: Tensor, passing: Tensor | None = None) -> Tensor:
        """[rows, n, width] after layer ``index``.

        Only the tokens where ``passing`` [rows, n] is true run it and are seen in it; the others keep their state. It
        costs as much as rows that are as long as the one with most of these tokens.
        """
        batch = self._batch
        if passing is None or bool((passing | (batch.documents < 0)).all()):
            return self._layer(index, state, self._attention)
        longest = int(passing.sum(1).max())
        places = passing.int().argsort(dim=1, descending=True, stable=True)[:, :longest]  # behind them some that do not
        runs = passing.gather(1, places)
        tokens, documents, positions = (
            each.gather(1, places) for each in (batch.tokens, batch.documents, batch.positions)
        )
        some = replace(batch, tokens=tokens, documents=documents.masked_fill(~runs, -1), positions=positions)
        wide = places.unsqueeze(-1).expand(-1, -1, state.shape[-1])
        before = state.gather(1, wide)
        after = self._layer(index, before, TextAttention(some)) if longest else before
        return state.scatter(1, wide, torch.where(runs.unsqueeze(-1), after, before))

    def _layer(self, index: int, state: Tensor, attention: TextAttention) -> Tensor:
        layer, adapter = self._batch.layer(index), self._adapters.layers.of(index + 1)
        normed = layer.attention_norm(state).flatten(0, 1)
        rotary = attention.rotary
        queries, held = project(layer.attention, normed, rotary, lambda flat: flat.add_(adapter.qkv(normed)))
        mixed = attention.mix(layer.attention, queries, held)
        state = state + layer.attention.out(mixed) + adapter.out(mixed)
        normed, mlp = layer.mlp_norm(state), layer.mlp
        if not isinstance(mlp, Mlp) or adapter.gate_up is None or adapter.down is None:
            return mlp.add_to(state.flatten(0, 1), normed.flatten(0, 1)).view_as(state)
        return adapted_mlp(state, normed, mlp, adapter.gate_up, adapter.down)


def adapted_mlp(state: Tensor, normed: Tensor, mlp: Mlp, gate_up: LowRank, down: LowRank) -> Tensor:
    """``state`` + the MLP of ``normed`` [rows, n, width], each of its products with an adapter."""
    gate, up = (mlp.gate_up(normed) + gate_up(normed)).chunk(2, -1)
    inner = mlp.act(gate) * up
    grown: Tensor = state + mlp.down(inner) + down(inner)
    return grown


def distil_losses(batch: TrainingBatch, state: Tensor) -> Tensor:
    """[rows, n] exit_losses of final residuals ``state`` [rows, n, width]: how far they are from the target's."""
    return exit_losses(batch, [batch.norm(state)])[0]


@torch.no_grad()
def agreements(batch: TrainingBatch, state: Tensor) -> Tensor:
    """[rows, n] whether final residuals ``state`` have the target's own likeliest next token."""
    return batch.picks(batch.norm(state)) == batch.teacher.top_tokens
