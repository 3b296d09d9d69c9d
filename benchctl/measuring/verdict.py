"""Is a method's answer the target's? Token by token, and where it is not, whether rounding alone can explain it.

Two ways of computing the same logits (one row on a cache, many rows at once) round differently, so even an exact method
may leave the baseline's text where the target's two best tokens lie closer together than that noise. The control
measures the noise at the very position: nothing is excused by a fixed tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Verdict = Literal["identical", "tie", "lossy", "sampled"]


class Logits(Protocol):
    """What a verdict needs from the target: logits [V] after a prompt and an answer, computed in either of two ways."""

    def next_logits(self, prompt_ids: Sequence[int], answer: Sequence[int], *, one_by_one: bool = False) -> Tensor: ...


@dataclass(frozen=True)
class Judgement:
    """A verdict with its evidence; the last three are None where nothing diverged, or one answer only ended earlier."""

    verdict: Verdict | None = None
    first_divergence: int | None = None
    margin: float | None = None
    noise: float | None = None


@dataclass(frozen=True)
class _Control:
    target_logits: Tensor
    noise: float


class Referee:
    """Judges greedy answers to one prompt against the baseline's answer to the same token ids.

    The baseline's timed answer serves where there is one. A second turn whose history differs (the method's own first
    answer was another) is a prompt that the baseline was never asked: `ask_baseline` then decodes it, untimed. So every
    answer is judged on its own prompt, and a divergence in the first turn is not counted again in the second.
    Answers and controls are kept by token ids; `forget` drops them when the prompt is done.
    """

    def __init__(self, target: Logits, ask_baseline: Callable[[list[int]], Sequence[int]]) -> None:
        self._target = target
        self._ask_baseline = ask_baseline
        self._answers: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._controls: dict[tuple[tuple[int, ...], tuple[int, ...]], _Control] = {}

    def remember(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> bool:
        """Take the baseline's answer; False when it once gave another to the same prompt (the first one stays)."""
        return self._answers.setdefault(tuple(prompt_ids), tuple(token_ids)) == tuple(token_ids)

    def forget(self) -> None:
        """Drop what was kept for the prompt."""
        self._answers.clear()
        self._controls.clear()

    def judge(self, prompt_ids: list[int], token_ids: Sequence[int]) -> Judgement:
        """The verdict on a method's greedy answer `token_ids` to `prompt_ids`."""
        if tuple(prompt_ids) not in self._answers:
            self.remember(prompt_ids, self._ask_baseline(prompt_ids))
        baseline_ids = self._answers[tuple(prompt_ids)]
        place = first_divergence(baseline_ids, token_ids)
        if place is None:
            return Judgement("identical")
        if place == min(len(baseline_ids), len(token_ids)):
            return Judgement("lossy", place)
        control = self._control(tuple(prompt_ids), baseline_ids[:place])
        return _judge_divergence(control, place, baseline_ids[place], token_ids[place])

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


def _judge_divergence(control: _Control, place: int, baseline_token: int, token: int) -> Judgement:
    """A tie when both tokens lie within the noise of the best: each of two logits may be off by it, hence twice."""
    best, second = control.target_logits.double().topk(2).values.tolist()
    gaps = [best - control.target_logits[chosen].item() for chosen in (baseline_token, token)]
    verdict: Verdict = "tie" if max(gaps) <= 2 * control.noise else "lossy"
    return Judgement(verdict, place, best - second, control.noise)
