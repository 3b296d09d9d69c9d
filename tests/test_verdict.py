"""Verdicts: identical, tie, numeric or lossy, each against logits and a control written down here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from benchctl.measuring.verdict import Judgement, Referee, first_divergence

PROMPT = [1, 2]
BASELINE = (5, 6, 7)
Control = Callable[[Sequence[int], Sequence[int]], float]


class Logits:
    """Logits of four tokens, `single` computed row by row and `together` in one pass; counts what is asked."""

    def __init__(self, single: list[float], together: list[float]) -> None:
        self._single, self._together = torch.tensor(single), torch.tensor(together)
        self.prefixes: list[list[int]] = []

    def next_logits(self, prompt_ids: Sequence[int], answer: Sequence[int], *, one_by_one: bool = False) -> Tensor:
        self.prefixes.append([*prompt_ids, *answer])
        return self._single if one_by_one else self._together


def no_baseline(prompt_ids: list[int]) -> Sequence[int]:
    pytest.fail("the baseline's answer was known")


def no_control(prompt_ids: Sequence[int], answer: Sequence[int]) -> float:
    pytest.fail("the noise at the place was enough, or nothing could be")


def silent(prompt_ids: Sequence[int], answer: Sequence[int]) -> float:
    return 0.0


def referee(single: list[float], together: list[float], control: Control = no_control) -> tuple[Referee, Logits]:
    """A referee that knows the baseline's answer: 0 1 2."""
    logits = Logits(single, together)
    judge = Referee(logits, no_baseline, control)
    judge.remember(PROMPT, (0, 1, 2))
    return judge, logits


def test_the_same_tokens_are_identical_and_cost_no_control() -> None:
    judge, logits = referee([], [])
    assert judge.judge(PROMPT, (0, 1, 2)) == Judgement("identical")
    assert logits.prefixes == []


def test_two_best_tokens_within_twice_the_noise_are_a_tie() -> None:
    """At index 1 the baseline said 1 and the method 3, whose logits lie 0.5 apart; the two ways differ by 0.25."""
    judge, logits = referee([0.0, 2.0, 0.0, 1.5], [0.0, 1.75, 0.0, 1.5])
    assert judge.judge(PROMPT, (0, 3, 0)) == Judgement("tie", 1, 0.5, 0.25, 0.5)
    assert logits.prefixes == [[1, 2, 0], [1, 2, 0]]


def test_a_gap_beyond_twice_the_noise_is_lossy() -> None:
    judge, _ = referee([0.0, 2.0, 0.0, 1.25], [0.0, 2.25, 0.0, 1.25])
    assert judge.judge(PROMPT, (0, 3, 0)) == Judgement("lossy", 1, 0.75, 0.25, 0.75)


def test_a_token_that_is_not_among_the_tied_is_lossy_however_close_the_others() -> None:
    judge, _ = referee([0.0, 2.0, 0.0, 2.0], [0.0, 2.0, 0.0, 2.0])
    assert judge.judge(PROMPT, (0, 2, 0)) == Judgement("lossy", 1, 0.0, 0.0, 2.0)


def test_equal_best_logits_are_a_tie_without_any_noise() -> None:
    judge, _ = referee([0.0, 2.0, 0.0, 2.0], [0.0, 2.0, 0.0, 2.0])
    assert judge.judge(PROMPT, (0, 3, 0)) == Judgement("tie", 1, 0.0, 0.0, 0.0)


def test_an_answer_that_only_ends_earlier_or_later_is_lossy_without_a_control() -> None:
    judge, logits = referee([], [])
    assert judge.judge(PROMPT, (0, 1)) == Judgement("lossy", 2)
    assert judge.judge(PROMPT, (0, 1, 2, 3)) == Judgement("lossy", 3)
    assert logits.prefixes == []


# One unit in the last place of a logit of 2: what 64 roundings of the largest logit come to is not beyond rounding.
TINY = 2.0**-17
NEAR = [0.0, 2.0, 0.0, 2.0 - 4 * TINY]


@pytest.mark.parametrize(
    ("control_noise", "verdict"), [(2 * TINY, "numeric"), (1.9 * TINY, "lossy"), (0.0, "lossy"), (9.0, "numeric")]
)
def test_a_gap_within_twice_the_noise_of_the_whole_answer_is_numeric(control_noise: float, verdict: str) -> None:
    """At index 1 the two ways agree to the last bit, so the noise there explains nothing; the gap is 4 TINY."""
    asked: list[tuple[Sequence[int], Sequence[int]]] = []

    def control(prompt_ids: Sequence[int], answer: Sequence[int]) -> float:
        asked.append((tuple(prompt_ids), tuple(answer)))
        return control_noise

    judge, _ = referee(NEAR, NEAR, control)
    found = judge.judge(PROMPT, (0, 3, 0))
    assert (found.verdict, found.first_divergence, found.margin, found.noise) == (verdict, 1, 4 * TINY, 0.0)
    assert found.evidence == {"gap": 4 * TINY, "control_noise": control_noise}
    judge.judge(PROMPT, (0, 3))
    assert asked == [((1, 2), (0, 1, 2))]
    judge.forget()
    judge.remember(PROMPT, (0, 1, 2))
    judge.judge(PROMPT, (0, 3))
    assert len(asked) == 2


def test_a_gap_that_no_rounding_reaches_is_lossy_whatever_the_control_would_show() -> None:
    """In float32 256 roundings of a logit of 2 are 6e-5; a control that shows more has other faults than rounding."""
    wide = [0.0, 2.0, 0.0, 2.0 - 1e-4]
    judge, _ = referee(wide, wide, no_control)
    assert judge.judge(PROMPT, (0, 3, 0)).verdict == "lossy"
    close = [0.0, 2.0, 0.0, 2.0 - 5e-5]
    judge, _ = referee(close, close, silent)
    assert judge.judge(PROMPT, (0, 3, 0)).evidence["control_noise"] == 0.0


def test_the_coarser_the_numbers_the_wider_a_gap_the_control_is_asked_about() -> None:
    """A gap of 0.5 at a logit of 2: in bfloat16, with steps of 1/64 there, rounding may come to it."""
    judge, logits = referee([0.0, 2.0, 0.0, 1.5], [0.0, 2.0, 0.0, 1.5], lambda prompt_ids, answer: 0.25)
    logits._single, logits._together = logits._single.bfloat16(), logits._together.bfloat16()
    assert judge.judge(PROMPT, (0, 3, 0)).verdict == "numeric"


def test_where_the_place_decides_there_is_no_evidence_of_a_control() -> None:
    judge, _ = referee([0.0, 2.0, 0.0, 1.5], [0.0, 1.75, 0.0, 1.5])
    assert judge.judge(PROMPT, (0, 3, 0)).evidence == judge.judge(PROMPT, (0, 1, 2)).evidence == {}


def test_the_control_of_one_place_is_computed_once_per_prompt() -> None:
    judge, logits = referee([0.0, 2.0, 0.0, 1.0], [0.0, 2.0, 0.0, 1.0])
    judge.judge(PROMPT, (0, 3, 0))
    judge.judge(PROMPT, (0, 2, 0))
    assert len(logits.prefixes) == 2


def test_a_prompt_the_baseline_was_never_asked_is_asked_once() -> None:
    """A second turn after another first answer is another prompt; comparing with the baseline's turn would be wrong."""
    asked: list[list[int]] = []

    def ask(prompt_ids: list[int]) -> Sequence[int]:
        asked.append(prompt_ids)
        return (9, 9)

    judge = Referee(Logits([], []), ask, no_control)
    judge.remember(PROMPT, BASELINE)
    assert judge.judge([1, 2, 3], (9, 9)) == Judgement("identical")
    assert judge.judge([1, 2, 3], (9, 9)) == Judgement("identical")
    assert asked == [[1, 2, 3]]


def test_a_baseline_that_does_not_repeat_itself_is_noticed_and_its_first_answer_stays() -> None:
    judge, _ = referee([], [])
    assert judge.remember(PROMPT, (0, 1, 2))
    assert not judge.remember(PROMPT, (0, 1, 3))
    assert judge.judge(PROMPT, (0, 1, 2)) == Judgement("identical")


def test_nothing_is_known_after_forgetting() -> None:
    judge = Referee(Logits([], []), lambda prompt_ids: (4,), no_control)
    judge.remember(PROMPT, BASELINE)
    judge.forget()
    assert judge.judge(PROMPT, (4,)) == Judgement("identical")


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [((), (), None), ((5,), (5,), None), ((5, 6), (5, 7), 1), ((5, 6), (5,), 1), ((), (5,), 0), ((4,), (5,), 0)],
)
def test_first_divergence(first: tuple[int, ...], second: tuple[int, ...], place: int | None) -> None:
    assert first_divergence(first, second) == place
