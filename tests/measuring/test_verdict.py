"""Verdicts against logits and a control written down here, and the baseline's answers that they compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from benchctl.decoding.loop import Generation
from benchctl.decoding.model.target import Target
from benchctl.measuring.verdict import AnswerControl, BaselineAnswers, Judgement, Referee, first_divergence
from benchctl.records.schema import Verdict

PROMPT = [1, 2]
SIZES = (4, 6)


class Logits(Target):
    """Logits of four tokens, wherever; counts what is asked."""

    def __init__(self, logits: Sequence[float], dtype: torch.dtype = torch.float32) -> None:
        self.target_logits = torch.tensor(logits, dtype=dtype)
        self.prefixes: list[list[int]] = []

    def next_logits(self, prompt_ids: Sequence[int], answer: Sequence[int] = (), *, one_by_one: bool = False) -> Tensor:
        assert one_by_one
        self.prefixes.append([*prompt_ids, *answer])
        return self.target_logits


class Chosen(AnswerControl):
    """A control of chosen noises at the places of an answer; what plain decoding had there is as chosen too."""

    def __init__(self, logits: Logits, noises: Sequence[float], gaps: Sequence[float] = ()) -> None:
        self.near, self._noises, self._gaps = logits, tuple(noises), gaps
        self.read_answers: list[tuple[Sequence[int], Sequence[int]]] = []
        self.sizes: list[Sequence[int]] = []

    def __call__(self, prompt_ids: Sequence[int], answer: Sequence[int]) -> AnswerControl:
        self.read_answers.append((tuple(prompt_ids), tuple(answer)))
        return self

    def logits(self, index: int) -> Tensor:
        return self.near.target_logits

    def gaps(self) -> list[float]:
        return list(self._gaps) or [0.0] * len(self._noises)

    def noises(self, sizes: Sequence[int]) -> tuple[float, ...]:
        self.sizes.append(sizes)
        return self._noises


def no_control(prompt_ids: Sequence[int], answer: Sequence[int]) -> AnswerControl:
    pytest.fail("nothing was to be explained")


def baseline_answers(token_ids: Sequence[int]) -> BaselineAnswers:
    """The baseline answers every prompt with these tokens."""
    answer = Generation(tuple(token_ids), "length", 0.0, (), (), ())
    return BaselineAnswers(lambda prompts: [answer for _ in prompts])


def referee(
    logits: Sequence[float],
    noises: Sequence[float] = (),
    dtype: torch.dtype = torch.float32,
    gaps: Sequence[float] = (),
) -> tuple[Referee, Logits, Chosen]:
    """A referee that knows the baseline's answer, 0 1 2, and of other answers the noise at each place, and the gaps
    behind the first divergence."""
    target = Logits(logits, dtype)
    control = Chosen(target, noises, gaps)
    judge = Referee(target, baseline_answers((0, 1, 2)), control if noises else no_control)
    return judge, target, control


def test_the_same_tokens_are_identical_and_cost_no_control() -> None:
    judge, logits, _ = referee([])
    assert judge.judge(PROMPT, (0, 1, 2), SIZES) == Judgement("identical")
    assert logits.prefixes == []


# One unit in the last place of a logit of 2: what 64 roundings of the largest logit come to is not beyond rounding.
TINY = 2.0**-17
NEAR = [0.0, 2.0, 0.0, 2.0 - 4 * TINY]


@pytest.mark.parametrize(
    ("noises", "verdict"),
    [
        ((0.0, 2 * TINY, 0.0), "tie"),
        ((0.0, 1.9 * TINY, 2 * TINY), "numeric"),
        ((0.0, 0.0, 9.0), "numeric"),
        ((0.0, 1.9 * TINY, 1.9 * TINY), "lossy"),
        ((9.0, 0.0, 0.0), "lossy"),  # prefill's noise, which no later token has
    ],
)
def test_a_gap_within_twice_the_noise_is_a_tie_or_numeric(noises: tuple[float, ...], verdict: Verdict) -> None:
    """At index 1 the baseline said 1 and the method 3, whose logits lie 4 TINY apart.

    `tie` rested on the difference between one row and a single pass over all of the text, which no method reads: in
    half precision that was wider than the noise of verification, so that wrong tokens passed.
    """
    judge, logits, control = referee(NEAR, noises)
    found = judge.judge(PROMPT, (0, 3, 0), SIZES)
    assert found == Judgement(verdict, 1, 4 * TINY, noises[1], 4 * TINY, max(noises[1:]), 1)
    assert found.evidence == {"gap": 4 * TINY, "control_noise": max(noises[1:]), "decided_at": 1.0}
    assert logits.prefixes == [[1, 2, 0]]
    assert control.sizes == [SIZES]


@pytest.mark.parametrize(("noises", "verdict"), [((2 * TINY, 0.0, 0.0), "tie"), ((0.0, 9.0, 9.0), "lossy")])
def test_what_prefill_gives_is_judged_by_prefills_noise_alone(noises: tuple[float, ...], verdict: str) -> None:
    logits = [2.0, 0.0, 0.0, 2.0 - 4 * TINY]
    judge, *_ = referee(logits, noises)
    assert judge.judge(PROMPT, (3, 1, 2), SIZES).verdict == verdict


def test_equal_best_logits_are_a_tie_without_any_noise_and_any_other_token_is_lossy() -> None:
    judge, *_ = referee([0.0, 2.0, 0.0, 2.0], (0.0, 0.0, 0.0))
    assert judge.judge(PROMPT, (0, 3, 0), SIZES) == Judgement("tie", 1, 0.0, 0.0, 0.0, 0.0, 1)
    judge, *_ = referee([0.0, 2.0, 0.0, 2.0])
    assert judge.judge(PROMPT, (0, 2, 0), SIZES) == Judgement("lossy", 1, 0.0, None, 2.0, None, 1)


def test_an_answer_that_only_ends_earlier_or_later_is_lossy_without_a_control() -> None:
    judge, logits, _ = referee([])
    assert judge.judge(PROMPT, (0, 1), SIZES) == Judgement("lossy", 2)
    assert judge.judge(PROMPT, (0, 1, 2, 3), SIZES) == Judgement("lossy", 3)
    assert logits.prefixes == [] and judge.judge(PROMPT, (0, 1), SIZES).evidence == {}


@pytest.mark.parametrize(
    ("gaps", "verdict", "at"),
    [((9.0, 0.0, 2 * TINY), "tie", 1), ((9.0, 0.0, 3 * TINY), "numeric", 2), ((9.0, 0.0, 5 * TINY), "lossy", 2)],
)
def test_behind_a_tie_every_token_is_compared_with_the_target(gaps: tuple[float, ...], verdict: str, at: int) -> None:
    """A tie ended the comparison: in half precision one early in a text hid all wrong tokens behind it, and 1 of 118
    injected ones was found. What stands before the first divergence is the baseline's."""
    judge, *_ = referee(NEAR, (0.0, 2 * TINY, TINY), gaps=gaps)
    found = judge.judge(PROMPT, (0, 3, 0), SIZES)
    assert (found.verdict, found.first_divergence, found.decided_at) == (verdict, 1, at)
    assert (found.gap, found.noise, found.control_noise) == (
        max(gaps[at], 4 * TINY * (at == 1)),
        (2 - (at == 2)) * TINY,
        2 * TINY,
    )


def test_the_gap_that_decides_is_of_what_plain_decoding_had_not_of_a_pass_that_only_comes_near() -> None:
    """The baseline's own token is the best of its decoding, and need not be of another computation of it."""
    judge, logits, control = referee([0.0, 2.0 - 4 * TINY, 0.0, 2.0], (0.0, TINY, 0.0))
    control.near = Logits(NEAR)
    assert judge.judge(PROMPT, (0, 3, 0), SIZES) == Judgement("lossy", 1, 4 * TINY, TINY, 4 * TINY, TINY, 1)
    control.near = Logits([0.0, 2.0, 0.0, 2.0 - TINY])
    assert judge.judge(PROMPT, (0, 3, 1), SIZES).verdict == "tie"


def test_an_answer_is_explained_once_for_each_kind_of_passes() -> None:
    judge, _, control = referee(NEAR, (0.0, 0.0, 0.0))
    for sizes in (SIZES, SIZES, (2,)):
        judge.judge(PROMPT, (0, 3, 0), sizes)
    assert control.read_answers == [((1, 2), (0, 3, 0))] * 2 and control.sizes == [SIZES, (2,)]


def test_a_gap_that_no_rounding_reaches_is_lossy_whatever_the_control_would_show() -> None:
    """In float32 256 roundings of a logit of 2 are 6e-5; a control that shows more has other faults than rounding."""
    judge, *_ = referee([0.0, 2.0, 0.0, 2.0 - 1e-4])
    found = judge.judge(PROMPT, (0, 3, 0), SIZES)
    assert (found.verdict, found.noise, set(found.evidence)) == ("lossy", None, {"gap", "decided_at"})
    judge, *_ = referee([0.0, 2.0, 0.0, 2.0 - 5e-5], (0.0, 0.0, 0.0))
    assert judge.judge(PROMPT, (0, 3, 0), SIZES).evidence["control_noise"] == 0.0


def test_the_coarser_the_numbers_the_wider_a_gap_the_control_is_asked_about() -> None:
    """A gap of 0.5 at a logit of 2: in bfloat16, with steps of 1/64 there, rounding may come to it."""
    judge, *_ = referee([0.0, 2.0, 0.0, 1.5], (0.0, 0.0, 0.25), torch.bfloat16)
    assert judge.judge(PROMPT, (0, 3, 0), SIZES).verdict == "numeric"


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [((), (), None), ((5,), (5,), None), ((5, 6), (5, 7), 1), ((5, 6), (5,), 1), ((), (5,), 0), ((4,), (5,), 0)],
)
def test_first_divergence(first: tuple[int, ...], second: tuple[int, ...], place: int | None) -> None:
    assert first_divergence(first, second) == place


@dataclass
class Decoding:
    """Answers every prompt with its last id twice, and counts."""

    asked: list[list[list[int]]] = field(default_factory=list)

    def __call__(self, prompts: Sequence[Sequence[int]]) -> list[Generation]:
        self.asked.append([list(prompt_ids) for prompt_ids in prompts])
        return [Generation((prompt_ids[-1],) * 2, "length", 0.0, (), (), ()) for prompt_ids in prompts]


def test_a_prompt_without_an_answer_is_decoded_once_and_a_timed_first_answer_stays() -> None:
    decoding = Decoding()
    answers = BaselineAnswers(decoding)
    assert [answers.answer([1, 2, 3]), answers.answer([1, 2, 3])] == [(3, 3), (3, 3)]
    assert answers.remember([1], (7, 8)) and answers.remember([1], (7, 8))
    assert not answers.remember([1], (7, 9))
    assert answers.answer([1]) == (7, 8) and decoding.asked == [[[1, 2, 3]]]


def test_a_batch_with_one_unknown_answer_is_decoded_as_a_whole() -> None:
    """Alone its numbers could round differently, and the baseline would not repeat itself in its own turn."""
    decoding = Decoding()
    answers = BaselineAnswers(decoding)
    answers.remember([1], (5,))
    for _ in range(2):
        answers.decode_together([[1], [2]])
    assert decoding.asked == [[[1], [2]]]
    assert [answers.answer([1]), answers.answer([2])] == [(5,), (2, 2)]
