"""What a whole model learns: plain text, or in addition to decode from lower layers or with fewer layers.

A model trained with exits or depths is a different model: modules trained for its origin do not serve it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchctl.decoding.modules.exits import read_exits
from benchctl.decoding.modules.trainable import Tally
from benchctl.errors import UserError
from benchctl.methods.skip_decode import SkipDecode
from benchctl.methods.skip_decode.schedule import DepthSchedule, text_depths
from benchctl.registry import Label, build, parse_label
from benchctl.training.data.packing import Batch
from benchctl.training.modules.objective import (
    HeldOut,
    Objective,
    logits_of,
    loss_weights,
    mean_loss,
    text_metrics,
    token_losses,
)

_OTHER = (
    " All weights learnt: this is another model than any it began as, and modules trained for that one do not serve it."
)
_EXITS = (
    " Layers {exits} learnt to speak through the final norm and head as the last layer does, with equal weights (LITE, "
    "arXiv:2310.18581)."
)
_DEPTHS = " Tokens of an answer learnt at the depths of {label} (SkipDecode, arXiv:2307.02628)."


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


@dataclass(frozen=True)
class MultiExit:
    """Cross-entropy where some lower layers speak too, through the model's own final norm and head: the mean of all.

    Source: Varshney et al., "LITE", 2023, arXiv:2310.18581: chosen layers and the last, with equal weights. The whole
    model learns, so it becomes another one.
    """

    token_bytes: Tensor
    exits: tuple[int, ...]

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        return torch.stack([next_token_loss(logits, batch) for logits in self._logits(module, batch)]).mean()

    def measure(self, module: nn.Module, batch: Batch) -> HeldOut:
        """loss, LanguageModel's measures of the last layer, and exit_4_top1: how often layer 4 agrees with the last."""
        *exits, last = self._logits(module, batch)
        losses = torch.stack([next_token_loss(logits, batch) for logits in (*exits, last)])
        counted = loss_weights(batch) == 1
        found = {"loss": mean_loss(losses.mean(), batch), **text_metrics(last, batch, self.token_bytes)}
        for layer, logits in zip(self.exits, exits, strict=True):
            agreed = (logits.argmax(-1) == last.argmax(-1))[:, :-1]
            found[f"exit_{layer}_top1"] = Tally(float((agreed & counted).sum()), float(counted.sum()))
        return found

    def _logits(self, module: nn.Module, batch: Batch) -> list[Tensor]:
        """[rows, row_tokens, vocabulary] of each exit, ascending, and of the last layer."""
        model: Any = module
        output = model(
            input_ids=batch.tokens,
            attention_mask=batch.mask,
            position_ids=batch.positions,
            use_cache=False,
            output_hidden_states=True,
        )
        norm, head = model.base_model.norm, model.get_output_embeddings()
        return [*(head(norm(output.hidden_states[layer])) for layer in self.exits), output.logits]


@dataclass(frozen=True)
class ScheduledDepth:
    """Cross-entropy where every token runs the layers of its depth alone; see depth_schedule.text_depths.

    Source: Del Corro et al., SkipDecode, 2023, arXiv:2307.02628, which tunes the whole model under the schedule.
    """

    token_bytes: Tensor
    schedule: DepthSchedule

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        with self._scheduled(module, batch):
            return LanguageModel(self.token_bytes)(module, batch)

    def measure(self, module: nn.Module, batch: Batch) -> HeldOut:
        """LanguageModel's measures at these depths, and `depth`: layers run for the tokens of answers, as a share."""
        with self._scheduled(module, batch) as depths:
            measured = LanguageModel(self.token_bytes).measure(module, batch)
        counted = loss_weights(batch) == 1
        run = float((depths[:, :-1] * counted).sum())
        return {**measured, "depth": Tally(run, self.schedule.layers * float(counted.sum()))}

    @contextmanager
    def _scheduled(self, module: nn.Module, batch: Batch) -> Iterator[Tensor]:
        """While open, a pass over the batch keeps each token as it is where it does not run a layer; gives the depths.

        Nobody who runs a layer sees one who does not: depths fall along a document.
        """
        model: Any = module
        depths = text_depths(self.schedule, batch, chance=module.training).depths
        handles = [
            layer.register_forward_hook(_keeping(self.schedule.runs(index, depths)), with_kwargs=True)
            for index, layer in enumerate(model.base_model.layers)
        ]
        try:
            yield depths
        finally:
            for handle in handles:
                handle.remove()


def _keeping(runs: Tensor) -> Callable[..., Any]:
    """A hook after a layer that gives tokens where ``runs`` [rows, n] is false what they were before it."""

    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        before = inputs[0] if inputs else named["hidden_states"]
        if isinstance(output, tuple):
            return (torch.where(runs.unsqueeze(-1), output[0], before), *output[1:])
        return torch.where(runs.unsqueeze(-1), output, before)

    return hook


@dataclass(frozen=True)
class ObjectiveConfig:
    """How a whole model learns.

    objective  made for the bytes of each token
    card_text  what a card adds, in words
    method     label of the method that it is for; empty for plain text
    facts      what else a resumed run must share with its beginning
    """

    objective: Callable[[Tensor], Objective] = LanguageModel
    card_text: str = ""
    method: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


def objective_config(exits: str, depths: str, layers: int) -> ObjectiveConfig:
    """That of a model of so many layers, for numbers joined by + or the label of a method; at most one is given.

    Raises UserError for both, and for what a model of these layers cannot learn.
    """
    if exits and depths:
        raise UserError(
            "options_exclude_each_other",
            "give --exits or --depths, not both: each makes a model for a method of its own",
        )
    if depths:
        return _of_depths(depths, layers)
    return _of_exits(exits, layers) if exits else ObjectiveConfig()


def _of_exits(text: str, layers: int) -> ObjectiveConfig:
    try:
        exits = read_exits(text)
    except ValueError as error:
        raise UserError("bad_option", f"--{error}") from error
    if exits[-1] >= layers:
        raise UserError("unknown_exit", f"--exits {text}: exit {exits[-1]} is not below the model's {layers} layers")
    joined = "+".join(map(str, exits))
    card_text = _EXITS.format(exits=joined) + _OTHER
    return ObjectiveConfig(
        lambda tokens: MultiExit(tokens, exits), card_text, f"early_exit[exits={joined}]", {"exits": joined}
    )


def _of_depths(text: str, layers: int) -> ObjectiveConfig:
    method = build(text)
    if not isinstance(method, SkipDecode):
        raise UserError(
            "depths_not_fixed",
            f"--depths {text}: its depths are not fixed in advance; give skip_decode, with its options",
        )
    if problem := method.beyond(layers):
        raise UserError("label_cannot_run", f"--depths {text}: {problem}")
    schedule, label = method.schedule(layers), _untrained(parse_label(text))
    card_text = _DEPTHS.format(label=label) + _OTHER
    return ObjectiveConfig(lambda tokens: ScheduledDepth(tokens, schedule), card_text, label, {"depths": str(schedule)})


def _untrained(label: Label) -> str:
    """The label without modules: what they would have learnt, the model itself has."""
    of_modules = ("adapters", "rank", "alpha", "modules")
    kept = [option for option in label.options if option[0] not in of_modules]
    return Label(label.name, (("adapters", "none"), *kept)).text
