"""Draft models with another tokenizer: the tokens that both vocabularies have, and the target's text in own tokens.

Token-level intersection, Timor et al. 2502.05202, algorithm 4. Ours: each token of the target is split by itself,
longest tokens first, where the paper encodes the text again; a token with no readable part is read as id 0.
"""

from __future__ import annotations

import torch

from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer
from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary
from benchctl.errors import UserError


class SameTokens:
    """A draft model with the target's tokenizer; a token that it has no embedding for is read as id 0."""

    def __init__(self, embeddings: int) -> None:
        self._embeddings = embeddings

    def read(self, token: int) -> tuple[int, ...]:
        """The draft model's ids for a token of the target."""
        return (token if token < self._embeddings else 0,)

    def ours(self, own_ids: frozenset[int]) -> frozenset[int]:
        """The target's tokens that the draft model has as one of ``own_ids``."""
        return own_ids

    def narrow(self, vocabulary: DraftVocabulary) -> DraftVocabulary:
        """The tokens of a draft model's ``vocabulary`` that the target has too."""
        return vocabulary


class SharedTokens(SameTokens):
    """A draft model with another tokenizer: a token that only the target has is read as the longest tokens in it."""

    def __init__(self, target: TargetTokenizer, draft_model: TargetTokenizer) -> None:
        self._texts = target.token_bytes
        self._own = {text: index for index, text in reversed(draft_model.token_bytes.items())}
        self._longest = max(map(len, self._own))
        self.pairs = {index: self._own[text] for index, text in sorted(self._texts.items()) if text in self._own}
        self._readings: dict[int, tuple[int, ...]] = {}

    def read(self, token: int) -> tuple[int, ...]:
        if token not in self._readings:
            self._readings[token] = self._split(self._texts.get(token, b"")) or (0,)  # a token has a row at least
        return self._readings[token]

    def _split(self, text: bytes) -> tuple[int, ...]:
        if not text:
            return ()
        size = next((size for size in range(self._longest, 0, -1) if text[:size] in self._own), 0)
        first = (self._own[text[:size]],) if size else ()
        return first + self._split(text[size or 1 :])

    def ours(self, own_ids: frozenset[int]) -> frozenset[int]:
        return frozenset(index for index, own in self.pairs.items() if own in own_ids)

    def narrow(self, vocabulary: DraftVocabulary) -> DraftVocabulary:
        stored = None if vocabulary.ids is None else set(vocabulary.ids.tolist())
        pairs = [pair for pair in self.pairs.items() if stored is None or pair[1] in stored]
        ids = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
        return DraftVocabulary(ids[:, 0].contiguous(), ids[:, 1].contiguous())


def shared_tokens(target: Target, draft_model: Target) -> SameTokens:
    """How ``draft_model`` reads the tokens of ``target``; models without tokenizers have the same.

    Raises UserError where they have fewer than two tokens in common.
    """
    ours, theirs = target.tokenizer_or_none, draft_model.tokenizer_or_none
    if ours is None or theirs is None or ours.drafts_alike(theirs):
        return SameTokens(draft_model.vocabulary)
    shared = SharedTokens(ours, theirs)
    if len(shared.pairs) < 2:
        message = "the draft model has no tokens in common with the target; name another one with --draft-model"
        raise UserError("no_shared_tokens", message)
    return shared
