"""Training DFlash's layers: blocks behind random tokens of a text, all at once, each mask against the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from benchctl.decoding.modules.adapters import turned
from benchctl.decoding.modules.losses import divergences
from benchctl.decoding.modules.trainable import ROWS_AT_ONCE, Tally, TrainingBatch, tally

from .layers import BlockLayer, DflashModule

_APART = 4  # one token in so many begins a block: the authors draw 512 of 3,072
_GOLDEN = 0.6180339887498949


class Blocks:
    """Blocks of ``rows`` rows behind some tokens of a batch, their anchors: drawn with ``chance``, else spread.

    A block with a position beyond the length of the batch has weight 0: the target may have no such position.
    """

    def __init__(
        self, module: DflashModule, batch: TrainingBatch, taps: Sequence[int], rows: int, chance: bool
    ) -> None:
        self._module, self._batch, self._taps = module, batch, taps
        n, device = batch.tokens.shape[1], batch.tokens.device
        score = torch.arange(1, batch.tokens.numel() + 1, device=device).view_as(batch.tokens) * _GOLDEN % 1
        score = torch.rand_like(score) if chance else score
        fits = batch.positions + rows <= n
        usable = (batch.ahead(1).weights > 0) & fits
        self._anchors = (score + usable).topk(max(1, n // _APART)).indices  # [texts, anchors]
        steps = torch.arange(rows, device=device)
        self._positions = (batch.positions.gather(1, self._anchors)[..., None] + steps).clamp(max=n - 1)
        places = self._anchors[..., None] + steps[:-1]
        self._places = places.clamp(max=n - 1)  # [texts, anchors, rows - 1] of the token before each drafted one
        ahead = [batch.ahead(distance).weights.gather(1, self._anchors) for distance in range(1, rows)]
        self.weights = torch.stack(ahead, -1) * fits.gather(1, self._anchors)[..., None]  # of the drafted tokens
        self.before = self.of(batch.tokens)

    def of(self, values: Tensor) -> Tensor:
        """[texts, anchors, rows - 1, ..] of values [texts, n, ..]: those at the token before each drafted one."""
        texts = torch.arange(len(values), device=values.device)[:, None, None]
        return values[texts, self._places]

    def states(self) -> Tensor:
        """[texts, anchors, rows - 1, width] what the LM head reads of each mask."""
        module, batch, rows = self._module, self._batch, self._positions.shape[-1]
        context = module.hidden_norm(
            module.fc(torch.cat([batch.states[tap].float() for tap in self._taps], -1)).float()
        )
        root = batch.states[0].float().gather(1, self._anchors[..., None].expand(-1, -1, context.shape[-1]))
        assert module.mask is not None, "a module that can be trained"
        x = torch.cat((root[:, :, None], module.mask.expand(*root.shape[:2], rows - 1, -1)), 2)
        for weights in module.layers:
            layer = cast(BlockLayer, weights)
            x = x + self._attention(layer, layer.input_layernorm(x), context)
            normed = layer.post_attention_layernorm(x)
            x = x + layer.mlp["down_proj"](F.silu(layer.mlp["gate_proj"](normed)) * layer.mlp["up_proj"](normed))
        read: Tensor = module.norm(x[:, :, 1:])
        return read.float()

    def _attention(self, layer: BlockLayer, x: Tensor, context: Tensor) -> Tensor:
        """What rows ``x`` take from the context before their anchor, in its document, and from their block."""
        weights, sizes, batch = layer.self_attn, self._module.sizes, self._batch

        def heads(name: str, read: Tensor, at: Tensor) -> Tensor:
            product: Tensor = weights[f"{name}_proj"](read)
            values = product.view(*product.shape[:-1], -1, sizes.head_dim)
            if name == "v":
                return values
            turn = batch.rotary(at.flatten()).view(*at.shape, 1, -1)
            return turned(weights[f"{name}_norm"](values.float()), turn)  # norms have weights in float32

        groups = sizes.num_attention_heads // sizes.num_key_value_heads
        queries = heads("q", x, self._positions)
        queries = queries.view(*queries.shape[:-2], -1, groups, sizes.head_dim)
        keys, values = (heads(name, context, batch.positions) for name in "kv")
        own_keys, own_values = (heads(name, x, self._positions) for name in "kv")
        # r texts, a anchors, b and c rows of a block, k key heads, g queries of each, n tokens of the context.
        scores = torch.einsum("rabkgd,rnkd->rakgbn", queries, keys)
        document = batch.documents.gather(1, self._anchors)[..., None]
        seen = (batch.documents[:, None] == document) & (
            torch.arange(keys.shape[1], device=x.device) < self._anchors[..., None]
        )
        scores = scores.masked_fill(~seen[:, :, None, None, None], -torch.inf)
        own = torch.einsum("rabkgd,rackd->rakgbc", queries, own_keys)
        shares = (torch.cat((scores, own), -1) * sizes.head_dim**-0.5).softmax(-1, dtype=torch.float32)
        before, inside = shares.to(values.dtype).split((keys.shape[1], x.shape[2]), -1)
        mixed = torch.einsum("rakgbn,rnkd->rabkgd", before, values)
        mixed = mixed + torch.einsum("rakgbc,rackd->rabkgd", inside, own_values)
        return cast(Tensor, weights["o_proj"](mixed.flatten(3)))

    def draft_logits(self, read: Tensor, before: Tensor) -> Tensor:
        """[.., k] of the draft vocabulary, for states [.., width] and the tokens before [..]."""
        logits = self._batch.draft_head(read).float()
        markov = self._module.markov
        return logits if markov is None else logits + markov(before)


def dflash_loss(module: DflashModule, batch: TrainingBatch, taps: Sequence[int], rows: int, gamma: float) -> Tensor:
    """Weighted sum over drafted tokens k = 1, 2, .. of exp(-(k - 1) / gamma) * KL(target || draft)."""
    blocks = Blocks(module, batch, taps, rows, chance=module.training)
    fade = torch.exp(-torch.arange(rows - 1, device=blocks.weights.device) / gamma)
    weights = (blocks.weights * fade).flatten()
    some = weights.nonzero()[:, 0]
    parts = [blocks.states(), blocks.of(batch.final), blocks.of(batch.teacher.log_normalizers), blocks.before]
    read, final, log_normalizers, before = (part.flatten(0, 2)[some] for part in parts)

    def losses(part: slice, read: Tensor) -> Tensor:
        with torch.autocast(read.device.type, enabled=False):
            with torch.no_grad():
                wanted = batch.draft_head(final[part]).float() - log_normalizers[part, None]
            return divergences(blocks.draft_logits(read, before[part]), wanted)

    total, weights = read.new_zeros(()), weights[some]
    for start in range(0, len(some), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        # Logits of all rows would take most of the memory: they are computed again for the gradient.
        loss = checkpoint(losses, part, read[part], use_reentrant=False, preserve_rng_state=False)
        total = total + (loss * weights[part]).sum()
    return total


@torch.no_grad()
def dflash_yardsticks(
    module: DflashModule, batch: TrainingBatch, taps: Sequence[int], rows: int
) -> Mapping[str, Tally]:
    """token_1_top1, token_2_top1, ..: share of drafted tokens so far ahead that are the target's likeliest.

    For a Markov head, the drafted tokens before them are taken to be right.
    """
    blocks = Blocks(module, batch, taps, rows, chance=False)
    read, top_tokens, tallies = blocks.states(), blocks.of(batch.teacher.top_tokens), dict[str, Tally]()
    for index in range(rows - 1):
        picks = batch.ids_of(blocks.draft_logits(read[:, :, index], blocks.before[:, :, index]).argmax(-1))
        tallies[f"token_{index + 1}_top1"] = tally(picks == top_tokens[:, :, index], blocks.weights[:, :, index])
    return tallies
