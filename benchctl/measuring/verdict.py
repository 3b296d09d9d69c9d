"""Is a method's answer the target's? Token by token, and where it is not, whether rounding alone can explain it.

Two ways of computing the same logits (one row on a cache, many rows at once) round differently, so even an exact method
may leave the baseline's text where the target's two best tokens lie closer together than that noise. The control reads
the method's answer once more, in passes of one row and of as many as the method's had (control.py), which shows the
noise at the very position, and over the whole answer: nothing is excused by a fixed tolerance, nor by noise that the
method did not meet. From where it leaves the baseline's text each token is held against what the target would say
there: else one that rounding explains would hide all errors behind it.

A wrong token that passes for rounding lies within what this control shows rounding to do; the simulation of
tests/test_verdict_power.py says how surely a method that errs more often than that is found out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.target import Target

Verdict = Literal["identical", "tie", "numeric", "lossy", "sampled"]

# Roundings of the largest logit beyond which no control is asked: rounding has not been seen to come near.
_MOST_ROUNDINGS = 256


class Logits(Protocol):
    """What a verdict needs from the target: logits [V] after a prompt and an answer, the last token read by itself."""

    def next_logits(self, prompt_ids: Sequence[int], answer: Sequence[int], *, one_by_one: bool) -> Tensor: ...


class Control(Protocol):
    """What plain decoding would choose each token of an answer from, how far below the best each one lies in that, and
    how far passes of other sizes move it."""

    def logits(self, place: int) -> Tensor: ...

    def gaps(self) -> Sequence[float]: ...

    def noises(self, sizes: Sequence[int]) -> Sequence[float]: ...


@dataclass(frozen=True)
class Judgement:
    """A verdict with its evidence, of the `place` that decides: the first divergence, or where a later token is harder
    to explain. All but the first two are None where nothing diverged, or one answer only ended earlier.

    margin         the target's best logit less its second, there
    gap            how far the worse of the two tokens said there lies below the best; further on, the method's token
    noise          the largest difference of a logit there, between one row in a pass and as many as the method had
    control_noise  the largest of these at any place of the answer behind its first, which prefill gives; this and noise
                   are None where the gap is beyond what rounding comes to, so that no control was asked
    """

    verdict: Verdict | None = None
    first_divergence: int | None = None
    margin: float | None = None
    noise: float | None = None
    gap: float | None = None
    control_noise: float | None = None
    place: int | None = None

    @property
    def evidence(self) -> dict[str, float]:
        """What stands in a row beside margin and noise, by name."""
        told = {"gap": self.gap, "control_noise": self.control_noise, "decided_at": self.place}
        return {name: float(value) for name, value in told.items() if value is not None}


class Referee:
    """Judges greedy answers to one prompt against the baseline's answer to the same token ids.

    The baseline's timed answer serves where there is one. A second turn whose history differs (the method's own first
    answer was another) is a prompt that the baseline was never asked: `ask_baseline` then decodes it, untimed. So every
    answer is judged on its own prompt, and a divergence in the first turn is not counted again in the second.
    `read` gives the control of an answer: see control.AnswerControl. Answers and verdicts are kept by token ids;
    `forget` drops them when the prompt is done.
    """

    def __init__(
        self,
        target: Logits,
        ask_baseline: Callable[[list[int]], Sequence[int]],
        read: Callable[[Sequence[int], Sequence[int]], Control],
    ) -> None:
        self._target = target
        self._ask_baseline = ask_baseline
        self._read = read
        self._answers: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._judged: dict[tuple[tuple[int, ...], ...], Judgement] = {}

    def remember(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> bool:
        """Take the baseline's answer; False when it once gave another to the same prompt (the first one stays)."""
        return self._answers.setdefault(tuple(prompt_ids), tuple(token_ids)) == tuple(token_ids)

    def forget(self) -> None:
        """Drop what was kept for the prompt."""
        self._answers.clear()
        self._judged.clear()

    def knows(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the baseline has answered these ids."""
        return tuple(prompt_ids) in self._answers

    def answer(self, prompt_ids: list[int]) -> tuple[int, ...]:
        """The baseline's answer to exactly these ids."""
        if tuple(prompt_ids) not in self._answers:
            self.remember(prompt_ids, self._ask_baseline(prompt_ids))
        return self._answers[tuple(prompt_ids)]

    def judge(self, prompt_ids: list[int], token_ids: Sequence[int], sizes: Sequence[int]) -> Judgement:
        """The verdict on a method's greedy answer `token_ids` to `prompt_ids`, given in passes of one row and of these
        `sizes`: see control.pass_sizes."""
        baseline_ids = self.answer(prompt_ids)
        place = first_divergence(baseline_ids, token_ids)
        if place is None:
            return Judgement("identical")
        if place == min(len(baseline_ids), len(token_ids)):
            return Judgement("lossy", place)
        key = tuple(prompt_ids), tuple(token_ids), tuple(sizes)
        if key not in self._judged:
            self._judged[key] = self._explain(prompt_ids, baseline_ids, token_ids, place, sizes)
        return self._judged[key]

    def _explain(
        self,
        prompt_ids: list[int],
        baseline_ids: Sequence[int],
        token_ids: Sequence[int],
        place: int,
        sizes: Sequence[int],
    ) -> Judgement:
        """What an answer that leaves the baseline's at `place` is."""
        said = baseline_ids[place], token_ids[place]
        near = self._target.next_logits(prompt_ids, baseline_ids[:place], one_by_one=True)
        gap = _gap(near, said)
        if gap > _MOST_ROUNDINGS * torch.finfo(near.dtype).eps * near.double().abs().max().item():
            return Judgement("lossy", place, _margin(near), gap=gap, place=place)
        control = self._read(prompt_ids, token_ids)
        gaps, noises = list(control.gaps()), control.noises(sizes)
        gaps[place] = _gap(control.logits(place), said)
        verdict, at = _worst(gaps, noises, place)
        margin, most = _margin(control.logits(at)), max(noises[1:], default=0.0)
        return Judgement(verdict, place, margin, noises[at], gaps[at], most, at)


def first_divergence(first: Sequence[int], second: Sequence[int]) -> int | None:
    """The first index at which two answers differ, one of them ending counted as differing; None when they are equal.

    >>> first_divergence([5, 6, 7], [5, 6, 8]), first_divergence([5, 6], [5, 6, 7]), first_divergence([5], [5])
    (2, 2, None)
    """
    pairs = enumerate(zip(first, second, strict=False))
    shorter = min(len(first), len(second))
    place = next((index for index, (left, right) in pairs if left != right), shorter)
    return None if place == len(first) == len(second) else place


def _margin(target_logits: Tensor) -> float:
    best, second = target_logits.double().topk(2).values.tolist()
    return float(best - second)


def _gap(target_logits: Tensor, said: Sequence[int]) -> float:
    """How far the worst of these tokens lies below the best one."""
    best = target_logits.max().item()
    return float(max(best - target_logits[token].item() for token in said))


def _worst(gaps: Sequence[float], noises: Sequence[float], first: int) -> tuple[Verdict, int]:
    """The gravest verdict on any token from `first` on, and the first place it is of.

    A tie where a token lies within the noise of the best there: each of two logits may be off by it, hence twice. The
    noise at one place is one draw: numeric where the gap lies within twice what the whole answer shows, but for its
    first token, which comes of prefill, where no method reads other rows than the baseline.
    """
    found: tuple[Verdict, int] = "tie", first
    most = max(noises[1:], default=0.0)
    for place in range(first, len(gaps)):
        if gaps[place] <= 2 * noises[place]:
            continue
        if place == 0 or gaps[place] > 2 * most:
            return "lossy", place
        if found[0] == "tie":
            found = "numeric", place
    return found


MOST_SIZES = 4


def pass_sizes(rows: Sequence[int], together: int = 1) -> tuple[int, ...]:
    """How many rows stood in a pass of the target, other than one, for a method whose steps read `rows`.

    A step of no row left the target early. Where answers are decoded `together`, their rows go through its kernels
    together, the baseline's single ones too. Of more than MOST_SIZES numbers the least, the greatest and the most
    frequent stand for all. Empty where every pass had one row, as the baseline's have: then there is nothing that would
    round otherwise.
    """
    used = Counter(count * together for count in (1, *rows) if count)
    del used[1]
    often = [size for size, _ in used.most_common()]
    ends = [min(often), max(often)] if often else []
    return tuple(sorted(list(dict.fromkeys(ends + often))[:MOST_SIZES]))


class AnswerControl:
    """An `answer` to `prompt_ids`, read by the target as plain decoding does, a row in a pass, and several at a time.

    Each way fills a cache of its own, so that rounding adds up as it does in decoding. Nothing is drafted and every
    token is the same: what differs is rounding. (MEASUREMENT 2.1.) Both ways begin with the same prefill; for what was
    chosen there the other way is to read the prompt's last token as a row of its own.

    The result depends on nothing but its arguments, so a resumed run finds the same. To read n rows in a pass takes 1/n
    of the baseline's passes: four sizes come to about the time of the answer once more, and plain reading, which is
    done once for all sizes, to as much. Kept meanwhile: logits [tokens, vocabulary] in the target's dtype on the host.
    """

    def __init__(self, target: Target, prompt_ids: Sequence[int], answer: Sequence[int]) -> None:
        self._target = target
        self._prompt_ids = prompt_ids
        self._answer = list(answer)
        self._rows = self._answer[:-1]  # its last token is chosen, but never read
        self._differences: dict[int, Tensor] = {}

    def logits(self, place: int) -> Tensor:
        """What plain decoding would choose token `place` of the answer from, [vocabulary], on the host."""
        return self._alone[place]

    def gaps(self) -> list[float]:
        """How far each token of the answer lies below the one that plain decoding would say after the text before it;
        0 where it is that."""
        said = self._alone.gather(1, torch.tensor(self._answer)[:, None])[:, 0]
        return (self._alone.amax(-1).double() - said.double()).tolist()

    def noises(self, sizes: Sequence[int]) -> tuple[float, ...]:
        """For each token of the answer the largest difference of any logit it is chosen from, between passes of one row
        and those of any of these `sizes`."""
        found = torch.stack([self._prefill_difference, *(self._difference(size) for size in sizes)])
        return tuple(found.amax(0).tolist())

    @cached_property
    @torch.inference_mode()
    def _alone(self) -> Tensor:
        """[tokens, vocabulary]"""
        first = self._target.next_logits(self._prompt_ids).cpu()
        logits = first.new_empty(1 + len(self._rows), len(first))
        logits[0] = first
        for place, row in enumerate(self._read(1), 1):
            logits[place] = row.cpu()[0]
        return logits

    @cached_property
    def _prefill_difference(self) -> Tensor:
        """[tokens], 0 but for the first."""
        split = self._target.next_logits(self._prompt_ids, one_by_one=True).cpu()
        found = torch.zeros(len(self._alone), dtype=torch.float64)
        found[0] = (self._alone[0].double() - split.double()).abs().max()
        return found

    @torch.inference_mode()
    def _difference(self, size: int) -> Tensor:
        """[tokens], 0 for the first, which is prefill's."""
        if size not in self._differences:
            found, done = torch.zeros(len(self._alone), dtype=torch.float64), 1
            for logits in self._read(size):
                alone = self._alone[done : done + len(logits)]
                found[done : done + len(logits)] = (alone.double() - logits.cpu().double()).abs().amax(-1)
                done += len(logits)
            self._differences[size] = found
        return self._differences[size]

    def _read(self, size: int) -> Iterator[Tensor]:
        """Logits [at most `size`, vocabulary] of the rows behind the prompt, so many in a pass.

        A way is read to its end before the next one begins: one cache at a time is what decoding itself needs.
        """
        text = self._target.read(self._prompt_ids)
        stream = Stream(self._target, len(text) + len(self._rows))
        stream.push(text)
        stream.advance()
        stream.keep(range(len(text)))
        for start in range(0, len(self._rows), size):
            rows = self._rows[start : start + size]
            stream.push(rows)
            stream.advance()
            yield stream.logits()
            stream.keep(range(len(rows)))
