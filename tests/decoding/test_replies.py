"""Chances of short replies: those of plain recomputation, and "10" told apart from "1" though both begin alike."""

import pytest
from oracles import Naive
from runs import VOCABULARY, pair, prompt_of
from torch import Tensor

from benchctl.decoding.model.likelihood import reply_chances

PROMPT = prompt_of(9)
REPLIES = ([5], [5, 7], [5, 7, 5], [8], [9, 7, 3, 3], [5, 4])  # the first begins three others
DIGITS = (3, 4, 7)


def probs(naive: Naive, text: list[int]) -> Tensor:
    return naive.logits(naive.last_states(text)[-1]).softmax(-1)


def plain_chance(naive: Naive, reply: list[int]) -> float:
    """One text after the other, each in a pass of its own."""
    chance = 1.0
    for at, token in enumerate(reply):
        chance *= float(probs(naive, [*PROMPT, *reply[:at]])[token])
    return chance * (1.0 - sum(float(probs(naive, [*PROMPT, *reply])[token]) for token in DIGITS))


@pytest.mark.parametrize("family", ["llama", "gemma", "mistral_window", "mixtral"])
def test_chances_are_those_of_one_text_after_the_other(family: str) -> None:
    found = reply_chances(pair(family).target, PROMPT, REPLIES, DIGITS)
    truth = [plain_chance(pair(family).naive, reply) for reply in REPLIES]
    assert found == pytest.approx(truth, rel=1e-6)  # transformers norms in float32


def test_logits_are_looked_at_in_blocks_without_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reply_chances(pair("llama").target, PROMPT, REPLIES, DIGITS)
    monkeypatch.setattr("benchctl.decoding.model.likelihood._TREE_BLOCK", 2)
    assert reply_chances(pair("llama").target, PROMPT, REPLIES, DIGITS) == pytest.approx(whole, rel=1e-12)


def test_a_reply_and_all_that_it_may_go_on_to_be_have_its_chance_together() -> None:
    """Where the token after 5 goes on with the number, the reply is another: no chance is counted twice, none lost."""
    naive, everything = pair("llama").naive, range(VOCABULARY)
    [alone] = reply_chances(pair("llama").target, PROMPT, [[5]], DIGITS)
    longer = reply_chances(pair("llama").target, PROMPT, [[5, digit] for digit in DIGITS], ())
    assert alone + sum(longer) == pytest.approx(float(probs(naive, PROMPT)[5]), rel=1e-9)
    assert 0 < alone < float(probs(naive, PROMPT)[5])
    assert reply_chances(pair("llama").target, PROMPT, [[5]], everything) == pytest.approx([0.0], abs=1e-12)
