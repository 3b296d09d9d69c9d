"""Trained exits: low-rank additions (LoRA, arXiv 2106.09685), and scores of where an exit agrees with the last."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, tanh
from types import MappingProxyType
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchctl.decoding.adaptive import AdaptiveDepth, KvFill
from benchctl.decoding.draft import Draft
from benchctl.decoding.method import Chain, Context, Exactness, MonotoneThreshold, Speculative, check_options
from benchctl.decoding.model.kernels import Linear, Norm
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import UsesDraftVocabulary
from benchctl.decoding.modules.trainable import (
    ROWS_AT_ONCE,
    Numbered,
    Tally,
    Trainable,
    TrainingBatch,
    load_modules,
    tally,
    trained_options,
)
from benchctl.errors import UserError

Head = Callable[[Tensor], Tensor]
AdapterKind = Literal["lora", "bottleneck", "hybrid"]


class LowRank(nn.Module):
    """x [..., inputs] -> scale * up(down(x)), with SiLU in between where ``bends``; up starts as zero."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float, device: torch.device, bends: bool) -> None:
        super().__init__()
        self.down = nn.Linear(inputs, rank, bias=False, device=device)
        self.up = nn.Linear(rank, outputs, bias=False, device=device)
        self.scale, self.bends = scale, bends
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.down(x)
        added: Tensor = self.up(F.silu(inner) if self.bends else inner)
        return added * self.scale


@dataclass(frozen=True)
class AdapterSettings:
    """Kind, rank and alpha of adapters: what they add is multiplied by alpha / rank."""

    kind: AdapterKind
    rank: int
    alpha: float

    def __post_init__(self) -> None:
        for name in ("rank", "alpha"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")

    def low_rank(self, inputs: int, outputs: int, device: torch.device, bends: bool = False) -> LowRank:
        return LowRank(inputs, outputs, self.rank, self.alpha / self.rank, device, bends)


class Delta:
    """A trained LowRank for decoding: two products that are added to a result, or replace it."""

    def __init__(self, trained: LowRank, replaces: bool = False) -> None:
        # Transposed once here: [inputs, rank] and [rank, outputs] are what addmm reads without a copy.
        self._down = trained.down.weight.t().contiguous()
        self._up = (trained.up.weight * trained.scale).t().contiguous()
        self._bends, self._beta = trained.bends, 0 if replaces else 1

    def add_to(self, result: Tensor, x: Tensor) -> Tensor:
        """``result`` [rows, outputs], changed in place, for x [rows, inputs]."""
        return result.addmm_(self._inner(x), self._up, beta=self._beta)

    def of(self, x: Tensor) -> Tensor:
        """What it would add, [rows, outputs]."""
        return torch.mm(self._inner(x), self._up)

    def _inner(self, x: Tensor) -> Tensor:
        inner = torch.mm(x, self._down)
        return F.silu(inner) if self._bends else inner


def chance(score: Tensor) -> float:
    """Of agreement: the sigmoid of a score of one element, which cannot overflow."""
    return 0.5 + 0.5 * tanh(0.5 * float(score))


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


CE_SHARE = 0.1  # of the cross-entropy with the text, beside 1 for the divergence from the target's distribution


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
        self._change, self._norm, self._lm_head = Delta(trained.change), norm, lm_head
        self._own_norm = self._norm if trained.gain is None else self._norm.scaled(trained.gain)

    def __call__(self, states: Tensor) -> Tensor:
        changed = states + self._change.of(self._norm(states))
        return self._lm_head(self._own_norm(changed))


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


class _Divergences(torch.autograd.Function):
    """See exit_losses; of some tokens that stand in one dimension. The gradient is made on the way, a few rows at once.

    Autograd would keep logits, their log-softmax and its gradient of all tokens and exits: most of the time and memory
    of a training went there.
    """

    @staticmethod
    def forward(
        ctx: Any, normed: Tensor, final: Tensor, log_normalizers: Tensor, places: Tensor, head: Head, ce_share: float
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


def exits_loss(module: Exits, batch: TrainingBatch) -> Tensor:
    """Mean over exits of the weighted sums of exit_losses: equal weights, as in LITE; AdamW takes out any scale."""
    losses = exit_losses(batch, [module.normed(batch, layer) for layer in module.layers])
    return (losses.mean(0) * batch.ahead(1).weights).sum()


def deep_supervision_loss(module: Exits, batch: TrainingBatch) -> Tensor:
    """DEED's L = L_avg + L_N without the terms of the last layer: it is the frozen target's, and they are constants.

    L_avg is the mean over the exits and the last layer, L_N the loss of the last layer.
    """
    losses = exit_losses(batch, [module.normed(batch, layer) for layer in module.layers])
    return (losses.sum(0) * batch.ahead(1).weights).sum() / (len(module.layers) + 1)


def agreement_loss(scores: Mapping[int, Tensor], right: Mapping[int, Tensor], batch: TrainingBatch) -> Tensor:
    """Sum over exits of class-balanced binary cross-entropies; a token's weight is that of the one it must predict."""
    weights = batch.ahead(1).weights
    return torch.stack([balanced_loss(scores[layer], right[layer], weights) for layer in scores]).sum()


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
        if there := read_exits(str(trained.get("exits", ""))):
            refuse_other_exits(folder, self.allowed(read_exits(self.exits) or there), there)

    def load_exits(self, name: str, target: Target) -> Exits:
        """The trained modules of this method, called ``name``, whose exits speak from now on.

        Raises UserError as load_modules does, and for exits that they were not trained for.
        """
        options = trained_options(cast(Trainable, self), name, self.modules)
        chosen = {key: options[key] for key in ("exits", "min_exit") if key in options and hasattr(self, key)}
        as_trained: Any = replace(self, **chosen)  # type: ignore[type-var]
        module: Exits = load_modules(as_trained, name, target, self.modules)
        if self.drafts:
            self.load_vocabulary(self.modules, target.vocabulary)
        self._lm_head = self.vocabulary.lm_head(target)
        self._trained, self._heads = module.layers, module.heads(target.final_norm, self._lm_head)
        refuse_other_exits(self.modules, self.exit_layers(target), module.layers)
        return module

    def exit_head(self, target: Target, layer: int, state: Tensor) -> Tensor:
        """Logits [rows, k] over the draft vocabulary for states [rows, width] after ``layer`` layers."""
        if self._heads:
            return self._heads[layer](state)
        return target.head(state) if self._lm_head is None else self._lm_head(target.final_norm(state))

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
        if self.draft_vocabulary == "whole" and self.mode != "draft":
            raise ValueError(f"draft_vocabulary is {self.draft_vocabulary}; it is an option of mode=draft")

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
