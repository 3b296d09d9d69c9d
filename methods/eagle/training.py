"""Training EAGLE's layer over whole texts: on the target's features, then on its own states, as it drafts.

EAGLE-3's training-time test (arXiv 2503.01840, section 3.2); HASS (Zhang et al. 2024, arXiv 2408.15766) does the same
with the losses of EAGLE-1. Ours: over a draft vocabulary a token counts by the target's mass inside, see exit_losses;
no noise is added to features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.modules.exits import divergences, wanted_shares
from benchctl.decoding.modules.trainable import Tally, TrainingBatch, tally

from .head import EagleModule

FADE = 0.8  # what a pass counts in the loss, as a share of the pass before (EAGLE-3)
_TEXT_SHARE = 0.1  # of the divergence, next to 1 for the distance of states (EAGLE-1)
_TOP = 10  # tokens of HASS's loss


class Unrolled:
    """The layer over the texts of a batch, pass by pass: pass i drafts token t + 2 + i behind the features up to t.

    A row sees the rows of the first pass up to its own, and of later passes its own alone. The tokens that it reads are
    those of the text.
    """

    def __init__(self, module: EagleModule, batch: TrainingBatch, taps: Sequence[int]) -> None:
        self._module, self._batch, self._taps = module, batch, taps
        self._rotary = batch.rotary(batch.positions.flatten()).view(*batch.positions.shape, 1, -1)
        self._visible = (batch.documents[:, :, None] == batch.documents[:, None, :]).tril()[:, None]
        self._itself = torch.eye(batch.tokens.shape[1], dtype=torch.bool, device=batch.tokens.device)
        self._keys, self._values = list[Tensor](), list[Tensor]()

    def passes(self, count: int) -> Iterator[Tensor]:
        """[rows, n, width] of each pass: the states that the next one reads."""
        hidden = self._features()
        for number in range(count):
            hidden = self._through(number, hidden)
            yield hidden

    def _features(self) -> Tensor:
        if not self._module.taps:
            return self._batch.final.float()
        taps = [self._batch.states[tap].float() for tap in self._taps]
        if self._module.tap_norms:
            taps = [norm(tap) for norm, tap in zip(self._module.tap_norms, taps, strict=True)]
        joined: Tensor = self._module.fc(torch.cat(taps, -1))
        return joined.float()  # residuals and norms stay so under autocast

    def _through(self, number: int, hidden: Tensor) -> Tensor:
        module, layer = self._module, self._module.midlayer
        embedded = self._batch.states[0].float().roll(-1 - number, 1)  # what comes round has no weight
        if module.taps:
            attended = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(hidden)), -1)
        else:
            attended = hidden = module.fc(torch.cat((embedded, hidden), -1)).float()
        hidden = hidden + layer.self_attn.o_proj(self._mix(number, attended))
        normed = layer.post_attention_layernorm(hidden)
        inner = F.silu(layer.mlp.gate_proj(normed)) * layer.mlp.up_proj(normed)
        state: Tensor = hidden + layer.mlp.down_proj(inner)
        return module.norm(state) if module.norm is not None and module.tap_norms else state

    def _mix(self, number: int, attended: Tensor) -> Tensor:
        """What the attention of a pass takes from the values that its rows see."""
        weights, head_dim = self._module.midlayer.self_attn, 2 * self._rotary.shape[-1]
        # Rotations of a position and of `number` more; those of position 0 only scale, where a family does that.
        further = self._batch.rotary(torch.tensor([0, number], device=attended.device))
        turn = self._rotary * (further[1] / further[0])
        queries, keys = (
            _turned(product(attended).unflatten(-1, (-1, head_dim)), turn).transpose(1, 2)
            for product in (weights.q_proj, weights.k_proj)
        )
        self._keys.append(keys)
        self._values.append(weights.v_proj(attended).unflatten(-1, (-1, head_dim)).transpose(1, 2))
        seen = [self._visible, *[self._itself.expand_as(self._visible)] * number]
        mixed = F.scaled_dot_product_attention(
            queries,
            torch.cat(self._keys, 2),
            torch.cat(self._values, 2),
            attn_mask=torch.cat(seen, -1),
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
        return mixed.transpose(1, 2).flatten(2)


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """Values [.., heads, head_dim] whose halves are pairs, rotated by ``turn`` [.., 1, head_dim / 2]."""
    first, second = x.chunk(2, -1)
    cos, sin = turn.real, turn.imag
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class Scored(NamedTuple):
    """Of the rows of a pass that have a token to draft: places among all rows of the batch, weights, states, logits."""

    rows: Tensor
    weights: Tensor
    states: Tensor
    draft_logits: Tensor


def _scored(module: EagleModule, batch: TrainingBatch, taps: Sequence[int], passes: int) -> Iterator[Scored]:
    """Of pass i the rows t whose token t + 2 + i has a weight; what the target says there stands i + 1 rows further."""
    for number, states in enumerate(Unrolled(module, batch, taps).passes(passes)):
        weights = batch.ahead(2 + number).weights.flatten()
        rows = weights.nonzero()[:, 0]
        some = read = states.flatten(0, 1)[rows]
        if module.norm is not None and not module.tap_norms:
            read = module.norm(some)
        draft_logits = batch.draft_head(read) if module.lm_head is None else module.lm_head(read)
        yield Scored(rows, weights[rows], some, draft_logits)


def eagle_loss(
    module: EagleModule, batch: TrainingBatch, taps: Sequence[int], passes: int, hass: bool = False
) -> Tensor:
    """Weighted sum over passes i = 0, 1, .. of FADE ** i times the loss of their tokens.

    Version 3: KL(target's distribution || drafter's). Version 1: SmoothL1 of the state and the target's, mean over its
    width, + 0.1 KL; with ``hass`` also the cross-entropy with the target's ten likeliest tokens, and all passes count
    the same.
    """
    wanted, final = wanted_shares(batch).flatten(0, 1), batch.final.flatten(0, 1).float()
    total = final.new_zeros((), dtype=torch.float32)
    for number, scored in enumerate(_scored(module, batch, taps, passes)):
        at = scored.rows + 1 + number
        losses = divergences(scored.draft_logits, wanted[at])
        if not module.taps:
            losses = _TEXT_SHARE * losses
            losses = losses + F.smooth_l1_loss(scored.states, final[at], reduction="none").float().mean(-1)
        if hass:
            likeliest = wanted[at].topk(min(_TOP, wanted.shape[-1]))
            log_probs = scored.draft_logits.float().log_softmax(-1).gather(-1, likeliest.indices)
            losses = losses - (likeliest.values.exp() * log_probs).sum(-1)
        total = total + (FADE**number if module.taps else 1.0) * (losses * scored.weights).sum()
    return total


@torch.no_grad()
def eagle_yardsticks(
    module: EagleModule, batch: TrainingBatch, taps: Sequence[int], passes: int
) -> Mapping[str, Tally]:
    """token_1_top1, token_2_top1, ..: share of tokens so far ahead whose draft is the target's likeliest.

    The drafted tokens before them are taken to be right.
    """
    tallies, top_tokens = {}, batch.teacher.top_tokens.flatten()
    for number, scored in enumerate(_scored(module, batch, taps, passes)):
        right = batch.ids_of(scored.draft_logits.argmax(-1)) == top_tokens[scored.rows + 1 + number]
        tallies[f"token_{number + 1}_top1"] = tally(right, scored.weights)
    return tallies
