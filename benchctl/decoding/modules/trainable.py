"""What a method with trained modules writes: build, loss, yardsticks. benchctl.training does the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from benchctl.decoding.model.layers import Layer
from benchctl.decoding.model.target import TargetInfo


class Labels(NamedTuple):
    """Tokens to predict [rows, n] and the loss weight of each, 0 where there is nothing to predict."""

    tokens: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Tally:
    """So many right of so many; tallies of several batches add up."""

    right: float
    of: float

    @property
    def share(self) -> float:
        return self.right / self.of if self.of else 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.right + other.right, self.of + other.of)


def tally(right: Tensor, weights: Tensor) -> Tally:
    """Of tokens [rows, n] of these weights those that are ``right``, wholly or to a share."""
    return Tally(float((right * weights).sum()), float(weights.sum()))


@dataclass(frozen=True)
class TrainingBatch:
    """Packed rows of text as the frozen target saw them; nothing here carries a gradient.

    tokens     [rows, n]; documents within a row do not see one another
    weights    [rows, n] loss weight of each token: 1 for answers and text, 0 for padding
    documents  [rows, n] number of each token's document within its row, -1 for padding
    positions  [rows, n] position of each token within its document
    states     layers + 1 residuals [rows, n, width]: the embedding, then the state after each layer
    final      [rows, n, width] the last state after the final norm: what the LM head reads
    norm       the target's final norm: residual -> normed, same shape; differentiable in its input
    head       the target's LM head: normed [..., width] -> target logits [..., vocabulary]; differentiable likewise
    layer      the target's layer with this index, as decoding runs it; differentiable in what goes through it
    rotary     positions [tokens] -> their complex rotations [tokens, head_dim / 2]
    """

    tokens: Tensor
    weights: Tensor
    documents: Tensor
    positions: Tensor
    states: Sequence[Tensor]
    final: Tensor
    norm: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    layer: Callable[[int], Layer]
    rotary: Callable[[Tensor], Tensor]

    def ahead(self, distance: int) -> Labels:
        """The token ``distance`` after each one; weight 0 where that lies beyond the document or the row.

        Tokens 5 6 7 | 8 9 of two documents, all of weight 1, give for distance 1: tokens 6 7 8 9 9, weights 1 1 0 1 0.
        The weight is that of the token to predict, so a prompt that counts for nothing is not learnt.
        """
        index = torch.arange(self.tokens.shape[1], device=self.tokens.device) + distance
        inside = index < self.tokens.shape[1]
        index = index.clamp(max=self.tokens.shape[1] - 1)
        same = (self.documents[:, index] == self.documents) & (self.documents >= 0) & inside
        return Labels(self.tokens[:, index], self.weights[:, index] * same)


@dataclass(frozen=True)
class TrainingDefaults:
    """How a method's modules are trained unless the command line says otherwise."""

    rate: float = 1e-3
    schedule: Literal["cosine", "linear"] = "cosine"
    warmup: float = 0.1
    epochs: float = 2.0


@dataclass(frozen=True)
class SecondStage:
    """A part that is trained by itself, on top of modules that were trained before and then stand still.

    part      its name among the modules; a folder may hold it or not
    options   those of a label that trains it and uses it
    needed    whether the method, with the options it has, is such a label: then ``build`` makes the part too
    training  how it is trained unless the command line says otherwise
    """

    part: str
    options: str
    needed: bool
    training: TrainingDefaults


class Trainable(ABC):
    """Mix-in for a method with trained modules. Its dataclass has an option ``modules``: the folder of the weights."""

    training: ClassVar[TrainingDefaults] = TrainingDefaults()
    trained_for: ClassVar[tuple[str, ...]] = ()  # options that modules are trained for though no shape tells
    modules_of: ClassVar[str] = ""  # the method whose trained modules it uses; empty for its own
    modules: str

    def modules_name(self, name: str) -> str:
        """The method that folders of modules are marked with, for this method, called ``name``."""
        return self.modules_of or name

    @property
    def needs_modules(self) -> bool:
        """Whether the method uses modules with the options it has."""
        return True

    @property
    def second_stage(self) -> SecondStage | None:
        """What may be trained on top of the modules. Where it is needed, only its weights require a gradient."""
        return None

    @abstractmethod
    def build(self, info: TargetInfo, lm_head: Tensor) -> nn.Module:
        """Fresh modules for a target with ``lm_head`` [vocabulary, width]; torch's generator is seeded by the caller.

        They are float32, on the device of ``lm_head``; the names and shapes of their weights follow from the target and
        the options. Raises UserError where the options make no modules.
        """

    def pace(self, module: nn.Module, progress: float) -> None:  # noqa: B027 optional
        """Before each optimiser step: how much of the training is over, from 0 to 1; for what changes meanwhile."""

    @abstractmethod
    def loss(self, module: nn.Module, batch: TrainingBatch) -> Tensor:
        """Weighted sum of the losses in nats.

        The trainer divides by the sum of the weights of ``ahead(1)`` over all batches of an optimiser step, those of
        other processes included: by the tokens that have one of their own document before them.
        """

    @abstractmethod
    def yardsticks(self, module: nn.Module, batch: TrainingBatch) -> Mapping[str, Tally]:
        """What the modules are good for, by name, such as ``head_1_top1``; measured on held-out text.

        Each is a share or a cosine, from -1 to 1.
        """

    def findings(self, module: nn.Module, batches: Iterable[TrainingBatch]) -> Mapping[str, Any]:
        """What else modules.json keeps of trained modules, as JSON; measured on all held-out ``batches``, once."""
        return {}

    def published(self, folder: str) -> Mapping[str, Any] | None:
        """The options of modules that others have published, where ``folder`` has a format of theirs that is read."""
        return None

    def refuse(self, folder: str, trained: Mapping[str, Any]) -> None:  # noqa: B027 optional
        """Raises UserError where modules trained with the options ``trained`` cannot serve those asked for."""
