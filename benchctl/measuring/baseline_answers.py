"""The baseline's greedy answers, which verdicts, fidelity and forced text need: decoded once, then cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchctl.decoding.loop import Generation


class BaselineAnswers:
    """The baseline's answers to the prompts at hand, by token ids.

    A timed answer is remembered where there is one. A second turn whose history differs (the method's first answer was
    another one) is a prompt that the baseline was never asked: `decode` then answers it, untimed. So every answer is
    compared on its own prompt, and a divergence in the first turn is not counted again in the second.
    """

    def __init__(self, decode: Callable[[Sequence[Sequence[int]]], Sequence[Generation]]) -> None:
        self._decode = decode
        self._answers: dict[tuple[int, ...], tuple[int, ...]] = {}

    def forget(self) -> None:
        """Drop all answers: another batch of prompts begins."""
        self._answers.clear()

    def remember(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> bool:
        """Take an answer of the baseline. False if it gave another one before, which stays."""
        return self._answers.setdefault(tuple(prompt_ids), tuple(token_ids)) == tuple(token_ids)

    def decode_together(self, prompts: Sequence[Sequence[int]]) -> None:
        """Make sure that all these prompts have answers. One that lacks its answer is decoded with its whole batch,
        since its numbers could round differently alone."""
        if any(tuple(prompt_ids) not in self._answers for prompt_ids in prompts):
            for prompt_ids, generation in zip(prompts, self._decode(prompts), strict=True):
                self.remember(prompt_ids, generation.token_ids)

    def answer(self, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """The baseline's answer to exactly these ids."""
        if tuple(prompt_ids) not in self._answers:
            self.decode_together([prompt_ids])
        return self._answers[tuple(prompt_ids)]
