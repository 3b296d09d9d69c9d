"""What the tests compare with, beside the plain decoding and the replayed steps of benchctl.conformance: what early
exit without verification must say.

Nothing here uses a cache, a mask or a position: each question runs transformers' own model over the whole text. That is
slow, and shares no mistake with the code under test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchctl.conformance.plain import Naive, autoregressive, in_float64, noisy_copy
from benchctl.conformance.replay import (
    Drafter,
    ExitRule,
    Rounds,
    TreeDrafter,
    exit_drafter,
    lookup_drafter,
    model_drafter,
    replay,
    replay_tree,
)

__all__ = [
    "Drafter",
    "ExitRule",
    "Naive",
    "Rounds",
    "TreeDrafter",
    "autoregressive",
    "exit_drafter",
    "in_float64",
    "lookup_drafter",
    "model_drafter",
    "noisy_copy",
    "replay",
    "replay_tree",
]


@dataclass(frozen=True)
class ExitAnswer:
    """tokens, the layer each of them left at, and the layers its step ran, put-off ones of earlier tokens included."""

    tokens: list[int]
    exits: list[int]
    ran: list[int]


def exit_answer(naive: Naive, prompt: Sequence[int], limit: int, rule: ExitRule, propagate: bool) -> ExitAnswer:
    """What early exit without verification must say, and where each token must leave.

    With ``propagate`` later tokens see frozen residuals of those that left early; without, ordinary ones.
    """
    text = [*prompt, naive.argmax(prompt)]
    depths = [naive.layers] * len(prompt)
    while len(text) < len(prompt) + limit:
        token, layer = rule.choose(naive, text, depths if propagate else None)
        text.append(token)
        depths.append(layer)
    exits = depths[len(prompt) - 1 :]
    return ExitAnswer(text[len(prompt) :], exits, exits if propagate else caught_up(exits, len(prompt)))


def caught_up(exits: Sequence[int], prompt_tokens: int) -> list[int]:
    """Layers each step runs where layers are put off: a step that goes deeper takes every earlier row along."""
    depths = [exits[0]] * prompt_tokens
    ran = [exits[0]]
    for layer in exits[1:]:
        depths.append(0)
        ran.append(sum(max(0, layer - depth) for depth in depths))
        depths = [max(depth, layer) for depth in depths]
    return ran
