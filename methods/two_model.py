"""Speculative decoding with a smaller draft model of the same tokenizer.

Leviathan, Kalman, Matias, 2023, arXiv 2211.17192, algorithm 1; Chen et al., 2023, arXiv 2302.01318. The confidence stop
is transformers' (assistant_confidence_threshold).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Chain, Context, PlainDrafter, Speculative, UsesDraftModel, check_options
from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.draft_vocabulary import UsesDraftVocabulary
from benchctl.decoding.verify import common_start


@dataclass
class TwoModel(Speculative, UsesDraftModel, UsesDraftVocabulary):
    """Draft with a smaller model, and verify the draft in one pass of the target.

    draft_model       the draft model; empty: the one that --draft-model names
    draft_tokens      tokens drafted per verification
    confidence        stop drafting after a token with a lower draft probability, which is one over the draft
                      vocabulary; 0 never stops
    draft_vocabulary  tokens that the draft model scores: stored (those kept with it, if any) or whole
    """

    draft_model: str = ""
    draft_tokens: int = 6
    confidence: float = 0.5
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    _model: Target = field(init=False, repr=False, compare=False)
    _lm_head: Linear = field(init=False, repr=False, compare=False)
    _stream: Stream = field(init=False, repr=False, compare=False)
    _read_tokens: int = field(init=False, repr=False, compare=False)  # of the text, when it drafted last

    def __post_init__(self) -> None:
        check_options(self, 1, "draft_tokens")
        check_options(self, 0, "confidence", most=1)

    def use_draft_model(self, draft_model: Target) -> None:
        self._model = draft_model

    def prepare(self, target: Target) -> None:
        self.load_vocabulary(self._model.folder, min(target.vocabulary, self._model.vocabulary))
        self._lm_head = self.vocabulary.lm_head(self._model)

    def start(self, context: Context) -> int:
        first = super().start(context)
        self._stream = Stream(self._model, context.prompt_tokens + context.limit_tokens)
        if len(context.tokens) <= self._model.context_tokens:
            self._feed(context.tokens)
        self._read_tokens = self._stream.length
        return first

    def draft(self, context: Context, budget: int) -> Draft:
        # A text longer than the draft model's context goes on without drafts.
        room = self._stream.target.context_tokens - len(context.tokens) + 1
        # What the draft model read last was its own draft, of which it keeps what was committed. In a combination steps
        # may have passed since then.
        agreed = common_start(self._stream.text[self._read_tokens :], context.tokens[self._read_tokens : -1])
        self._stream.truncate(min(self._stream.length, self._read_tokens + agreed))
        self._read_tokens = len(context.tokens)
        unread = context.tokens[self._stream.length :]
        chain = Chain(context, self.vocabulary)
        for _ in range(min(self.draft_tokens, budget, room)):
            # Heads of one tokenizer may be padded to different widths; padding is never drafted.
            draft_logits = self._feed(unread)[:, : context.target.vocabulary]
            place = chain.add(draft_logits)
            if self.confidence and float(draft_logits.softmax(-1)[0, place]) < self.confidence:
                break
            unread = chain.tokens[-1:]
        return chain.draft()

    def plain_drafter(self, target: Target, draft_model: Target | None) -> PlainDrafter | None:
        if draft_model is None:
            return None

        def propose(text: list[int], budget: int) -> list[int]:
            proposal: list[int] = []
            for _ in range(min(self.draft_tokens, budget, draft_model.context_tokens + 1 - len(text))):
                draft_logits = draft_model.next_logits([*text, *proposal])[: target.vocabulary]
                probs = self.vocabulary.of(draft_logits).softmax(-1)
                proposal.append(self.vocabulary.token(int(probs.argmax())))
                if float(probs.max()) < self.confidence:
                    break
            return proposal

        return propose

    def _feed(self, tokens: list[int]) -> Tensor:
        """The draft model's logits [1, k] over its draft vocabulary after reading ``tokens``."""
        self._stream.push(tokens)
        self._stream.advance()
        last = self._stream.states[-1:]
        self._stream.keep(range(len(tokens)))
        return self._lm_head(self._model.final_norm(last))
