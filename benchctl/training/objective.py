"""What a module is trained on: the weighted next-token loss, its distillation form, and the held-out measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

from benchctl.training.packing import Batch


class Objective(Protocol):
    """Gives the weighted sum of the losses of a batch; the trainer divides by the sum of the weights."""

    def __call__(self, module: nn.Module, batch: Batch) -> torch.Tensor: ...


@dataclass(frozen=True)
class HeldOut:
    """A measured loss: nats per token and bits per byte over `tokens` tokens."""

    nats_per_token: float
    bits_per_byte: float
    tokens: int


def logits_of(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Logits [rows, tokens, vocabulary] of a causal language model; no document sees another."""
    output = module(
        input_ids=batch.tokens, attention_mask=batch.mask, position_ids=batch.positions, use_cache=False
    )
    logits = output.logits
    assert isinstance(logits, torch.Tensor)
    return logits


def next_token_loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Weighted sum of the cross-entropy of every token given those before it, in nats."""
    losses = _token_losses(logits_of(module, batch), batch.tokens)
    return (losses * batch.weights[:, 1:]).sum()


@dataclass(frozen=True)
class Distillation:
    """Kullback-Leibler divergence of the draft model's distribution from the target's, token by token, in nats.

    `share` mixes in the ordinary next-token loss: 1 is distillation alone.
    """

    target: nn.Module
    share: float = 1.0

    def __call__(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            target_logs = logits_of(self.target, batch)[:, :-1].float().log_softmax(-1)
        draft_logits = logits_of(module, batch)
        draft_logs = draft_logits[:, :-1].float().log_softmax(-1)
        divergence = functional.kl_div(draft_logs, target_logs, log_target=True, reduction="none").sum(-1)
        loss = (divergence * batch.weights[:, 1:]).sum() * self.share
        if self.share < 1:
            losses = _token_losses(draft_logits, batch.tokens)
            loss = loss + (losses * batch.weights[:, 1:]).sum() * (1 - self.share)
        return loss


def measure_held_out(module: nn.Module, batches: Sequence[Batch], token_bytes: torch.Tensor) -> HeldOut:
    """The loss over the tokens of full weight. `token_bytes` [vocabulary]: the bytes that each token stands for."""
    nats, tokens, text_bytes = 0.0, 0, 0
    module.eval()
    with torch.no_grad():
        for batch in batches:
            counted = batch.weights[:, 1:] == 1
            losses = _token_losses(logits_of(module, batch), batch.tokens)
            nats += float(losses[counted].sum())
            tokens += int(counted.sum())
            text_bytes += int(token_bytes[batch.tokens[:, 1:][counted]].sum())
    module.train()
    return HeldOut(nats / tokens, nats / math.log(2) / text_bytes, tokens)


def _token_losses(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Cross-entropy [rows, tokens - 1] of each token after the first."""
    flat = functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return flat.view(tokens.shape[0], -1)
