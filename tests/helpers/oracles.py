"""What the tests compare with: the steps and answers that full recomputation dictates.

Verification repairs the text whatever the draft was, so a wrong mask, a wrong position or a stale draft cache shows
only in the steps. Nothing here uses a cache, a mask or a position: each question runs transformers' own model over the
whole text. That is slow, and shares no mistake with the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch.nn.functional as F
from torch import Tensor

from benchctl.conformance.random_models import Naive, autoregressive, in_float64, noisy_copy

__all__ = ["Naive", "autoregressive", "in_float64", "noisy_copy"]

Rounds = list[tuple[int, int]]  # drafted and accepted, round by round
Drafter = Callable[[list[int], int], list[int]]  # text so far and budget in, proposal out
TreeDrafter = Callable[[list[int], int], list[list[int]]]  # the same, several proposals: the branches of a tree


def replay(
    prompt: Sequence[int], answer: Sequence[int], limit: int, draft: Drafter, drafts_before_prefill: bool = False
) -> Rounds:
    """The rounds a greedy draft-and-verify method must take, given the answer it must give.

    ``limit`` is the number of new tokens allowed; a proposal never reaches the last of them, which is the bonus token.
    ``drafts_before_prefill``: transformers' habit of letting the prefill verify a draft; otherwise it gives one token.
    """
    return replay_tree(prompt, answer, limit, lambda text, budget: [draft(text, budget)], drafts_before_prefill)


def replay_tree(
    prompt: Sequence[int], answer: Sequence[int], limit: int, draft: TreeDrafter, drafts_before_prefill: bool = False
) -> Rounds:
    """The same for drafts of several branches: the one that agrees longest is accepted as far as it does."""
    text = [*prompt, *answer]
    at = len(prompt) + (0 if drafts_before_prefill else 1)
    rounds: Rounds = []
    while at < len(text):
        branches = draft(text[:at], len(prompt) + limit - at - 1)
        accepted = max(_agreement(branch, text[at:]) for branch in branches)
        rounds.append((max(map(len, branches)), accepted))
        at += accepted + 1
    return rounds


def _agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two texts have in common from the start."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def model_drafter(
    naive: Naive, draft_tokens: int, confidence: float = 0.0, context_tokens: int = 1 << 30, stop: str = "confidence"
) -> Drafter:
    """Greedy guesses of another model; stops after one it gave less than ``confidence`` and where its context ends.

    ``stop`` "product" compares the product over all guesses instead, "entropy" AdaEDL's bound.
    """

    def draft(text: list[int], budget: int) -> list[int]:
        proposal: list[int] = []
        together = 1.0
        for _ in range(min(draft_tokens, budget, context_tokens + 1 - len(text))):
            probs = naive.logits(naive.last_states([*text, *proposal])[-1]).softmax(-1)
            proposal.append(int(probs.argmax()))
            together *= float(probs.max())
            bound = 1.0 - (0.2 * float(-(probs * probs.log()).sum())) ** 0.5
            if {"confidence": float(probs.max()), "product": together, "entropy": bound}[stop] < confidence:
                break
        return proposal

    return draft


def heads_drafter(naive: Naive, widths: Sequence[int], say: Callable[[Tensor], Sequence[Tensor]]) -> TreeDrafter:
    """A tree of heads' likeliest tokens; ``say`` gives each one's logits for the final state before the root."""

    def draft(text: list[int], budget: int) -> list[list[int]]:
        final = naive.model.model.norm(naive.last_states(text[:-1])[-1])
        picks = [logits.argsort(descending=True).tolist() for logits in say(final)]
        return [
            [picks[depth][rank] for depth, rank in enumerate(ranks[: max(budget, 0)])]
            for ranks in product(*map(range, widths))
        ]

    return draft


@dataclass(frozen=True)
class ExitRule:
    """Leave at the first of ``layers`` whose confidence reaches ``threshold``.

    classifier  layer and its state in, confidence out
    speak       what an exit says where that is not for the target's own head: layer and state in, logits out
    lowered     the threshold for a text of so many tokens, where it is not the same for all
    """

    layers: tuple[int, ...]
    confidence: str = "softmax_gap"
    threshold: float = 0.9
    classifier: Callable[[int, Tensor], float] | None = None
    speak: Callable[[int, Tensor], Tensor] | None = None
    lowered: Callable[[int], float] | None = None

    def choose(self, naive: Naive, text: Sequence[int], depths: Sequence[int] | None = None) -> tuple[int, int]:
        """Next token and the layers its row runs; ``depths`` of the rows before it, frozen above, if not all full."""
        states = naive.last_states(text, None if depths is None else [*depths, naive.layers])
        threshold = self.lowered(len(text)) if self.lowered else self.threshold
        for layer in self.layers:
            if self._confidence(naive, states, layer) >= threshold:
                return int(self._logits(naive, states, layer).argmax()), layer
        return int(naive.logits(states[-1]).argmax()), naive.layers

    def _logits(self, naive: Naive, states: Tensor, layer: int) -> Tensor:
        return self.speak(layer, states[layer]) if self.speak else naive.logits(states[layer])

    def _confidence(self, naive: Naive, states: Tensor, layer: int) -> float:
        if self.classifier is not None:
            return self.classifier(layer, states[layer])
        if self.confidence == "state_cosine":
            return float(F.cosine_similarity(states[layer - 1], states[layer], dim=0))
        ordered = self._logits(naive, states, layer).softmax(-1).sort(descending=True).values
        return float(ordered[0] - ordered[1] if self.confidence == "softmax_gap" else ordered[0])


def exit_drafter(naive: Naive, rule: ExitRule, draft_tokens: int) -> Drafter:
    """Guesses of the exits, up to the first row that reaches the last layer: its token is the target's own.

    A guess never changes what the next one sees of the layers below its exit.
    """

    def draft(text: list[int], budget: int) -> list[int]:
        proposal: list[int] = []
        for _ in range(min(draft_tokens, budget)):
            token, layer = rule.choose(naive, [*text, *proposal])
            if layer == naive.layers:
                break
            proposal.append(token)
        return proposal

    return draft


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
