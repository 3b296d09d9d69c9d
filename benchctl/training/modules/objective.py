"""What a module is trained on and measured by: loss weights, text metrics, distillation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchctl.decoding.drafting.grow import wide
from benchctl.decoding.model.families import family_of
from benchctl.decoding.model.kernels import capped
from benchctl.decoding.modules.losses import divergences, wanted_shares
from benchctl.decoding.modules.trainable import Tally, TrainingBatch
from benchctl.training.data.packing import Batch

HeldOut = Mapping[str, Tally]
"""Measures by name; `loss` is always among them. A mean is a Tally too: so many nats over so many tokens."""


class Objective(Protocol):
    """Gives the weighted sum of the losses of a batch in nats; the trainer divides by the sum of `loss_weights`.

    `measure` gives what the loss is good for, on held-out text: `loss` itself and the objective's own yardsticks. It is
    called in eval mode, without gradient; the tallies of several batches add up name by name.
    """

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor: ...

    def measure(self, module: nn.Module, batch: Batch) -> HeldOut: ...


@runtime_checkable
class Paced(Protocol):
    """An objective that receives the progress of the training, from 0 to 1, before each step."""

    def pace(self, module: nn.Module, progress: float) -> None: ...


def loss_weights(batch: Batch) -> Tensor:
    """Weight [rows, row_tokens - 1] of predicting each token after the first; 0 where it begins a document.

    Documents 0 0 1 1 -1 with weights 1 1 1 1 0 give 1 0 1 0: nothing stands before the third token.
    """
    within = batch.documents[:, 1:] == batch.documents[:, :-1]
    return batch.weights[:, 1:] * within


def inputs_of(model: Any, batch: Batch) -> dict[str, Any]:
    """A batch as a causal language model of transformers reads it; no document sees another."""
    mask = batch.mask
    if model.config._attn_implementation == "eager":  # it adds the mask to the scores, True as 1
        mask = torch.zeros_like(mask, dtype=model.dtype).masked_fill_(~mask, torch.finfo(model.dtype).min)
    return {"input_ids": batch.tokens, "attention_mask": mask, "position_ids": batch.positions, "use_cache": False}


def logits_of(module: nn.Module, batch: Batch) -> Tensor:
    """Logits [rows, row_tokens, vocabulary] of a causal language model."""
    logits = module(**inputs_of(module, batch)).logits
    assert isinstance(logits, Tensor)
    return logits


@dataclass(frozen=True)
class Distillation:
    """Kullback-Leibler divergence of the draft model's distribution from the target's, token by token, in nats.

    `exits` are layers of the draft model whose states its own norm and head read too: the loss is the sum of theirs and
    that of the last layer (sorted fine-tuning; S2D, Kavehzadeh et al., 2024, arXiv:2407.01955).
    `seen_by_target` gives what the frozen target made of a batch. Over its draft vocabulary the divergence is that of
    exit_losses. Source: Hinton et al., "Distilling the Knowledge in a Neural Network", 2015, arXiv:1503.02531; for
    drafting: Zhou et al., "DistillSpec", 2023, arXiv:2310.08461.
    """

    seen_by_target: Callable[[Batch], TrainingBatch]
    token_bytes: Tensor
    exits: tuple[int, ...] = ()

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        seen = self.seen_by_target(batch)
        every_loss = [self._loss(scored, seen) for scored in draft_logits(module, batch, seen.draft_ids, self.exits)]
        return torch.stack(every_loss).sum()

    def measure(self, module: nn.Module, batch: Batch) -> HeldOut:
        """loss, LanguageModel's measures, and agreement: the share of tokens where both argmaxes are the same.

        exit_1_agreement is that of the exit at layer 1.

        On text that the target wrote greedily, agreement is the acceptance of a greedy draft.
        """
        seen, every_logits = self.seen_by_target(batch), draft_logits(module, batch, None, self.exits)
        names = [*(f"exit_{layer}_agreement" for layer in self.exits), "agreement"]
        losses, found, counted = list[Tensor](), dict[str, Tally](), seen.ahead(1).weights == 1
        for name, logits in zip(names, every_logits, strict=True):
            scored = logits if seen.draft_ids is None else logits[..., seen.draft_ids]
            losses.append(self._loss(scored, seen))
            agreed = seen.ids_of(scored.argmax(-1)) == seen.teacher.top_tokens
            found[name] = Tally(float((agreed & counted).sum()), float(counted.sum()))
        return {
            "loss": mean_loss(torch.stack(losses).sum(), batch),
            **text_metrics(every_logits[-1], batch, self.token_bytes),
            **found,
            **seen.covered,
        }

    def _loss(self, scored: Tensor, seen: TrainingBatch) -> Tensor:
        return (divergences(scored, wanted_shares(seen)) * seen.ahead(1).weights).sum()


def draft_logits(module: Any, batch: Batch, ids: Tensor | None, exits: Sequence[int] = ()) -> list[Tensor]:
    """Logits [rows, row_tokens, k] of a causal language model for the tokens `ids` [k], or for all: of exits, and last.

    Exits are layers whose states the model's own norm and head read.
    """
    if ids is None and not exits:
        return [logits_of(module, batch)]
    output = module.base_model(**inputs_of(module, batch), output_hidden_states=bool(exits))
    norm = family_of(module.config).final_norm(module)
    normed = [*(norm(output.hidden_states[layer]) for layer in exits), output.last_hidden_state]
    head, scale = head_rows(module, ids), family_of(module.config).head_scale(module.config)
    return [head(states * scale) for states in normed]


def head_rows(model: Any, ids: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The LM head of the tokens ``ids`` [k], or of all, for states of any precision: modules keep theirs in float32.

    It reads what the final norm gives, times Family.head_scale.
    """
    head, cap = model.get_output_embeddings(), family_of(model.config).head_cap(model.config)
    weight, bias = (part if part is None or ids is None else part[ids] for part in (head.weight, head.bias))

    def logits(normed: Tensor) -> Tensor:
        product = functional.linear(normed.to(weight.dtype), weight, bias)
        return product if cap is None else capped(product, cap)

    return logits


def measure_held_out(
    module: nn.Module, batches: Iterable[Batch], measure: Callable[[nn.Module, Batch], HeldOut]
) -> dict[str, Tally]:
    """The measures summed over the batches; the module is in eval mode meanwhile and stays as it was afterwards.

    Measures without any token, such as the agreement at a depth that no text reached, are left out.
    """
    total: dict[str, Tally] = {}
    trained = module.training
    module.eval()
    with torch.no_grad():
        for batch in batches:
            for name, tally in measure(module, batch).items():
                total[name] = total.get(name, Tally(0, 0)) + tally
    module.train(trained)
    return {name: tally for name, tally in total.items() if tally.of or name == "loss"}


def text_metrics(logits: Tensor, batch: Batch, token_bytes: Tensor) -> dict[str, Tally]:
    """How well the tokens of full weight are predicted."""
    counted = loss_weights(batch) == 1
    labels = batch.tokens[:, 1:][counted]
    nats = float((token_losses(logits, batch.tokens) * counted).sum(dtype=torch.float64))
    hits = float((logits[:, :-1].argmax(-1)[counted] == labels).sum())
    text_bytes = float(token_bytes.to(labels.device)[labels].sum())
    tokens = float(counted.sum())
    return {
        "nats_per_token": Tally(nats, tokens),
        "bits_per_byte": Tally(nats / math.log(2), text_bytes),
        "top1": Tally(hits, tokens),
    }


def token_losses(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy [rows, row_tokens - 1] of each token after the first."""
    flat = functional.cross_entropy(wide(logits[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return flat.view(tokens.shape[0], -1)


def mean_loss(loss: Tensor, batch: Batch) -> Tally:
    """The summed `loss` of a batch as a mean over its loss weights."""
    return Tally(float(loss), float(loss_weights(batch).sum()))
