"""Leaving at the gates of M2R2, written as plainly as it can be: the whole text anew for every token.

What later tokens see of one that left is put in by hand: the residual that stands for it before each layer above its
exit, or a mask that hides it. Nothing here knows of caches, slots or rows at different depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from oracles import Naive, caught_up
from torch import Tensor
from two_streams import accelerated_beside, hooked_states, masked

from benchctl.methods.m2r2.gates import EPS, Interval
from benchctl.methods.m2r2.training import TwoStreams


@dataclass(frozen=True)
class Left:
    """A token that left after ``gate`` layers; ``stand_ins`` [layers above, width], or None where nobody sees it."""

    gate: int
    stand_ins: Tensor | None


Leavers = Sequence[Left | None]  # per token; None ran all layers, or will have before anyone looks


@dataclass(frozen=True)
class GateAnswer:
    """tokens; the layer each left at; the layers its step ran; the logits [tokens, vocabulary] it was chosen by."""

    tokens: list[int]
    exits: list[int]
    ran: list[int]
    logits: Tensor


@dataclass(frozen=True)
class GateRule:
    """Which router, from where on it lets a token leave, and what the layers above then hold of it."""

    router: str
    threshold: float
    kv_fill: str


def slow_states(naive: Naive, text: Sequence[int], left: Leavers, cache: Any = None) -> Tensor:
    """[layers + 1, tokens, width] residuals before the first layer and after each, as those to come see them.

    ``cache``: an empty one of transformers, to be given the keys and values.
    """

    def arrive(index: int) -> Any:
        def hook(_module: Any, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
            x = inputs[0].clone()
            for token, gone in enumerate(left):
                if gone is not None and gone.stand_ins is not None and index >= gone.gate:
                    x[0, token] = gone.stand_ins[index - gone.gate]
            return (x, *inputs[1:]), {**named, "attention_mask": masked(naive.model, len(text), unseen(left, index))}

        return hook

    layers = enumerate(naive.model.model.layers)
    hooks = [layer.register_forward_pre_hook(arrive(index), with_kwargs=True) for index, layer in layers]
    return hooked_states(naive.model, text, hooks, cache)


def unseen(left: Leavers, index: int) -> list[int]:
    """The tokens that hold nothing in layer ``index``, counted from 0."""
    return [t for t, gone in enumerate(left) if gone is not None and gone.stand_ins is None and index >= gone.gate]


def gate_answer(naive: Naive, module: TwoStreams, rule: GateRule, prompt: Sequence[int], limit: int) -> GateAnswer:
    """What decoding by gates must say, token by token; the first is the target's own."""
    text, left, exits = list(prompt), list[Left | None](), [naive.layers]
    left += [None] * len(prompt)
    logits = [naive.logits(slow_states(naive, text, left)[-1, -1])]
    text.append(int(logits[0].argmax()))
    while len(text) < len(prompt) + limit:
        slow = slow_states(naive, text, [*left, None])
        interval, trail = _exit(naive, module, rule, slow, left)
        exits.append(naive.layers if interval is None else interval.gate)
        logits.append(naive.logits(slow[-1, -1] if interval is None else trail[-1]))
        text.append(int(logits[-1].argmax()))
        left.append(None if interval is None else _leaver(rule, interval, trail, slow[interval.gate, -1]))
    ran = caught_up(exits, len(prompt)) if rule.kv_fill == "deferred_exact" else exits
    return GateAnswer(text[len(prompt) :], exits, ran, torch.stack(logits))


def _exit(
    naive: Naive, module: TwoStreams, rule: GateRule, slow: Tensor, left: Leavers
) -> tuple[Interval | None, Tensor]:
    hidden = [unseen(left, index) for index in range(naive.layers)]
    for interval in module.intervals:
        trail = accelerated_beside(naive, module, slow, interval.first, interval.gate, hidden)
        if sureness(naive, module, rule.router, interval, trail) >= rule.threshold:
            return interval, trail
    return None, slow


def _leaver(rule: GateRule, interval: Interval, trail: Tensor, slow: Tensor) -> Left | None:
    above = range(interval.gate, interval.layers)
    if rule.kv_fill == "deferred_exact":
        return None
    if rule.kv_fill == "absent":
        return Left(interval.gate, None)
    if rule.kv_fill == "copy_h":
        return Left(interval.gate, torch.stack([slow for _ in above]))
    if rule.kv_fill == "copy_p":
        return Left(interval.gate, torch.stack([trail[-1] for _ in above]))
    mapped = [_on_trajectory(interval, trail, depth) for depth in above]
    return Left(interval.gate, torch.stack([slow, *mapped[1:]]))


def _on_trajectory(interval: Interval, trail: Tensor, depth: float) -> Tensor:
    """The accelerated state that was to equal the slow one after ``depth`` layers, between its layers if need be."""
    passed = interval.gate - interval.first
    rate = interval.rate or (interval.layers - interval.first) / passed
    after = min((depth - interval.first) / rate, passed)
    for below in range(passed):
        if below <= after <= below + 1:
            mean: Tensor = trail[below] * (below + 1 - after) + trail[below + 1] * (after - below)
            return mean
    raise AssertionError("the trajectory begins at the interval's start and ends at its gate")


def sureness(naive: Naive, module: TwoStreams, router: str, interval: Interval, trail: Tensor) -> float:
    """What the router says of one token's accelerated states [layers passed + 1, width]."""
    if router == "state_cosine":
        return float(F.cosine_similarity(trail[-2], trail[-1], dim=0))
    if router.startswith("softmax"):
        ordered = naive.logits(trail[-1]).softmax(-1).sort(descending=True).values
        return float(ordered[0] - ordered[1] if router == "softmax_gap" else ordered[0])
    assert module.router is not None
    weights = {name: value.double() for name, value in module.router.state_dict().items()}
    scaled = trail / (trail.square().mean(-1, keepdim=True) + EPS).sqrt()
    weight, bias = weights[f"{interval.gate}.score.weight"][0], weights[f"{interval.gate}.score.bias"][0]
    if router == "linear":
        return float(1 / (1 + torch.exp(-weight @ scaled[-1] - bias)))
    latent = scaled @ weights[f"{interval.gate}.down.weight"].T + weights[f"{interval.gate}.depth"]
    likeness = torch.tensor([float(latent[-1] @ other) / 8.0 for other in latent], dtype=torch.float64).exp()
    context = sum((share / likeness.sum()) * other for share, other in zip(likeness, latent, strict=True))
    return float(1 / (1 + torch.exp(-weight @ torch.cat((torch.as_tensor(context), latent[-1])) - bias)))
