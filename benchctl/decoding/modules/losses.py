"""Losses and yardsticks of drafters and exits, against the target's distribution and its likeliest token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.modules.trainable import ROWS_AT_ONCE, Tally, TrainingBatch, tally

CE_SHARE = 0.1  # of the cross-entropy with the text, next to 1 for the divergence from the target's distribution


def bare(batch: TrainingBatch, layer: int) -> Tensor:
    """[rows, n, width] the state after ``layer`` layers through the target's own norm: what its head would read."""
    return batch.norm(batch.states[layer])


def balanced_loss(scores: Tensor, agrees: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of binary cross-entropies of ``scores`` [rows, n]: sigmoid(score) is the chance of agreement.

    Either class counts by the share of the other, as in CALM's code (t5x).
    """
    right = agrees.to(weights.dtype)
    share = (right * weights).sum() / weights.sum().clamp_min(1e-9)
    balance = torch.where(agrees, 1 - share, share)
    losses = F.binary_cross_entropy_with_logits(scores.float(), right.float(), reduction="none")
    return (losses * balance * weights).sum()


@torch.no_grad()
def exit_yardsticks(
    scores: Mapping[int, Tensor], batch: TrainingBatch, right: Mapping[int, Tensor]
) -> dict[str, Tally]:
    """What the scores of exit layers, ascending, are good for at threshold 0.5.

    right         of each layer, [rows, n]: where what leaves there agrees with the last layer
    exit_4_found  share that may leave there of the tokens for which layer 4 agrees with the last
    exit_4_held   share that may not of the others
    agreement     share of tokens that agree with the last layer when each leaves at the first exit that lets it
    depth         layers run for them, as a share of all
    """
    weights, layers = batch.ahead(1).weights, len(batch.states) - 1
    tallies: dict[str, Tally] = {}
    open_weights, lost, saved = weights, 0.0, 0.0
    for layer, agrees in right.items():
        leaves = scores[layer] >= 0
        tallies[f"exit_{layer}_found"] = tally(leaves, weights * agrees)
        tallies[f"exit_{layer}_held"] = tally(~leaves, weights * ~agrees)
        left = open_weights * leaves
        lost += float((left * ~agrees).sum())
        saved += float(left.sum()) * (layers - layer)
        open_weights = open_weights * ~leaves
    total = float(weights.sum())
    return {**tallies, "agreement": Tally(total - lost, total), "depth": Tally(total * layers - saved, total * layers)}


class _Divergences(torch.autograd.Function):
    """See exit_losses; of some tokens that stand in one dimension. The gradient is made on the way, a few rows at once.

    Autograd would keep logits, their log-softmax and its gradient of all tokens and exits: most of the time and memory
    of a training went there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        normed: Tensor,
        final: Tensor,
        log_normalizers: Tensor,
        places: Tensor,
        head: Callable[[Tensor], Tensor],
        ce_share: float,
    ) -> Tensor:
        """[exits, tokens] of normed [exits, tokens, width], final [tokens, width], the others [tokens]."""
        losses = normed.new_empty(normed.shape[:2], dtype=torch.float32)
        gradient = torch.empty_like(normed) if ctx.needs_input_grad[0] else None
        for start in range(0, normed.shape[1], ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            with torch.autocast(normed.device.type, enabled=False):
                wanted = head(final[rows]).float() - log_normalizers[rows, None]
            shares, place = wanted.exp(), places[rows, None].clamp(min=0)
            mass, text = shares.sum(-1), ce_share * (places[rows] >= 0)
            entropy = (shares * wanted).sum(-1) - torch.xlogy(mass, mass)
            for number, inner in enumerate(normed[:, rows]):
                with torch.enable_grad():
                    read = inner.detach().requires_grad_()
                    says = head(read)
                logits = says.detach().float()
                log_sum = logits.logsumexp(-1)
                text_loss = text * (log_sum - logits.gather(-1, place)[:, 0])
                losses[number, rows] = entropy + mass * log_sum - (shares * logits).sum(-1) + text_loss
                if gradient is not None:
                    pull = (logits - log_sum[:, None]).exp_().mul_((mass + text)[:, None]).sub_(shares)
                    pull.scatter_add_(-1, place, -text[:, None])
                    (gradient[number, rows],) = torch.autograd.grad(says, read, pull.to(says.dtype))
        ctx.gradient = gradient
        return losses

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        return ctx.gradient * outer.to(ctx.gradient.dtype).unsqueeze(-1), None, None, None, None, None


def exit_losses(
    batch: TrainingBatch, normed: Sequence[Tensor], distance: int = 1, ce_share: float = CE_SHARE
) -> Tensor:
    """[exits, rows, n] KL(target's distribution || exit's) + ce_share * cross-entropy with the text, in nats.

    ``normed`` [rows, n, width] of each exit is what the head reads; its logits are for the token ``distance`` ahead.
    0 where that has no weight. Over a draft vocabulary the target's distribution is restricted to it, and a token
    counts by the mass inside: mass * KL(restricted, renormalised || exit's). Its gradient is that of the terms inside
    of the whole divergence. EAGLE-3 (arXiv 2503.01840) drops tokens whose likeliest successor is outside; the mass
    makes no jump there. Text outside has no cross-entropy. Tokens drawn for a batch are such a vocabulary too.
    """
    batch = batch.sampled()
    tokens, weights = batch.ahead(distance)
    some = weights.flatten().nonzero()[:, 0]
    final, log_normalizers = (
        of.roll(1 - distance, 1) for of in (batch.final, batch.teacher.log_normalizers)
    )  # round the end: no weight
    losses = _Divergences.apply(  # type: ignore[no-untyped-call]
        torch.stack([each.flatten(0, 1)[some] for each in normed]),
        final.flatten(0, 1)[some],
        log_normalizers.flatten()[some],
        batch.places_of(tokens).flatten()[some],
        batch.draft_head,
        ce_share,
    )
    every: Tensor = losses.new_zeros(len(normed), weights.numel()).index_copy(1, some, losses)
    return every.view(len(normed), *weights.shape)


@torch.no_grad()
def wanted_shares(batch: TrainingBatch) -> Tensor:
    """[rows, n, k] logs of the target's probabilities of the tokens that drafters score, in float32."""
    with torch.autocast(batch.final.device.type, enabled=False):
        return batch.draft_head(batch.final).float() - batch.teacher.log_normalizers.unsqueeze(-1)


def divergences(draft_logits: Tensor, wanted: Tensor) -> Tensor:
    """[rows, n] of exit_losses without the text, for drafters that train a head of their own.

    ``draft_logits`` and the target's log probabilities ``wanted`` are [rows, n, k].
    """
    mass = wanted.exp().sum(-1)
    draft_log_probs = draft_logits.float().log_softmax(-1)
    return F.kl_div(draft_log_probs, wanted, reduction="none", log_target=True).sum(-1) - torch.xlogy(mass, mass)


def agreement_loss(scores: Mapping[int, Tensor], right: Mapping[int, Tensor], batch: TrainingBatch) -> Tensor:
    """Sum over exits of class-balanced binary cross-entropies; a token's weight is that of the one it must predict."""
    weights = batch.ahead(1).weights
    return torch.stack([balanced_loss(scores[layer], right[layer], weights) for layer in scores]).sum()
