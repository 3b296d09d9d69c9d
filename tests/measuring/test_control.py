"""The control reads the same tokens in passes of other sizes, and tells what difference that makes at each place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from oracles import in_float64
from runs import prompt_of
from tiny import tiny_model
from torch import Tensor

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.measuring.verdict import MOST_SIZES, AnswerControl, pass_sizes
from benchctl.registry import build

SIZES = (2, 4, 16, 64)
PROMPT = prompt_of(9)
_MODEL = tiny_model("llama", seed=0, layers=2, dtype=torch.float64, vocab_size=64, max_position_embeddings=256)
TARGET = Target(in_float64(_MODEL), None)


class Uneven(Target):
    """A target whose head is off by `by` for one token of the vocabulary, in the last row of a pass of so many."""

    by: float = 0.0
    rows: int = 0

    def head(self, rows: Tensor) -> Tensor:
        logits = super().head(rows)
        if len(rows) == self.rows:
            logits[-1, 5] += self.by
        return logits


def uneven(by: float = 0.0, rows: int = 0, kind: type[Uneven] = Uneven) -> Uneven:
    target = kind.__new__(kind)
    target.__dict__.update(TARGET.__dict__, by=by, rows=rows)
    return target


@pytest.mark.parametrize(("by", "rows"), [(0.0, 0), *product((0.5, -0.25), SIZES)])
def test_noise_is_what_one_size_of_pass_changes_at_the_tokens_it_changes(by: float, rows: int) -> None:
    """The last row of each pass of `rows` rows decides the token after it: 1 + rows, 1 + 2 rows, ... Without a change
    only rounding is left."""
    noises = AnswerControl(uneven(by, rows), PROMPT, prompt_of(130)).noises(SIZES)
    changed = [bool(rows) and index > 0 and index % rows == 0 for index in range(130)]
    assert list(noises) == pytest.approx([abs(by) * change for change in changed], abs=1e-12)


def test_a_size_that_the_method_did_not_use_explains_nothing() -> None:
    control = AnswerControl(uneven(0.5, 16), PROMPT, prompt_of(40))
    assert max(control.noises((2, 4))) < 1e-9 < max(control.noises((2, 16)))
    assert max(control.noises(())) < 1e-9


def test_the_passes_that_are_compared_have_these_sizes_and_read_all_tokens_but_the_last_once() -> None:
    read: dict[int, list[int]] = {}

    class Watched(Uneven):
        def embed(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
            read.setdefault(len(tokens), []).extend(tokens)
            return super().embed(tokens, positions)

    said = prompt_of(65)
    control = AnswerControl(uneven(kind=Watched), [1, 2, 3, 4, 5, 6, 7], said)
    for sizes in (SIZES, (2, 64)):
        control.noises(sizes)
        control.logits(3)
    once = {size: said[:-1] for size in SIZES}
    # Prefill takes 7 rows, and in the other way 6 and 1.
    assert {size: tokens for size, tokens in read.items() if size not in (6, 7)} == once | {1: [7, *said[:-1]]}


def test_its_logits_are_those_that_plain_decoding_chose_from() -> None:
    """Otherwise a gap would belong to another computation than the one that chose the token."""
    answer = decode(build("autoregressive"), TARGET, DecodeRequest(PROMPT, 20)).token_ids
    control = AnswerControl(TARGET, PROMPT, answer)
    for index, token in enumerate(answer):
        logits = control.logits(index)
        assert int(logits.argmax()) == token
        torch.testing.assert_close(logits, TARGET.next_logits(PROMPT, answer[:index]), rtol=0.0, atol=1e-12)


def test_gaps_are_how_far_the_tokens_of_an_answer_lie_below_the_targets_own() -> None:
    answer = prompt_of(20, 3)
    for index, gap in enumerate(AnswerControl(TARGET, PROMPT, answer).gaps()):
        logits = TARGET.next_logits(PROMPT, answer[:index])
        assert gap == pytest.approx(float(logits.max() - logits[answer[index]]), abs=1e-9)


def test_the_first_token_has_the_noise_of_prefill_where_the_last_row_is_read_by_itself() -> None:
    class Prefilling(Uneven):
        def next_logits(
            self, prompt_ids: Sequence[int], answer: Sequence[int] = (), *, one_by_one: bool = False
        ) -> Tensor:
            return super().next_logits(prompt_ids, answer, one_by_one=one_by_one) + (0.25 if one_by_one else 0.0)

    target = uneven(kind=Prefilling)
    noises = AnswerControl(target, PROMPT, [5, 6]).noises((2,))
    assert list(noises) == pytest.approx([0.25, 0.0], abs=1e-9)
    assert len(AnswerControl(target, PROMPT, [5]).noises((2,))) == 1


@pytest.mark.parametrize(
    ("rows", "together", "sizes"),
    [
        ((), 1, ()),
        ((1, 1, 1), 1, ()),
        ((6, 6, 1, 2), 1, (2, 6)),
        ((64, 5, 5, 9, 9, 3, 2, 7), 1, (2, 5, 9, 64)),
        ((1, 1), 8, (8,)),
        ((5, 5, 1), 8, (8, 40)),
        ((0, 1, 0), 1, ()),
        ((0, 3, 1), 1, (3,)),
    ],
)
def test_the_sizes_are_the_rows_that_were_used(rows: tuple[int, ...], together: int, sizes: tuple[int, ...]) -> None:
    """A step that leaves the target early finishes no row there. None was a size, in which no text can be read: where
    such a method came near the target its verdict was lost, as of a control that failed."""
    assert pass_sizes(rows, together) == sizes
    assert len(sizes) <= MOST_SIZES
