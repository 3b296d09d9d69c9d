"""The control reads the same tokens in passes of other sizes, and tells the largest difference that makes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import Tensor

from benchctl.conformance.grounds import ground, prompt_of
from benchctl.decoding.target import Target
from benchctl.measuring.control import ROWS, answer_noise


class Uneven(Target):
    """A target whose head is off by `by` for one token of the vocabulary, where a pass has so many rows."""

    by: float = 0.0
    rows: int = 0

    def head(self, rows: Tensor) -> Tensor:
        logits = super().head(rows)
        if len(rows) == self.rows:
            logits[-1, 5] += self.by
        return logits


def uneven(by: float, rows: int) -> Uneven:
    target = ground("llama").target
    found = Uneven.__new__(Uneven)
    found.__dict__.update(target.__dict__, by=by, rows=rows)
    return found


def answer(tokens: int) -> list[int]:
    return prompt_of(tokens)


def test_in_float64_the_size_of_a_pass_moves_logits_by_rounding_alone() -> None:
    assert 0.0 <= answer_noise(ground("llama").target, prompt_of(9), answer(30)) < 1e-12


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("by", [0.5, -0.25])
def test_what_one_size_of_pass_changes_is_found_wherever_it_is_used(rows: int, by: float) -> None:
    assert answer_noise(uneven(by, rows), prompt_of(9), answer(30)) == pytest.approx(abs(by), abs=1e-9)


def test_the_passes_that_are_compared_have_these_sizes_and_read_all_tokens_but_the_last() -> None:
    read: dict[int, list[int]] = {}

    class Watched(Uneven):
        def embed(self, tokens: Sequence[int]) -> Tensor:
            read.setdefault(len(tokens), []).extend(tokens)
            return super().embed(tokens)

    target = Watched.__new__(Watched)
    target.__dict__.update(ground("llama").target.__dict__)
    said = answer(33)
    answer_noise(target, [1, 2, 3, 4, 5, 6, 7], said)
    assert {size: tokens for size, tokens in read.items() if size != 7} == dict.fromkeys((1, *ROWS), said[:-1])


def test_an_answer_of_one_token_shows_no_noise() -> None:
    assert answer_noise(uneven(9.0, 1), prompt_of(9), [5]) == 0.0
