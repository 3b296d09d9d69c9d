"""What a whole model learns: plain text."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from benchctl.training.data.packing import Batch
from benchctl.training.modules.objective import (
    HeldOut,
    logits_of,
    loss_weights,
    mean_loss,
    text_metrics,
    token_losses,
)


def next_token_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Weighted sum of the cross-entropies of a batch, in nats."""
    return (token_losses(logits, batch.tokens) * loss_weights(batch)).sum()


@dataclass(frozen=True)
class LanguageModel:
    """Cross-entropy of every token given those before it. `token_bytes` [vocabulary]: bytes each token stands for."""

    token_bytes: Tensor

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        return next_token_loss(logits_of(module, batch), batch)

    def measure(self, module: nn.Module, batch: Batch) -> HeldOut:
        """loss, nats_per_token, bits_per_byte and top1: the share of tokens that the argmax gets right."""
        logits = logits_of(module, batch)
        return {
            "loss": mean_loss(next_token_loss(logits, batch), batch),
            **text_metrics(logits, batch, self.token_bytes),
        }
