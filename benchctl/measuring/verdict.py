"""Is a method's answer the target's? Token by token, and where it is not, whether rounding alone can explain it.

Two ways of computing the same logits (one row on a cache, many rows at once) round differently, so even an exact method
may leave the baseline's text where the target's two best tokens lie closer together than that noise. The control
measures the noise at the very position, where that is not enough over the whole answer to that prompt: nothing is
excused by a fixed tolerance.

A wrong token that passes for rounding lies within what this control shows rounding to do; the simulation of
tests/test_verdict_power.py says how surely a method that errs more often than that is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

Verdict = Literal["identical", "tie", "numeric", "lossy", "sampled"]

# Roundings of the largest logit beyond which no control is asked: rounding has not been seen to come near.
_MOST_ROUNDINGS = 256


class Logits(Protocol):
    """What a verdict needs from the target: logits [V] after a prompt and an answer, computed in either of two ways."""

    def next_logits(self, prompt_ids: Sequence[int], answer: Sequence[int], *, one_by_one: bool = False) -> Tensor: ...


@dataclass(frozen=True)
class Judgement:
    """A verdict with its evidence; all but the first two are None where nothing diverged, or one answer only ended
    earlier.

    margin         the target's best logit less its second, at the first divergence
    noise          the largest difference of a logit there, between one row in a pass and many
    gap            how far the worse of the two tokens said there lies below the best
    control_noise  the same as noise over the baseline's whole answer; None where noise alone decided
    """

    verdict: Verdict | None = None
    first_divergence: int | None = None
    margin: float | None = None
    noise: float | None = None
    gap: float | None = None
    control_noise: float | None = None

    @property
    def evidence(self) -> dict[str, float]:
        """What stands in a row beside margin and noise, by name; only where the control was asked."""
        if self.gap is None or self.control_noise is None:
            return {}
        return {"gap": self.gap, "control_noise": self.control_noise}


@dataclass(frozen=True)
class _Control:
    target_logits: Tensor
    noise: float


class Referee:
    """Judges greedy answers to one prompt against the baseline's answer to the same token ids.

    The baseline's timed answer serves where there is one. A second turn whose history differs (the method's own first
    answer was another) is a prompt that the baseline was never asked: `ask_baseline` then decodes it, untimed. So every
    answer is judged on its own prompt, and a divergence in the first turn is not counted again in the second.
    `noise_over` is the control over a whole answer: see control.answer_noise. Answers and controls are kept by token
    ids; `forget` drops them when the prompt is done.
    """

    def __init__(
        self,
        target: Logits,
        ask_baseline: Callable[[list[int]], Sequence[int]],
        noise_over: Callable[[Sequence[int], Sequence[int]], float],
    ) -> None:
        self._target = target
        self._ask_baseline = ask_baseline
        self._noise_over = noise_over
        self._answers: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._controls: dict[tuple[tuple[int, ...], tuple[int, ...]], _Control] = {}
        self._noises: dict[tuple[int, ...], float] = {}

    def remember(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> bool:
        """Take the baseline's answer; False when it once gave another to the same prompt (the first one stays)."""
        return self._answers.setdefault(tuple(prompt_ids), tuple(token_ids)) == tuple(token_ids)

    def forget(self) -> None:
        """Drop what was kept for the prompt."""
        self._answers.clear()
        self._controls.clear()
        self._noises.clear()

    def knows(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the baseline has answered these ids."""
        return tuple(prompt_ids) in self._answers

    def answer(self, prompt_ids: list[int]) -> tuple[int, ...]:
        """The baseline's answer to exactly these ids."""
        if tuple(prompt_ids) not in self._answers:
            self.remember(prompt_ids, self._ask_baseline(prompt_ids))
        return self._answers[tuple(prompt_ids)]

    def judge(self, prompt_ids: list[int], token_ids: Sequence[int]) -> Judgement:
        """The verdict on a method's greedy answer `token_ids` to `prompt_ids`."""
        baseline_ids = self.answer(prompt_ids)
        place = first_divergence(baseline_ids, token_ids)
        if place is None:
            return Judgement("identical")
        if place == min(len(baseline_ids), len(token_ids)):
            return Judgement("lossy", place)
        control = self._control(tuple(prompt_ids), baseline_ids[:place])
        found = _judge_place(control, place, baseline_ids[place], token_ids[place])
        if found.verdict == "tie" or _beyond_rounding(control, found):
            return found
        return _with_control(found, self._noise_of(tuple(prompt_ids), baseline_ids))

    def _noise_of(self, prompt_ids: tuple[int, ...], baseline_ids: tuple[int, ...]) -> float:
        if prompt_ids not in self._noises:
            self._noises[prompt_ids] = self._noise_over(prompt_ids, baseline_ids)
        return self._noises[prompt_ids]

    def _control(self, prompt_ids: tuple[int, ...], answer: tuple[int, ...]) -> _Control:
        key = prompt_ids, answer
        if key not in self._controls:
            single = self._target.next_logits(prompt_ids, answer, one_by_one=True)
            together = self._target.next_logits(prompt_ids, answer)
            noise = (single.double() - together.double()).abs().max().item()
            self._controls[key] = _Control(single, noise)
        return self._controls[key]


def first_divergence(first: Sequence[int], second: Sequence[int]) -> int | None:
    """The first index at which two answers differ, one of them ending counted as differing; None when they are equal.

    >>> first_divergence([5, 6, 7], [5, 6, 8]), first_divergence([5, 6], [5, 6, 7]), first_divergence([5], [5])
    (2, 2, None)
    """
    pairs = enumerate(zip(first, second, strict=False))
    shorter = min(len(first), len(second))
    place = next((index for index, (left, right) in pairs if left != right), shorter)
    return None if place == len(first) == len(second) else place


def _judge_place(control: _Control, place: int, baseline_token: int, token: int) -> Judgement:
    """A tie when both tokens lie within the noise of the best: each of two logits may be off by it, hence twice."""
    best, second = control.target_logits.double().topk(2).values.tolist()
    gap = max(best - control.target_logits[chosen].item() for chosen in (baseline_token, token))
    verdict: Verdict = "tie" if gap <= 2 * control.noise else "lossy"
    return Judgement(verdict, place, best - second, control.noise, gap)


def _beyond_rounding(control: _Control, found: Judgement) -> bool:
    """Whether no control over a whole answer can explain this gap."""
    logits = control.target_logits
    largest = logits.double().abs().max().item()
    return found.gap is not None and found.gap > _MOST_ROUNDINGS * torch.finfo(logits.dtype).eps * largest


def _with_control(found: Judgement, control_noise: float) -> Judgement:
    """The noise at one place is one draw: numeric where the gap lies within twice what the whole answer shows."""
    explained = found.gap is not None and found.gap <= 2 * control_noise
    return replace(found, verdict="numeric" if explained else "lossy", control_noise=control_noise)
