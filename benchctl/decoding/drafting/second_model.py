"""What methods with a draft model share: its head, its own tokens, and its text, which follows the target's."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from benchctl.decoding.drafting.vocabularies import SameTokens, shared_tokens
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Speculative, UsesDraftModel
from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.draft_vocabulary import UsesDraftVocabulary


@dataclass
class DraftModelMethod(Speculative, UsesDraftModel, UsesDraftVocabulary, ABC):
    """Base of methods that draft with a smaller model, which may have another tokenizer than the target."""

    any_tokenizer = True
    draft_model: str = ""
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    _model: Target = field(init=False, repr=False, compare=False)
    _lm_head: Linear = field(init=False, repr=False, compare=False)
    _tokens: SameTokens = field(init=False, repr=False, compare=False)
    _stream: Stream = field(init=False, repr=False, compare=False)
    _text: list[int] = field(init=False, repr=False, compare=False)  # the target's, in own tokens
    _read_tokens: int = field(init=False, repr=False, compare=False)  # of the target that are in it

    def use_draft_model(self, draft_model: Target) -> None:
        self._model = draft_model

    def prepare(self, target: Target) -> None:
        self._tokens = shared_tokens(target, self._model)
        self.load_vocabulary(self._model.folder, min(target.vocabulary, self._model.vocabulary))
        self.vocabulary = self._tokens.narrow(self.vocabulary)
        self._lm_head = self.vocabulary.lm_head(self._model)

    def start(self, context: Context) -> int:
        first = super().start(context)
        self._stream = Stream(self._model, context.prompt_tokens + context.limit_tokens)
        self._text, self._read_tokens = [], 0
        unread = self.unread(context)
        if len(unread) <= self._model.context_tokens:
            self.feed(context, unread)
        return first

    def unread(self, context: Context) -> list[int]:
        """Own tokens of the text that the draft model has not read; at least those of the last token.

        What it has read beyond the committed text was rejected, and is forgotten.
        """
        for token in context.tokens[self._read_tokens :]:
            self._text += self._tokens.read(token)
        self._read_tokens = len(context.tokens)
        last = len(self._text) - len(self._tokens.read(context.tokens[-1]))
        if self._stream.length > last:
            self._stream.truncate(last)
        return self._text[self._stream.length :]

    @property
    def room(self) -> int:
        """Tokens that can be drafted before the draft model's context ends; a longer text goes on without drafts."""
        return self._model.context_tokens - len(self._text) + 1

    def feed(self, context: Context, own_tokens: Sequence[int]) -> Tensor:
        """Logits [1, k] over the draft vocabulary behind ``own_tokens``, which the draft model reads and keeps."""
        draft_logits = self.score(context, own_tokens, rows=1)
        self._stream.keep(range(len(own_tokens)))
        return draft_logits

    def score(
        self, context: Context, own_tokens: Sequence[int], parents: Sequence[int] | None = None, rows: int = 0
    ) -> Tensor:
        """Logits [rows, k] behind the last ``rows`` of ``own_tokens`` (0: all); ``parents`` are as in Stream.push."""
        self._stream.push(own_tokens, parents)
        self._stream.advance()
        states = self._stream.states[-(rows or len(own_tokens)) :]
        # Heads of one tokenizer may be padded to different widths; padding is never drafted.
        return self._lm_head(self._model.final_norm(states))[:, : context.target.vocabulary]
