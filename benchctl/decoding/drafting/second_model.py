"""What methods with a draft model share: its head, its own tokens, and its text, which follows the target's."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from benchctl.decoding.drafting.grow import wide
from benchctl.decoding.drafting.vocabularies import SameTokens, SharedTokens, shared_tokens
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Speculative, UsesDraftModel
from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.draft_vocabulary import UsesDraftVocabulary
from benchctl.decoding.modules.exits import read_exits
from benchctl.decoding.verify import common_start
from benchctl.errors import UserError


@dataclass
class DraftModelMethod(Speculative, UsesDraftModel, UsesDraftVocabulary, ABC):
    """Base of methods that draft with a smaller model, which may have another tokenizer than the target."""

    any_tokenizer = True
    needs_layers = False
    draft_model: str = ""
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    _model: Target = field(init=False, repr=False, compare=False)
    _lm_head: Linear = field(init=False, repr=False, compare=False)
    _tokens: SameTokens = field(init=False, repr=False, compare=False)
    _stops: frozenset[int] = field(init=False, repr=False, compare=False)  # of the target or of the draft model
    _stream: Stream = field(init=False, repr=False, compare=False)
    _text: list[int] = field(init=False, repr=False, compare=False)  # the target's, in own tokens
    _read_tokens: int = field(init=False, repr=False, compare=False)  # of the target that are in it

    def use_draft_model(self, draft_model: Target) -> None:
        self._model = draft_model

    def prepare(self, target: Target) -> None:
        self._tokens = shared_tokens(target, self._model)
        self._stops = target.stop_ids | self._tokens.ours(self._model.stop_ids)
        own, other = self._model.vocabulary, isinstance(self._tokens, SharedTokens)
        self.load_vocabulary(self._model.folder, own if other else min(own, target.vocabulary))
        self.vocabulary = self._tokens.narrow(self.vocabulary)
        if self.vocabulary.ids is not None and len(self.vocabulary.ids) < 2:
            message = "fewer than two tokens of the draft model's draft vocabulary are the target's"
            raise UserError("no_shared_tokens", f"{message}; give draft_vocabulary=whole")
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

        What it read last was its own draft; what was not committed of it is forgotten. In a combination steps may have
        passed since then.
        """
        known = len(self._text)
        for token in context.tokens[self._read_tokens :]:
            self._text += self._tokens.read(token)
        self._read_tokens = len(context.tokens)
        last = len(self._text) - len(self._tokens.read(context.tokens[-1]))
        kept = min(known + common_start(self._stream.text[known:], self._text[known:]), last, self._stream.length)
        if self._stream.rows:  # rows that left at an exit wait for the layers above it
            self._stream.keep(range(max(0, kept - self._stream.base)))
        if self._stream.length > kept:
            self._stream.truncate(kept)
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
        return self._read(context, states)

    def own_exits(self, draft_exits: str) -> tuple[int, ...]:
        """Exits of an option ``draft_exits``. Raises UserError for those that the draft model was not trained with."""
        exits, trained = read_exits(draft_exits), tuple(getattr(self._model.config, "draft_exits", ()))
        if missing := [layer for layer in exits if layer not in trained]:
            there = f"with exits {'+'.join(map(str, trained))}" if trained else "without exits"
            remedy = "choose one of these" if trained else "leave out draft_exits"
            raise UserError(
                "exits_not_trained",
                f"draft_exits names layer {missing[0]}, but the draft model was trained {there}; {remedy}, or train "
                f"another with: benchctl train draft --exits {draft_exits}",
            )
        return exits

    def climb(self, context: Context, own_tokens: Sequence[int], exits: Sequence[int], least: float) -> Tensor:
        """As ``score`` of the last of ``own_tokens``, from the first of ``exits`` that is sure enough, or all layers.

        An exit is sure where its likeliest token has a probability of ``least``. Rows wait there: the layers above run
        them with the first later row that goes deeper.
        """
        self._stream.push(own_tokens)
        for layer in (*exits, self._model.layers):
            self._stream.advance(layer)
            draft_logits = self._read(context, self._stream.states[-1:])
            if float(wide(draft_logits).softmax(-1).max()) >= least:
                break
        return draft_logits

    def _read(self, context: Context, states: Tensor) -> Tensor:
        # Heads of one tokenizer may be padded to different widths; padding is never drafted.
        return self._lm_head(self._model.final_norm(states))[:, : context.target.vocabulary]
