"""From packed rows to what a frozen target made of them: the lessons of a method's modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchctl.decoding.families import context_tokens, read_layer, rotary_table
from benchctl.decoding.layers import Layer
from benchctl.decoding.modules import shares
from benchctl.decoding.trainable import Lesson, Tally, Trainable
from benchctl.errors import UserError
from benchctl.training.objective import HeldOut, loss_weights
from benchctl.training.packing import Batch


class LessonMaker:
    """Runs a transformers model of a known family over batches, without gradient and in eval mode, on `device`.

    The residuals are taken where they pass from layer to layer, so states[-1] is what the final norm reads, which
    transformers' own `output_hidden_states` does not give.
    """

    def __init__(self, target: nn.Module, device: torch.device) -> None:
        self._target: Any = target.eval().requires_grad_(False)
        self._device = device
        self._rotary: Tensor | None = None
        self._layers: dict[int, Layer] = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def __call__(self, batch: Batch) -> Lesson:
        """The lesson of a batch; everything in it lies on the device."""
        batch = batch.to(self._device)
        body = self._target.base_model
        with residuals(body.layers) as states:
            output = body(
                input_ids=batch.tokens, attention_mask=batch.mask, position_ids=batch.positions, use_cache=False
            )
        return Lesson(
            tokens=batch.tokens,
            weights=batch.weights,
            documents=batch.documents,
            positions=batch.positions,
            states=tuple(states),
            final=output.last_hidden_state,
            norm=body.norm,
            head=self._target.get_output_embeddings(),
            layer=self._layer,
            rotary=self._rotate,
        )

    def _layer(self, index: int) -> Layer:
        """Read when first asked for: its products are copies, and no method needs all of a large target's layers."""
        if index not in self._layers:
            self._layers[index] = read_layer(self._target, index, fast=False)
        return self._layers[index]

    def _rotate(self, positions: Tensor) -> Tensor:
        if self._rotary is None:
            config, weight = self._target.config, self._target.get_input_embeddings().weight
            self._rotary = rotary_table(self._target, context_tokens(config), weight.dtype)
        return self._rotary[positions]


@dataclass(frozen=True)
class ModuleObjective:
    """What a method says of its modules as the trainer's objective."""

    method: Trainable
    lessons: Callable[[Batch], Lesson]

    def pace(self, module: nn.Module, progress: float) -> None:
        """What changes as the training goes on; see Trainable.pace."""
        self.method.pace(module, progress)

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        return self.method.loss(module, self.lessons(batch))

    def measure(self, module: nn.Module, batch: Batch) -> HeldOut:
        """`loss`, and the method's own yardsticks. Raises UserError for those that modules.json could not hold."""
        lesson = self.lessons(batch)
        loss = float(self.method.loss(module, lesson))
        measured = self.method.yardsticks(module, lesson)
        try:
            shares({name: tally.share for name, tally in measured.items()})
        except ValueError as error:
            raise UserError(f"{type(self.method).__name__}: {error}; mend what its yardsticks() returns") from error
        return {"loss": Tally(loss, float(loss_weights(batch).sum())), **measured}


@contextmanager
def residuals(layers: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """While open, each pass through `layers` leaves its residuals in the list: the embedding's, then each layer's."""
    states: list[Tensor] = []
    handles = [layers[0].register_forward_pre_hook(_keep_input(states), with_kwargs=True)]
    handles += [layer.register_forward_hook(_keep_output(states)) for layer in layers]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def _keep_input(states: list[Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        states.append(inputs[0] if inputs else named["hidden_states"])

    return hook


def _keep_output(states: list[Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    return hook
