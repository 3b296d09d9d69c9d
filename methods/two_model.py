"""Speculative decoding with a smaller draft model of the same tokenizer.

Leviathan, Kalman, Matias, 2023, arXiv 2211.17192, algorithm 1; Chen et al., 2023, arXiv 2302.01318. The confidence stop
is transformers' (assistant_confidence_threshold).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Chain, Context, PlainDrafter, Speculative, UsesDraftModel, check_options
from benchctl.decoding.model.target import Target


@dataclass
class TwoModel(Speculative, UsesDraftModel):
    """Draft with a smaller model, and verify the draft in one pass of the target.

    draft_model   the draft model; empty: the one that --draft-model names
    draft_tokens  tokens drafted per verification
    confidence    stop drafting after a token with a lower draft probability; 0 never stops
    """

    draft_model: str = ""
    draft_tokens: int = 6
    confidence: float = 0.5
    _model: Target = field(init=False, repr=False, compare=False)
    _stream: Stream = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 1, "draft_tokens")
        check_options(self, 0, "confidence", most=1)

    def use_draft_model(self, draft_model: Target) -> None:
        self._model = draft_model

    def start(self, context: Context) -> int:
        first = super().start(context)
        self._stream = Stream(self._model, context.prompt_tokens + context.limit_tokens)
        if len(context.tokens) <= self._model.context_tokens:
            self._feed(context.tokens)
        return first

    def draft(self, context: Context, budget: int) -> Draft:
        # A text longer than the draft model's context goes on without drafts.
        room = self._stream.target.context_tokens - len(context.tokens) + 1
        # What the draft model has read beyond the committed text was rejected; after full acceptance it lacks a row.
        self._stream.truncate(min(self._stream.length, len(context.tokens) - 1))
        unread = context.tokens[self._stream.length :]
        chain = Chain(context)
        for _ in range(min(self.draft_tokens, budget, room)):
            draft_logits = self._feed(unread)
            # Heads of one tokenizer may be padded to different widths; padding is never drafted.
            missing = context.target.vocabulary - draft_logits.shape[-1]
            if missing > 0:
                draft_logits = F.pad(draft_logits, (0, missing), value=-torch.inf)
            draft_logits = draft_logits[:, : context.target.vocabulary]
            token = chain.add(draft_logits)
            if self.confidence and float(draft_logits.softmax(-1)[0, token]) < self.confidence:
                break
            unread = [token]
        return chain.draft()

    def plain_drafter(self, target: Target, draft_model: Target | None) -> PlainDrafter | None:
        if draft_model is None:
            return None

        def propose(text: list[int], budget: int) -> list[int]:
            proposal: list[int] = []
            for _ in range(min(self.draft_tokens, budget, draft_model.context_tokens + 1 - len(text))):
                probs = draft_model.next_logits([*text, *proposal])[: target.vocabulary].softmax(-1)
                proposal.append(int(probs.argmax()))
                if float(probs.max()) < self.confidence:
                    break
            return proposal

        return propose

    def _feed(self, tokens: list[int]) -> Tensor:
        """The draft model's logits [1, vocabulary] after reading ``tokens``."""
        self._stream.push(tokens)
        self._stream.advance()
        draft_logits = self._stream.logits(len(tokens) - 1)
        self._stream.keep(range(len(tokens)))
        return draft_logits
