"""Draft by copying the tokens that followed an earlier occurrence of the text's last tokens.

Saxena: Prompt Lookup Decoding, 2023 (github.com/apoorvumang/prompt-lookup-decoding). Published variants differ in match
and allow_short; transformers has draft_tokens=10, max_ngram=2 and match=first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchctl.decoding.draft import Draft
from benchctl.decoding.method import Context, PlainDrafter, Speculative, check_options
from benchctl.decoding.model.target import Target


@dataclass
class PromptLookup(Speculative):
    """Copy the tokens that followed an earlier occurrence of the last n-gram, longest n-gram first.

    draft_tokens  tokens copied at most
    max_ngram     longest n-gram to search for
    match         which earlier occurrence to copy: the first in the text or the last
    allow_short   also use a continuation shorter than draft_tokens
    min_ngram     shortest n-gram to search for; a longer one drafts less often, and more of it is accepted
    """

    draft_tokens: int = 5
    max_ngram: int = 3
    match: Literal["first", "last"] = "last"
    allow_short: bool = True
    min_ngram: int = 1
    supports_encoder_decoder = True
    needs_layers = False

    def __post_init__(self) -> None:
        check_options(self, 1, "draft_tokens", "max_ngram", "min_ngram")
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram is {self.min_ngram}, above max_ngram, which is {self.max_ngram}")

    def draft(self, context: Context, budget: int) -> Draft:
        return Draft.chain(self.look_up(context.tokens)[: max(budget, 0)])

    def look_up(self, tokens: list[int]) -> list[int]:
        """The continuation found: in 7 1 2 9 8 1 2 with draft_tokens 2, the tail 1 2 was followed by 9 8."""
        ends = _places(tokens[-1], tokens[:-1])
        for size in range(min(self.max_ngram, len(tokens) - 1), self.min_ngram - 1, -1):
            tail = tokens[-size:]
            for end in ends if self.match == "first" else reversed(ends):
                if tokens[max(end + 1 - size, 0) : end + 1] != tail:
                    continue
                continuation = tokens[end + 1 : end + 1 + self.draft_tokens]
                if len(continuation) == self.draft_tokens or (continuation and self.allow_short):
                    return continuation
        return []

    def plain_drafter(self, target: Target, draft_model: Target | None) -> PlainDrafter | None:
        """What follows the earlier place whose context agrees with the end of the text in the most tokens."""

        def agreement(text: list[int], end: int) -> int:
            size = 0
            while size < min(self.max_ngram, end) and text[end - 1 - size] == text[-1 - size]:
                size += 1
            return size

        def propose(text: list[int], budget: int) -> list[int]:
            last_end = len(text) - 1 if self.allow_short else len(text) - self.draft_tokens
            sizes = {end: agreement(text, end) for end in range(1, last_end + 1)}
            longest = max(sizes.values(), default=0)
            if longest < self.min_ngram or budget <= 0:
                return []
            best = [end for end, size in sizes.items() if size == longest]
            end = best[0 if self.match == "first" else -1]
            return text[end : end + min(self.draft_tokens, budget)]

        return propose


def _places(token: int, tokens: list[int]) -> list[int]:
    """Where ``token`` stands in ``tokens``, ascending; list.index searches far faster than a loop here could."""
    places: list[int] = []
    while True:
        try:
            places.append(tokens.index(token, places[-1] + 1 if places else 0))
        except ValueError:
            return places
