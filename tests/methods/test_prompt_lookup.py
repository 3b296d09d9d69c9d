"""The lookup of prompt_lookup against a scan of the whole text, n-gram by n-gram."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from benchctl.methods.prompt_lookup import PromptLookup


def scan(tokens: list[int], method: PromptLookup) -> list[int]:
    """Every start of every n-gram, longest n-gram first: nothing is skipped, nothing remembered."""
    for size in range(method.max_ngram, 0, -1):
        starts = list(range(len(tokens) - size))
        for start in starts if method.match == "first" else starts[::-1]:
            copied = tokens[start + size : start + size + method.draft_tokens]
            whole = len(copied) == method.draft_tokens
            if tokens[start : start + size] == tokens[-size:] and (whole or method.allow_short):
                return copied
    return []


@pytest.mark.parametrize("max_ngram", [1, 2, 3, 4])
@pytest.mark.parametrize("allow_short", [True, False])
@pytest.mark.parametrize("match", ["first", "last"])
def test_look_up_finds_what_a_scan_finds(match: Literal["first", "last"], allow_short: bool, max_ngram: int) -> None:
    rng = random.Random(max_ngram)
    found = 0
    for _ in range(3000):
        method = PromptLookup(rng.randint(1, 5), max_ngram, match, allow_short)
        tokens = rng.choices(range(rng.randint(1, 4)), k=rng.randint(1, 14))
        expected = scan(tokens, method)
        assert method.look_up(tokens) == expected
        found += bool(expected)
    assert 600 < found < 2950


@pytest.mark.parametrize(
    ("options", "copied"),
    [
        (PromptLookup(2, 2), [9, 8]),
        (PromptLookup(2, 2, "last"), [5, 1]),
        (PromptLookup(6, 2, "last"), [5, 1, 2]),
        (PromptLookup(6, 2, "last", allow_short=False), [9, 8, 1, 2, 5, 1]),
        (PromptLookup(8, 2, allow_short=False), []),
    ],
)
def test_what_is_copied_depends_on_match_length_and_short_ends(options: PromptLookup, copied: list[int]) -> None:
    """The text ends in 1 2, which stands in it twice before."""
    assert options.look_up([7, 1, 2, 9, 8, 1, 2, 5, 1, 2]) == copied
