"""Draft from the exit of the target that promises most tokens per layer, and verify with the layers above it.

DEL: Entezari Zarch et al. 2025, arXiv 2504.05598. Verification runs all layers, so the states of each verified row show
what every exit would have drafted there. Ours: the prompt is run before the first draft, which already is the best one;
of a sampled draft, rows behind the first rejected token teach nothing; trained exits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.grow import wide
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import CarriesOver, Chain, Context, Outcome, Speculative, check_options, refuse_options
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.exits import ExitHeads, ExitModule, Exits, eighths, exits_loss, read_exits
from benchctl.decoding.modules.trainable import SecondStage, Trainable, TrainingBatch, TrainingDefaults

from .estimates import Estimates

_ROWS_AT_ONCE = 128  # of exits together
_PROMPT_ROWS = 33  # last rows of the prompt that estimates begin with, as in the authors' code


@dataclass
class AutoExit(ExitHeads, Speculative, Trainable, CarriesOver):
    """Draft a chain from one exit, chosen at each step by the tokens per layer that each exit promises.

    head          target (its own norm and head at every exit) or trained (exits of early_exit)
    exits         layers to choose from, joined by +, such as 2+4+8; empty: all exits of the modules, or every layer
                  (in training: every eighth of the depth from a quarter on)
    draft_tokens  tokens drafted per verification, at most
    stop          confidence: a draft ends with a token less likely than a threshold, which follows how likely right and
                  wrong tokens of the exit were; length: the number of tokens with most tokens per layer, perhaps none
    decay         after each step, what earlier rows have shown is multiplied by this; 1 forgets nothing
    memory        run: begin with what the prompts before have shown
    rank, alpha   as in early_exit
    modules       folder of the trained exits
    draft_vocabulary  tokens that exits score: stored (those kept with the modules, if any) or whole
    """

    head: Literal["target", "trained"] = "target"
    exits: str = ""
    draft_tokens: int = 18
    stop: Literal["confidence", "length"] = "confidence"
    decay: float = 0.95
    memory: Literal["prompt", "run"] = "prompt"
    rank: int = 64
    alpha: float = 256.0
    modules: str = ""
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    can_combine = False
    drafts_from_text = False  # but from the rows of all earlier steps
    supports_encoder_decoder = True
    demo = ("head=trained",)
    trained_for = ("alpha",)
    modules_of = "early_exit"
    store: Estimates = field(init=False, repr=False, compare=False)
    _states: dict[int, list[Tensor]] = field(init=False, repr=False, compare=False)  # of open rows at each exit

    def __post_init__(self) -> None:
        check_options(self, 1, "draft_tokens", "rank")
        check_options(self, 0, "alpha")
        check_options(self, 0, "decay", most=1)
        read_exits(self.exits)
        if not self.needs_modules:
            refuse_options(self, "with head=target", "rank", "alpha", "modules", "draft_vocabulary")

    @property
    def needs_modules(self) -> bool:
        return self.head == "trained"

    @property
    def second_stage(self) -> SecondStage:
        """Classifiers, which the modules of early_exit may have, are not read."""
        return SecondStage("classifier", "", False, TrainingDefaults())

    def default_exits(self, layers: int) -> tuple[int, ...]:
        return eighths(layers) if self.head == "trained" else tuple(range(1, layers))

    def build(self, info: TargetInfo, lm_head: Tensor) -> Exits:
        shape = (info.hidden_size, self.rank, lm_head.device, True, self.alpha / self.rank)
        return Exits({layer: ExitModule(*shape) for layer in self.exit_layers(info)}, {})

    def loss(self, module: Exits, batch: TrainingBatch) -> Tensor:
        return exits_loss(module, batch)

    def prepare(self, target: Target) -> None:
        if self.needs_modules:
            self.load_exits("auto_exit", target)

    def new_store(self) -> Estimates:
        return Estimates()

    def start(self, context: Context) -> int:
        stream, target = context.stream, context.target
        exits = self.exit_layers(target)
        stream.taps = (*exits, target.layers)
        first = super().start(context)
        *states, last = (features[-_PROMPT_ROWS:] for features in stream.features)
        stream.taps = stream.features = ()  # drafted rows wait at the exit
        self._learn(target, dict(zip(exits, states, strict=True)), target.head(last))
        return first

    def draft(self, context: Context, budget: int) -> Draft:
        stream, chain = context.stream, Chain(context, self.vocabulary)
        exits = self.exit_layers(context.target)
        self._states = {layer: [] for layer in exits}
        at, length = self.store.best(exits, context.target.layers, self.draft_tokens)
        least = self.store.threshold(at)
        for _ in range(min(self.draft_tokens if self.stop == "confidence" else length, budget)):
            self._climb(stream, exits[: at + 1])
            draft_logits = self.exit_head(context.target, exits[at], stream.states[-1:])
            place = chain.add(draft_logits)
            stream.push(chain.tokens[-1:])
            # No token is below the threshold nan, of an exit that was never right or never wrong.
            unsure = self.stop == "confidence" and float(wide(draft_logits).softmax(-1)[0, place]) < least
            if unsure or chain.ended:
                break
        return chain.draft()

    def run_draft(self, context: Context, root: int, draft: Draft) -> None:
        self._climb(context.stream, self.exit_layers(context.target))
        context.stream.advance()

    def _climb(self, stream: Stream, exits: Sequence[int]) -> None:
        """Run the open rows up to the last of these exits, and keep their states at each of them."""
        for layer in exits:
            ran = stream.cache.lengths[layer - 1] - stream.base
            stream.advance(layer)
            self._states[layer].append(stream.states[ran:])

    def observe(self, context: Context, outcome: Outcome) -> None:
        rows = [0, *(1 + row for row in outcome.verdict.path)]  # those behind a text that was committed
        states = {layer: torch.cat(parts)[rows] for layer, parts in self._states.items()}
        self._learn(context.target, states, outcome.target_logits[rows])

    def _learn(self, target: Target, states: dict[int, Tensor], target_logits: Tensor) -> None:
        """From the states [rows, width] at each exit of rows whose logits [rows, vocabulary] the target gave."""
        wanted, right, likely = target_logits.argmax(-1), list[Tensor](), list[Tensor]()
        # All exits at once read the LM head once; those of a whole prompt would need much memory.
        exits, at_once = list(states), max(1, _ROWS_AT_ONCE // len(wanted))
        for start in range(0, len(exits), at_once):
            some = {layer: states[layer] for layer in exits[start : start + at_once]}
            likeliest = wide(self.exits_head(target, some)).softmax(-1).max(-1)
            right.append(self.vocabulary.ids_at(likeliest.indices) == wanted)
            likely.append(likeliest.values)
        self.store.learn(torch.cat(right).cpu(), torch.cat(likely).cpu(), self.decay)
