"""What a method with trained modules writes: build, loss, yardsticks. benchctl.training does the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from benchctl.decoding.model.layers import Layer
from benchctl.decoding.model.target import TargetInfo

Part = TypeVar("Part", bound=nn.Module)


class Labels(NamedTuple):
    """Tokens to predict [rows, n] and the loss weight of each, 0 where there is nothing to predict."""

    tokens: Tensor
    weights: Tensor


class TeacherOutput(NamedTuple):
    """Of the target's own logits over its whole vocabulary, [rows, n] each: the likeliest token, and log sum exp."""

    top_tokens: Tensor
    log_normalizers: Tensor


ROWS_AT_ONCE = 256  # that go through a head together: all of a batch by a large vocabulary would take gigabytes


@torch.no_grad()
def top_and_normalizer(head: Callable[[Tensor], Tensor], final: Tensor) -> TeacherOutput:
    """The likeliest token and log sum exp by ``head`` of normed states [..., width]."""
    top_tokens, log_normalizers = [], []
    with torch.autocast(final.device.type, enabled=False):  # as the target's logits in exit_losses
        for rows in torch.split(final.flatten(0, -2), ROWS_AT_ONCE):
            logits = head(rows).float()
            top_tokens.append(logits.argmax(-1))
            log_normalizers.append(logits.logsumexp(-1))
    return TeacherOutput(
        torch.cat(top_tokens).view(final.shape[:-1]), torch.cat(log_normalizers).view(final.shape[:-1])
    )


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
    stored_teacher  the target's predictions from a store; ``teacher`` computes them otherwise
    draft_ids  [k] tokens that drafters score, ascending; None for the whole vocabulary
    draft_rows the LM head of those tokens alone: normed [..., width] -> target logits [..., k]; differentiable likewise
    drawn      [k] random tokens that exit_losses compares, and with them the target's likeliest ones; None for all
    head_rows  gives the LM head of any tokens [k], as draft_rows
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
    stored_teacher: TeacherOutput | None = None
    draft_ids: Tensor | None = None
    draft_rows: Callable[[Tensor], Tensor] | None = None
    drawn: Tensor | None = None
    head_rows: Callable[[Tensor], Callable[[Tensor], Tensor]] | None = None

    @cached_property
    def teacher(self) -> TeacherOutput:
        """The target's prediction after each token."""
        return self.stored_teacher or top_and_normalizer(self.head, self.final)

    @property
    def draft_head(self) -> Callable[[Tensor], Tensor]:
        """The LM head of the tokens that drafters score: all of them where there is no draft vocabulary."""
        return self.draft_rows or self.head

    def sampled(self) -> TrainingBatch:
        """With ``drawn``, a batch whose draft vocabulary is these and the target's likeliest tokens.

        Ours. Whatever is drawn, such a loss is least where the ratios of the probabilities are the target's, so over
        many draws it has the optimum of a loss over the whole vocabulary, for a share of its products.
        """
        if self.drawn is None:
            return self
        assert self.head_rows is not None, "drawn tokens come with a head of any tokens"
        ids = torch.cat((self.teacher.top_tokens.flatten(), self.drawn)).unique()  # type: ignore[no-untyped-call]
        return replace(self, drawn=None, draft_ids=ids, draft_rows=self.head_rows(ids), stored_teacher=self.teacher)

    @property
    def covered(self) -> dict[str, Tally]:
        """draft_vocabulary_covers: the share of the target's likeliest tokens inside the draft vocabulary, if any."""
        if self.draft_ids is None:
            return {}
        return {"draft_vocabulary_covers": tally(self.places_of(self.teacher.top_tokens) >= 0, self.ahead(1).weights)}

    def picks(self, normed: Tensor) -> Tensor:
        """[rows, n] the likeliest of the tokens that drafters score, for normed states [rows, n, width]."""
        return self.ids_of(top_and_normalizer(self.draft_head, normed).top_tokens)

    def ids_of(self, places: Tensor) -> Tensor:
        """The tokens at these places of the draft vocabulary."""
        return places if self.draft_ids is None else self.draft_ids[places]

    def places_of(self, tokens: Tensor) -> Tensor:
        """Where tokens stand in the draft vocabulary, -1 for those outside. Ids 2 5 9: tokens 5 6 9 give 1 -1 2."""
        if self.draft_ids is None:
            return tokens
        places = torch.searchsorted(self.draft_ids, tokens.contiguous()).clamp(max=len(self.draft_ids) - 1)
        return torch.where(self.draft_ids[places] == tokens, places, -1)

    def ahead(self, distance: int) -> Labels:
        """The token ``distance`` after each one and its weight, which is 0 beyond the document or the row.

        Tokens 5 6 7 | 8 9 of two documents, all of weight 1, give for distance 1: tokens 6 7 8 9 9, weights 1 1 0 1 0.
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

    part     its name among the modules; a folder may hold it or not
    options  those of a label that trains it and uses it
    needed   whether the method's options make it such a label: then ``build`` makes the part too
    first    label that trains the first stage; empty for the name of the modules
    """

    part: str
    options: str
    needed: bool
    training: TrainingDefaults
    first: str = ""


class Numbered(nn.ModuleDict, Generic[Part]):
    """Modules by number, mostly that of a layer; their weights are named after it."""

    def __init__(self, parts: Mapping[int, Part]) -> None:
        super().__init__({str(number): part for number, part in parts.items()})

    def of(self, number: int) -> Part:
        return cast(Part, self[str(number)])

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(map(int, self))


class Trainable(ABC):
    """Mix-in for a method with trained modules. Its dataclass has an option ``modules``: the folder of the weights."""

    training: ClassVar[TrainingDefaults] = TrainingDefaults()
    trained_for: ClassVar[tuple[str, ...]] = ()  # options that modules are trained for though no shape tells
    at_most: ClassVar[str] = ""  # an option of which modules serve lower values too, such as the number of heads
    draws_tokens: ClassVar[bool] = False  # whether its loss is exit_losses, and may be over random tokens in each pass
    modules_of: ClassVar[str] = ""  # the method whose trained modules it uses; empty for its own
    modules: str

    def modules_name(self, name: str) -> str:
        """What folders of modules are marked with, for this method, called ``name``."""
        return self.modules_of or name

    @property
    def needs_modules(self) -> bool:
        return True

    @property
    def second_stage(self) -> SecondStage | None:
        """What may be trained on top of the modules. Where it is needed, only its weights require a gradient."""
        return None

    @abstractmethod
    def build(self, info: TargetInfo, lm_head: Tensor) -> nn.Module:
        """Fresh modules for a target with ``lm_head`` [vocabulary, width]; the caller seeds torch's generator.

        They are float32, on the device of ``lm_head``; names and shapes follow from the target and the options. Called
        only where ``needs_modules``, and for targets that are not ``unsupported``.
        """

    def pace(self, module: Any, progress: float) -> None:  # noqa: B027 optional
        """Before each optimiser step: how much of the training is over, from 0 to 1; for what changes meanwhile."""

    @abstractmethod
    def loss(self, module: Any, batch: TrainingBatch) -> Tensor:
        """Weighted sum of the losses in nats; the trainer divides it by the weights of ``ahead(1)`` of a whole step."""

    @abstractmethod
    def yardsticks(self, module: Any, batch: TrainingBatch) -> Mapping[str, Tally]:
        """What the modules are good for on held-out text: shares or cosines by name, such as ``head_1_top1``."""

    def findings(self, module: Any, batches: Iterable[TrainingBatch]) -> Mapping[str, Any]:
        """What else modules.json keeps of trained modules, as JSON; measured on all held-out ``batches``, once."""
        return {}

    def published(self, folder: str) -> Mapping[str, Any] | None:
        """The options of modules that others have published, where ``folder`` has a format of theirs."""
        return None

    def as_trained(self, options: Mapping[str, Any]) -> Self:
        """This method as ``build`` needs it for modules trained with the ``options``, of which it may use a part."""
        trained: Any = {self.at_most: options[self.at_most]} if self.at_most else {}
        return replace(self, **trained) if trained else self  # type: ignore[type-var]

    def refuse(self, folder: str, trained: Mapping[str, Any]) -> None:  # noqa: B027 optional
        """Raises UserError where modules trained with the options ``trained`` cannot serve those asked for."""
