"""The baseline's answers: decoded once, with their batch, and dropped with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchctl.decoding.loop import Generation
from benchctl.measuring.verdict import BaselineAnswers


@dataclass
class Decoding:
    """Answers every prompt with its last id twice, and counts."""

    asked: list[list[list[int]]] = field(default_factory=list)

    def __call__(self, prompts: Sequence[Sequence[int]]) -> list[Generation]:
        self.asked.append([list(prompt_ids) for prompt_ids in prompts])
        return [Generation((prompt_ids[-1],) * 2, "length", 0.0, (), (), ()) for prompt_ids in prompts]


def test_a_prompt_without_an_answer_is_decoded_once() -> None:
    decoding = Decoding()
    answers = BaselineAnswers(decoding)
    assert [answers.answer([1, 2, 3]), answers.answer([1, 2, 3])] == [(3, 3), (3, 3)]
    assert decoding.asked == [[[1, 2, 3]]]


def test_a_timed_answer_is_used_and_the_first_one_stays() -> None:
    answers = BaselineAnswers(Decoding())
    assert answers.remember([1], (7, 8)) and answers.remember([1], (7, 8))
    assert not answers.remember([1], (7, 9))
    assert answers.answer([1]) == (7, 8)


def test_a_batch_with_one_unknown_answer_is_decoded_as_a_whole() -> None:
    """Alone its numbers could round differently, and the baseline would not repeat itself in its own turn."""
    decoding = Decoding()
    answers = BaselineAnswers(decoding)
    answers.remember([1], (5,))
    for _ in range(2):
        answers.decode_together([[1], [2]])
    assert decoding.asked == [[[1], [2]]]
    assert [answers.answer([1]), answers.answer([2])] == [(5,), (2, 2)]


def test_nothing_is_known_after_forgetting() -> None:
    answers = BaselineAnswers(Decoding())
    answers.remember([1], (5,))
    answers.forget()
    assert answers.answer([1]) == (1, 1)
