"""Training EAGLE's layer over whole texts: on the target's features, then on its own states, as it drafts.

EAGLE-3's training-time test (arXiv 2503.01840, section 3.2); HASS (Zhang et al. 2024, arXiv 2408.15766) does the same
with the losses of EAGLE-1. Ours: over a draft vocabulary a token counts by the target's mass inside, see exit_losses;
no noise is added to features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.modules.adapters import turned
from benchctl.decoding.modules.trainable import ROWS_AT_ONCE, Tally, TrainingBatch, tally, top_and_normalizer

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
        self._keys, self._values = list[Tensor](), list[Tensor]()

    def passes(self, count: int, detached: bool = False) -> Iterator[Tensor]:
        """[rows, n, width] of each pass: the states that the next one reads; ``detached``: without their gradient."""
        hidden = self._features()
        for number in range(count):
            states = self._through(number, hidden)
            yield states
            hidden = states.detach() if detached else states

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
        embedded = self._batch.states[0].float().roll(-1 - number, 1)  # rows that wrap around have weight 0
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
        """Attention output of one pass."""
        weights, head_dim = self._module.midlayer.self_attn, 2 * self._rotary.shape[-1]
        # Rotation by `number` positions; dividing by position 0's removes a family's scale factor.
        further = self._batch.rotary(torch.tensor([0, number], device=attended.device))
        turn = self._rotary * (further[1] / further[0])
        queries, keys = (
            turned(product(attended).unflatten(-1, (-1, head_dim)), turn).transpose(1, 2)
            for product in (weights.q_proj, weights.k_proj)
        )
        self._keys.append(keys)
        self._values.append(weights.v_proj(attended).unflatten(-1, (-1, head_dim)).transpose(1, 2))
        groups = queries.shape[1] // keys.shape[1]
        scale = head_dim**-0.5
        # Scores of the rows of the first pass, then of the row's own states of later ones.
        first, *later = (each.repeat_interleave(groups, 1) for each in self._keys)
        scores = (queries @ first.mT * scale).masked_fill(~self._visible, -torch.inf)
        own = [(queries * each).sum(-1, keepdim=True) * scale for each in later]
        shares = torch.cat((scores, *own), -1).softmax(-1, dtype=torch.float32).to(queries.dtype)
        first, *later = (each.repeat_interleave(groups, 1) for each in self._values)
        n = first.shape[2]
        mixed = shares[..., :n] @ first
        for place, each in enumerate(later, n):
            mixed = mixed + shares[..., place, None] * each
        return mixed.transpose(1, 2).flatten(2)


class Rows(NamedTuple):
    """The rows of one pass, one for each drafted token: weight [tokens], state, and what the LM head reads."""

    weights: Tensor
    states: Tensor
    read: Tensor


def _drafted(batch: TrainingBatch) -> Tensor:
    """Flat places u [tokens] in a batch where the next token, u + 1, is drafted and has a weight."""
    return batch.ahead(2).weights.flatten().nonzero()[:, 0] + 1


def _passes(
    module: EagleModule, batch: TrainingBatch, taps: Sequence[int], passes: int, detached: bool = False
) -> Iterator[Rows]:
    """In pass i row u - 1 - i drafts token u + 1. The weight is 0 where that row is in another document."""
    for number, states in enumerate(Unrolled(module, batch, taps).passes(passes, detached)):
        rows = _drafted(batch) - 1 - number
        some = read = states.flatten(0, 1)[rows]
        if module.norm is not None and not module.tap_norms:
            read = module.norm(some)
        yield Rows(batch.ahead(2 + number).weights.flatten()[rows], some, read)


class _HeadLoss(torch.autograd.Function):
    """Weighted sum of the losses of eagle_loss through an LM head, which may be trained too.

    As in exits.py, the gradients are computed in the forward pass, a few rows at once: logits of all rows and passes
    would take most of the time and memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        read: Tensor,
        own: Tensor | None,
        weights: Tensor,
        final: Tensor,
        log_normalizers: Tensor,
        head: Callable[[Tensor], Tensor],
        labels: Labels,
    ) -> Tensor:
        """Of read [passes, tokens, width], weights [passes, tokens], final [tokens, width]; ``own`` [k, width]."""
        total, gradient = read.new_zeros((), dtype=torch.float32), torch.empty_like(read)
        trained = None if own is None else own.detach().requires_grad_()
        own_gradient = None if own is None else torch.zeros_like(own)
        for start in range(0, read.shape[1], ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            with torch.autocast(read.device.type, enabled=False):
                wanted = head(final[rows]).float() - log_normalizers[rows, None]
            shares = wanted.exp()
            mass = shares.sum(-1)
            entropy = labels.share * ((shares * wanted).sum(-1) - torch.xlogy(mass, mass))
            likeliest = shares.topk(min(labels.top, shares.shape[-1]))
            shares.mul_(labels.share).scatter_add_(-1, likeliest.indices, likeliest.values)
            mass = shares.sum(-1)
            for number, inner in enumerate(read[:, rows]):
                with torch.enable_grad():
                    leaf = inner.detach().requires_grad_()
                    says = head(leaf) if trained is None else F.linear(leaf, trained)
                logits, weight = says.detach().float(), weights[number, rows]
                log_sum = logits.logsumexp(-1)
                total += (weight * (entropy + mass * log_sum - torch.linalg.vecdot(shares, logits))).sum()
                pull = (logits - log_sum[:, None]).exp_().mul_(mass[:, None]).sub_(shares).mul_(weight[:, None])
                inputs = (leaf,) if trained is None else (leaf, trained)
                gradient[number, rows], *more = torch.autograd.grad(says, inputs, pull.to(says.dtype))
                if own_gradient is not None:
                    own_gradient += more[0]
        ctx.gradients = gradient, own_gradient
        return total

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        gradient, own_gradient = ctx.gradients
        own = None if own_gradient is None else own_gradient * outer
        return gradient * outer, own, None, None, None, None, None


class Labels(NamedTuple):
    """The target's distribution times ``share``; its ``top`` likeliest tokens once more."""

    share: float = 1.0
    top: int = 0


def eagle_loss(
    module: EagleModule, batch: TrainingBatch, taps: Sequence[int], passes: int, hass: bool = False
) -> Tensor:
    """Weighted sum over passes i = 0, 1, .. of FADE ** i times the loss of their tokens.

    Version 3: KL(target's distribution || drafter's). Version 1: SmoothL1 of the state and the target's, mean over its
    width, + 0.1 KL. With ``hass`` also the cross-entropy with the target's ten likeliest tokens; all passes count the
    same, and no gradient goes from one to the one before.
    """
    drafted = _drafted(batch)
    final, total = batch.final.flatten(0, 1)[drafted], batch.final.new_zeros((), dtype=torch.float32)
    reads, weights = list[Tensor](), list[Tensor]()
    for number, rows in enumerate(_passes(module, batch, taps, passes, detached=hass)):
        weight = rows.weights if not module.taps else FADE**number * rows.weights
        reads.append(rows.read)
        weights.append(weight)
        if not module.taps:
            apart = F.smooth_l1_loss(rows.states.float(), final.float(), reduction="none").mean(-1)
            total = total + (apart * weight).sum()
    labels = Labels() if module.taps else Labels(_TEXT_SHARE, _TOP if hass else 0)
    own = None if module.lm_head is None else module.lm_head.weight
    log_normalizers = batch.teacher.log_normalizers.flatten()[drafted]
    head_loss: Tensor = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        torch.stack(reads), own, torch.stack(weights), final, log_normalizers, batch.draft_head, labels
    )
    return total + head_loss


@torch.no_grad()
def eagle_yardsticks(
    module: EagleModule, batch: TrainingBatch, taps: Sequence[int], passes: int
) -> Mapping[str, Tally]:
    """token_1_top1, token_2_top1, ..: share of tokens so far ahead whose draft is the target's likeliest.

    The drafted tokens before them are taken to be right.
    """
    tallies, top_tokens = {}, batch.teacher.top_tokens.flatten()[_drafted(batch)]
    head = module.lm_head or batch.draft_head
    for number, rows in enumerate(_passes(module, batch, taps, passes), 1):
        picks = batch.ids_of(top_and_normalizer(head, rows.read).top_tokens)
        tallies[f"token_{number}_top1"] = tally(picks == top_tokens, rows.weights)
    return tallies
