"""Trained exits: modules for each exit layer, their losses, and the mix-ins of methods that leave or draft at exits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, tanh
from types import MappingProxyType
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn

from benchctl.decoding.adaptive import AdaptiveDepth, KvFill
from benchctl.decoding.draft import Draft
from benchctl.decoding.method import (
    Chain,
    Context,
    Exactness,
    MonotoneThreshold,
    Speculative,
    check_options,
    refuse_options,
)
from benchctl.decoding.model.kernels import Linear, Norm
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import UsesDraftVocabulary
from benchctl.decoding.modules.folders import load_modules
from benchctl.decoding.modules.losses import bare, exit_losses, exit_yardsticks
from benchctl.decoding.modules.low_rank import Delta, LowRank
from benchctl.decoding.modules.trainable import Numbered, Tally, Trainable, TrainingBatch, tally
from benchctl.errors import UserError


def chance(score: Tensor) -> float:
    """Of agreement: the sigmoid of a score of one element, which cannot overflow."""
    return 0.5 + 0.5 * tanh(0.5 * float(score))


class ExitModule(nn.Module):
    """gain * norm(h + scale * change(norm(h))), change of ``rank`` inner units; it starts as the bare exit."""

    def __init__(self, width: int, rank: int, device: torch.device, own_gain: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        self.change = LowRank(width, width, rank, scale, device, bends=True)
        self.gain = nn.Parameter(torch.ones(width, device=device)) if own_gain else None

    def normed(self, batch: TrainingBatch, layer: int) -> Tensor:
        """[rows, n, width] what the head reads of the states of a batch after ``layer`` layers."""
        state = batch.states[layer].float()
        normed = batch.norm(state + self.change(batch.norm(state)))
        return normed if self.gain is None else normed * self.gain


class ExitHead:
    """A trained exit for rows of decoding: their residuals [rows, width] to logits [rows, outputs of ``lm_head``]."""

    def __init__(self, trained: ExitModule, norm: Norm, lm_head: Linear) -> None:
        self._change, self._norm, self._lm_head = Delta(trained.change, lm_head.form), norm, lm_head
        self._own_norm = self._norm if trained.gain is None else self._norm.scaled(trained.gain)

    def __call__(self, states: Tensor) -> Tensor:
        return self._lm_head(self.read(states))

    def read(self, states: Tensor) -> Tensor:
        """[rows, width] what the LM head reads."""
        return self._own_norm(states + self._change.of(self._norm(states)))


class Exits(nn.Module):
    """For each exit layer a module, where they are trained, and a linear score of its state, where it is classified."""

    def __init__(self, modules: Mapping[int, ExitModule], classifiers: Mapping[int, nn.Linear]) -> None:
        super().__init__()
        self.exits, self.classifier = Numbered(modules), Numbered(classifiers)

    @property
    def layers(self) -> tuple[int, ...]:
        return self.exits.numbers or self.classifier.numbers

    def heads(self, norm: Norm, lm_head: Linear) -> dict[int, ExitHead]:
        return {layer: ExitHead(self.exits.of(layer), norm, lm_head) for layer in self.exits.numbers}

    def normed(self, batch: TrainingBatch, layer: int) -> Tensor:
        """[rows, n, width] what the head reads of what leaves after ``layer`` layers."""
        return self.exits.of(layer).normed(batch, layer) if self.exits else bare(batch, layer)

    def scores(self, batch: TrainingBatch) -> dict[int, Tensor]:
        """[rows, n] for each exit layer: above 0 where agreement is likelier than not."""
        scorers = {layer: self.classifier.of(layer) for layer in self.classifier.numbers}
        return {layer: score(batch.states[layer].to(score.weight.dtype))[..., 0] for layer, score in scorers.items()}

    @torch.no_grad()
    def agreements(self, batch: TrainingBatch) -> dict[int, Tensor]:
        """[rows, n] for each exit layer: whether its likeliest next token is the last layer's."""
        return {layer: batch.picks(self.normed(batch, layer)) == batch.teacher.top_tokens for layer in self.layers}


def exits_loss(module: Exits, batch: TrainingBatch) -> Tensor:
    """Mean over exits of the weighted sums of exit_losses: equal weights, as in LITE; AdamW takes out any scale."""
    losses = exit_losses(batch, [module.normed(batch, layer) for layer in module.layers])
    return (losses.mean(0) * batch.ahead(1).weights).sum()


@torch.no_grad()
def exits_yardsticks(module: Exits, batch: TrainingBatch) -> dict[str, Tally]:
    """exit_yardsticks where exits are classified, else shares of tokens with the last layer's likeliest successor.

    exit_4_top1, exit_4_bare_top1: at layer 4, by the trained exit, and by the target's own norm and head.
    """
    right = module.agreements(batch)
    if module.classifier:
        return exit_yardsticks(module.scores(batch), batch, right)
    weights, last = batch.ahead(1).weights, batch.teacher.top_tokens
    tallies: dict[str, Tally] = {}
    for layer, agrees in right.items():
        tallies[f"exit_{layer}_top1"] = tally(agrees, weights)
        tallies[f"exit_{layer}_bare_top1"] = tally(batch.picks(bare(batch, layer)) == last, weights)
    return tallies


def read_layers(option: str, text: str) -> list[int]:
    """Layer numbers joined by +; none for an empty text. Raises ValueError for other text."""
    parts = text.split("+") if text else []
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"{option} is {text!r}; join layer numbers by +, such as 4+8")
    return [int(part) for part in parts]


def read_exits(text: str) -> tuple[int, ...]:
    return tuple(sorted(set(read_layers("exits", text))))


def eighths(layers: int, least: int = 1) -> tuple[int, ...]:
    """Every eighth of so many layers from a quarter on, ``least`` at least: where LITE trains exits."""
    return tuple(range(max(1, layers // 4, least), layers, max(1, layers // 8)))


def decayed(threshold: float, decay: float, at: int, of: int) -> float:
    """CALM's threshold for new token ``at`` (0, 1, ..) of ``of`` at most: clip(0.9 lambda + 0.1 exp(-decay t / T)).

    Schuster et al. 2022, arXiv 2207.07061, section 3.5, decay 4.
    """
    return min(1.0, max(0.0, 0.9 * threshold + 0.1 * exp(-decay * at / of)))


class ExitHeads(UsesDraftVocabulary, ABC):
    """Mix-in of a method with exits, which the target's own head reads or trained modules: its options name them."""

    exits: str
    modules: str
    _trained: tuple[int, ...] = ()
    _heads: Mapping[int, ExitHead] = MappingProxyType({})
    _lm_head: Linear | None = None

    @property
    def drafts(self) -> bool:
        """Whether exits only draft, and so may score a draft vocabulary."""
        return True

    @abstractmethod
    def default_exits(self, layers: int) -> tuple[int, ...]:
        """For a target of so many layers, where ``exits`` names none."""

    def allowed(self, exits: tuple[int, ...]) -> tuple[int, ...]:
        """Those of ``exits`` that the other options leave."""
        return exits

    def exit_layers(self, target: Target | TargetInfo) -> tuple[int, ...]:
        return self.allowed(read_exits(self.exits) or self._trained or self.default_exits(target.layers))

    def unsupported(self, target: TargetInfo) -> str | None:
        exits = self.exit_layers(target)
        if not exits or exits[-1] >= target.layers:
            least = f"exit {exits[-1] if exits else 1} is not below the target's {target.layers} layers"
            return f"{least}; choose others with the option exits"
        return None

    def refuse(self, folder: str, trained: Mapping[str, Any]) -> None:
        there = read_exits(str(trained.get("exits", "")))
        if not there and trained.get("min_exit") and not hasattr(self, "min_exit"):
            message = f"{folder}: trained with min_exit={trained['min_exit']}, which this method does not have"
            raise UserError("trained_with_other_option", f"{message}; train exits by number, such as exits=8+12")
        if there:
            refuse_other_exits(folder, self.allowed(read_exits(self.exits) or there), there)

    def as_trained(self, options: Mapping[str, Any]) -> Self:
        chosen: Any = {key: options[key] for key in ("exits", "min_exit") if key in options and hasattr(self, key)}
        return replace(self, **chosen)  # type: ignore[type-var]

    def load_exits(self, name: str, target: Target) -> Exits:
        """The trained modules of this method, called ``name``, whose exits speak from now on.

        Raises UserError as load_modules does, and for exits that they were not trained for.
        """
        module: Exits = load_modules(cast(Trainable, self), name, target, self.modules)
        if self.drafts:
            self.load_vocabulary(self.modules, target.vocabulary)
        self._lm_head = self.vocabulary.lm_head(target)
        self._trained, self._heads = module.layers, module.heads(target.final_norm, self._lm_head)
        refuse_other_exits(self.modules, self.exit_layers(target), module.layers)
        return module

    def exit_head(self, target: Target, layer: int, state: Tensor) -> Tensor:
        """Logits [rows, k] over the draft vocabulary for states [rows, width] after ``layer`` layers."""
        return self.exits_head(target, {layer: state})[0]

    def exits_head(self, target: Target, states: Mapping[int, Tensor]) -> Tensor:
        """Logits [exits, rows, k] likewise, for states of equally many rows: exits share the LM head, so one product
        gives all."""
        read = [
            self._heads[layer].read(state) if self._heads else target.final_norm(state)
            for layer, state in states.items()
        ]
        lm_head = target.lm_head if self._lm_head is None else self._lm_head
        logits = lm_head(torch.cat(read) if len(read) > 1 else read[0])
        return logits.view(len(read), -1, logits.shape[-1])

    def yardsticks(self, module: Exits, batch: TrainingBatch) -> Mapping[str, Tally]:
        return exits_yardsticks(module, batch)


class ExitPolicy(ExitHeads, AdaptiveDepth, Speculative, MonotoneThreshold):
    """Leaves at the first exit that is sure enough (lossy); in mode=draft the full model verifies proposals.

    Only proposals come from the draft vocabulary, and so do the confidences that they are made by.
    """

    mode: Literal["exit", "draft"]
    threshold: float
    draft_tokens: int

    def __post_init__(self) -> None:
        check_options(self, 0, "threshold")
        check_options(self, 1, "draft_tokens")
        read_exits(self.exits)
        if not self.drafts:
            refuse_options(self, f"with mode={self.mode}", "draft_tokens", "draft_vocabulary")

    @property
    def drafts(self) -> bool:
        return self.mode == "draft"

    @property
    def exactness(self) -> Exactness:  # type: ignore[override]
        return "exact" if self.drafts else "lossy"

    @property
    def reason(self) -> str:  # type: ignore[override]
        return "" if self.drafts else "tokens that exit early are not verified by the full target"

    @property
    @abstractmethod
    def kv_fill(self) -> KvFill:
        """What layers above an exit hold of a token that left there."""

    def draft(self, context: Context, budget: int) -> Draft:
        """A chain proposed by the exits; its rows wait at the layer where they left until verification."""
        chain = Chain(context, self.vocabulary)
        for _ in range(min(self.draft_tokens, budget)):
            view = self.climb(context)
            if view.layer == context.target.layers:
                break  # every row has run all layers now: this token is the target's own, the bonus of this step
            chain.add(view.logits)
            context.stream.push(chain.tokens[-1:])
            if chain.ended:
                break
        return chain.draft()

    def step(self, context: Context) -> Sequence[int]:
        return Speculative.step(self, context) if self.drafts else self.exit_step(context, self.kv_fill)


def refuse_other_exits(folder: str, asked: Sequence[int], there: Sequence[int]) -> None:
    """Raises UserError unless some exits are asked for, and modules in ``folder`` are ``there`` for all of them."""
    missing = [layer for layer in asked if layer not in there]
    if asked and not missing:
        return
    problem = "all of them below min_exit; give a lower min_exit, or train modules for higher exits"
    if missing:
        problem = f"not for {missing[0]}; choose others with the option exits, or train modules for the exits you want"
    raise UserError("exits_not_trained", f"{folder}: trained for exits {'+'.join(map(str, there))}, {problem}")
