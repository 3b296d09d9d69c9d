"""Training pseudo-rows behind the tokens of whole texts: gradients go through the target's layers, which stand still.

The soft labels of Chen et al. 2405.18628, section 3.2: a pseudo-row learns the target's own distribution at its place,
and row j counts 0.8 ** (j - 1). Ours: at each step only a random share of the tokens carries pseudo-rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.model.layers import Mlp, project
from benchctl.decoding.modules.adapters import adapted_mlp
from benchctl.decoding.modules.losses import exit_losses
from benchctl.decoding.modules.trainable import Tally, TrainingBatch, tally

from .rows import PseudoRows

_FADE = 0.8  # what a pseudo-row counts in the loss, as a share of the one before


class RidingRows:
    """Pseudo-rows behind the tokens at ``places`` [tokens] of all rows of a batch, all in one pass."""

    def __init__(self, module: PseudoRows, batch: TrainingBatch, places: Tensor) -> None:
        self._module, self._batch, self._places = module, batch, places
        count, device = module.rows, places.device
        behind = torch.arange(1, count + 1, device=device)
        # A pseudo-row beyond its document has no weight, and may stand anywhere within the context.
        at = batch.positions[:, places, None] + behind
        self._positions = at.clamp(max=int(batch.positions.max())).flatten(1)
        self._rotary = batch.rotary(self._positions.flatten()).unsqueeze(1)
        self._text_rotary = batch.rotary(batch.positions.flatten()).unsqueeze(1)
        # [rows, pseudo-rows, text + pseudo-rows]: its token's text up to there, and earlier pseudo-rows of that token.
        carriers = places.repeat_interleave(count)
        number = behind.repeat(len(places))
        text = batch.documents[:, carriers, None] == batch.documents[:, None, :]
        text = text & (torch.arange(batch.tokens.shape[1], device=device) <= carriers[:, None])
        own = (carriers[:, None] == carriers) & (number <= number[:, None])
        self._visible = torch.cat((text, own.expand(len(text), -1, -1)), -1)
        self._masks: dict[int | None, Tensor] = {}

    def final(self) -> Tensor:
        """[rows, tokens, pseudo-rows, width] what the LM head reads of each."""
        batch, module = self._batch, self._module
        rows, states = batch.tokens.shape[0], module.begin(batch.states[module.layer].float()[:, self._places])
        state = states.reshape(-1, states.shape[-1]).float()
        for index in range(module.layer, len(batch.states) - 1):
            state = self._through(index, state)
        return batch.norm(state.view(rows, len(self._places), module.rows, -1))

    def _through(self, index: int, state: Tensor) -> Tensor:
        """Pseudo-rows [rows * pseudo-rows, width] after layer ``index``."""
        layer, adapters = self._batch.layer(index), self._module.adapters
        adapter = adapters.of(index + 1) if index + 1 in adapters.numbers else None
        attention, normed = layer.attention, layer.attention_norm(state)
        adapt = None if adapter is None else lambda flat: flat.add_(adapter.qkv(normed))
        queries, own = project(attention, normed, self._rotary, adapt)
        with torch.no_grad():
            text_normed = layer.attention_norm(self._batch.states[index].float()).flatten(0, 1)
            text = project(attention, text_normed, self._text_rotary)[1]
        rows = self._batch.tokens.shape[0]
        seen = [each.view(len(each), rows, -1, attention.head_dim).transpose(0, 1) for each in (text, own)]
        held = torch.cat(seen, 2).to(queries.dtype)  # [rows, keys then values, text + pseudo-rows, head_dim]
        mixed = F.scaled_dot_product_attention(
            queries.view(rows, -1, attention.heads, attention.head_dim).transpose(1, 2),
            held[:, : attention.kv_heads],
            held[:, attention.kv_heads :],
            attn_mask=self._mask(attention.window),
            scale=attention.scale,
            enable_gqa=attention.heads != attention.kv_heads,
        )
        mixed = mixed.transpose(1, 2).flatten(2).flatten(0, 1)
        state = state + attention.out(mixed)
        if adapter is not None:
            state = state + adapter.out(mixed)
        mlp, normed = layer.mlp, layer.mlp_norm(state)
        if adapter is None or not isinstance(mlp, Mlp) or adapter.gate_up is None or adapter.down is None:
            return mlp.add_to(state, normed)
        return adapted_mlp(state, normed, mlp, adapter.gate_up, adapter.down)

    def _mask(self, window: int | None) -> Tensor:
        """[rows, 1, pseudo-rows, text + pseudo-rows]."""
        if window not in self._masks:
            visible = self._visible
            if window is not None:
                seen = torch.cat((self._batch.positions, self._positions), 1)
                visible = visible & (self._positions[:, :, None] - seen[:, None] < window)
            self._masks[window] = visible[:, None]
        return self._masks[window]


def _rides(module: PseudoRows, batch: TrainingBatch, places: Tensor) -> Iterator[tuple[Tensor, TrainingBatch]]:
    """Per pseudo-row j = 1, .. what the LM head reads [rows, n, width], 0 where none rides, and a batch in which only
    the tokens that these predict, j + 1 after ``places``, have a weight."""
    final = RidingRows(module, batch, places).final()
    carries = torch.zeros(batch.tokens.shape[1], device=places.device).index_fill(0, places, 1.0)
    for number, read in enumerate(final.unbind(2), 1):
        every = read.new_zeros(batch.final.shape).index_copy(1, places, read)
        weights = batch.weights * carries.roll(number + 1)
        yield every, replace(batch, weights=weights, stored_teacher=batch.teacher)


def pseudo_loss(module: PseudoRows, batch: TrainingBatch, share: float) -> Tensor:
    """Sum over pseudo-rows j = 1, .. of _FADE ** (j - 1) KL(target's distribution j + 1 ahead || the row's).

    Of a random ``share`` of the tokens, counted as if all of them carried pseudo-rows.
    """
    n = batch.tokens.shape[1]
    count = max(1, round(share * n))
    places = torch.randperm(n, device=batch.tokens.device)[:count].sort().values
    total = batch.final.new_zeros((), dtype=torch.float32)
    for number, (read, carried) in enumerate(_rides(module, batch, places), 1):
        (divergence,) = exit_losses(carried, [read], number + 1, 0.0)
        total = total + _FADE ** (number - 1) * (divergence * carried.ahead(number + 1).weights).sum()
    return total * (n / count)


@torch.no_grad()
def pseudo_yardsticks(module: PseudoRows, batch: TrainingBatch) -> Mapping[str, Tally]:
    """row_1_top1, row_2_top1, ..: share of tokens whose likeliest one by a pseudo-row is the target's likeliest."""
    places = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    tallies = {}
    for number, (read, carried) in enumerate(_rides(module, batch, places), 1):
        right = batch.picks(read) == batch.teacher.top_tokens.roll(-number, 1)
        tallies[f"row_{number}_top1"] = tally(right, carried.ahead(number + 1).weights)
    return tallies
