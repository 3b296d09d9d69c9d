"""Speculative decoding with a smaller draft model.

Leviathan, Kalman, Matias, 2023, arXiv 2211.17192, algorithm 1; Chen et al., 2023, arXiv 2302.01318. Rules that end a
draft early: drafting/stops.py. Draft models with another tokenizer: drafting/vocabularies.py. draft_by: the last level
of Cascade Speculative Drafting, Chen et al., 2023, arXiv 2312.11462, and of Staged Speculative Decoding, Spector, Re,
2023, arXiv 2308.04623. Their trees and further draft models are not here. draft_exits: S2D, Kavehzadeh et al., 2024,
arXiv 2407.01955; ours: one threshold for all exits. The numbers below are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod, sqrt
from typing import Literal

import torch
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.occurrences import Occurrences
from benchctl.decoding.drafting.second_model import DraftModelMethod
from benchctl.decoding.drafting.stops import Stop, StopRule
from benchctl.decoding.method import Chain, Context, Outcome, PlainDrafter, check_options, refuse_options
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.exits import read_layers
from benchctl.decoding.verify import Verdict, verify_block

_MATCH = 8  # one more than the tokens of the longest run that is looked up
_GUESSES = 3  # tokens looked up for one pass of the draft model


@dataclass
class TwoModel(DraftModelMethod):
    """Draft a chain with a smaller model, and verify it in one pass of the target.

    draft_model       the draft model; empty: the one that --draft-model names
    draft_vocabulary  tokens that the draft model scores: stored (those kept with it, if any) or whole
    draft_tokens      tokens drafted per verification
    confidence        the draft ends where the draft model is less confident; 0 never stops
    stop              measure of that confidence: confidence (the token's draft probability), product (of the draft's
                      tokens) or entropy (AdaEDL's bound of acceptance); or bandit: learn the best length on the way
    token_cost        for stop=bandit, time of drafting and verifying a token in target passes
    draft_exits       layers after which a token may leave the draft model, which was trained so: 1, or 6+9
    exit_confidence   probability that the likeliest token needs to leave there
    draft_by          lookup: tokens copied from the text are drafts for the draft model, which verifies several of them
                      in one pass; its own drafts stay the same
    accept            when sampling: token (each on its own) or block (together; keeps more)
    """

    draft_tokens: int = 6
    confidence: float = 0.5
    stop: StopRule = "confidence"
    token_cost: float = 0.15
    draft_exits: str = ""
    exit_confidence: float = 0.8
    draft_by: Literal["none", "lookup"] = "none"
    accept: Literal["token", "block"] = "token"
    _exits: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _runs: Occurrences = field(init=False, repr=False, compare=False)
    _stop: Stop = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 1, "draft_tokens")
        check_options(self, 0, "confidence", "exit_confidence", most=1)
        check_options(self, 0, "token_cost")
        refuse_options(self, f"with stop={self.stop}", "confidence" if self.stop == "bandit" else "token_cost")
        if read_layers("draft_exits", self.draft_exits):
            refuse_options(self, "with draft_exits", "draft_by")
        else:
            refuse_options(self, "without draft_exits", "exit_confidence")

    @property
    def can_combine(self) -> bool:  # type: ignore[override]
        """The bandit learns from its own drafts alone, and block verification is for them alone."""
        return self.stop != "bandit" and self.accept == "token"

    @property
    def drafts_from_text(self) -> bool:  # type: ignore[override]
        return self.stop != "bandit"

    def unsupported(self, target: TargetInfo) -> str | None:
        needs = "draft_exits needs layers of the draft model, which transformers runs here as a whole"
        return needs if target.opaque and self.draft_exits else None

    def prepare(self, target: Target) -> None:
        super().prepare(target)
        self._exits = self.own_exits(self.draft_exits)

    def start(self, context: Context) -> int:
        self._stop = Stop(self.stop, self.confidence, self.draft_tokens, self.token_cost)
        self._runs = Occurrences(_MATCH)
        return super().start(context)

    def draft(self, context: Context, budget: int) -> Draft:
        unread = self.unread(context)
        chain = Chain(context, self.vocabulary)
        most, ended = min(self._stop.begin(), budget, self.room), False
        while len(chain.tokens) < most and not ended:
            guesses = self._look_up(unread, min(_GUESSES, most - len(chain.tokens) - 1))
            right = 0  # so many guesses
            if self._exits:
                every_logits = self.climb(context, unread, self._exits, self.exit_confidence)
            else:
                every_logits = self.score(context, [*unread, *guesses], rows=1 + len(guesses))
            for draft_logits in torch.split(every_logits, 1):
                place = chain.add(draft_logits)
                if ended := self._stop.ends(draft_logits, place) or chain.tokens[-1] in self._stops:
                    break
                if guesses[right : right + 1] != list(self._tokens.read(chain.tokens[-1])):
                    break
                right += 1
            self._stream.keep(range(self._stream.rows - len(guesses) + right))
            unread = list(self._tokens.read(chain.tokens[-1]))
        return chain.draft()

    def _look_up(self, unread: Sequence[int], most: int) -> list[int]:
        """At most so many own tokens that followed the longest run of last tokens where it first occurred."""
        if self.draft_by == "none":
            return []
        self._runs.append(self._text[len(self._runs.tokens) :])
        matches = self._runs.matches([*self._stream.text[-_MATCH:], *unread])
        return self._runs.following(matches[-1], most) if matches else []

    def observe(self, context: Context, outcome: Outcome) -> None:
        self._stop.learn(len(outcome.draft), len(outcome.verdict.path))

    def verify(self, context: Context, draft: Draft, target_logits: Tensor) -> Verdict:
        if self.accept == "token" or context.sampling.greedy:
            return super().verify(context, draft, target_logits)
        return verify_block(draft, context.sampling.rows(target_logits), context.generator)

    def plain_drafter(self, target: Target, draft_model: Target | None) -> PlainDrafter | None:
        if draft_model is None or self.stop == "bandit" or self.draft_exits:
            return None

        def propose(text: list[int], budget: int) -> list[int]:
            proposal, probs = list[int](), list[float]()
            own = [own for token in text for own in self._tokens.read(token)]
            for _ in range(min(self.draft_tokens, budget, draft_model.context_tokens + 1 - len(own))):
                draft_logits = self.vocabulary.of(draft_model.next_logits(own))
                log_shares = draft_logits[: target.vocabulary].log_softmax(-1)
                proposal.append(self.vocabulary.token(int(log_shares.argmax())))
                own += self._tokens.read(proposal[-1])
                probs.append(float(log_shares.max().exp()))
                entropy = float(-(log_shares.exp() * log_shares).sum())
                confidences = {"product": prod(probs), "entropy": 1 - sqrt(0.2 * entropy)}
                if self.confidence > confidences.get(self.stop, probs[-1]) or proposal[-1] in self._stops:
                    break
            return proposal

        return propose
