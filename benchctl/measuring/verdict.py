"""Is a method's answer the target's? Token by token, and where it is not, whether rounding alone can explain it.

Two ways of computing the same logits (one row on a cache, many rows at once) round differently. So even an exact
method may leave the baseline's text where the target's two best logits are closer than that noise. The control reads
the method's answer again, in passes of one row and of as many rows as the method used. It measures the noise at the
very position and over the whole answer: no fixed tolerance excuses a token, nor does noise that the method did not
meet. After the first divergence each token is compared with the target's choice on the method's own text; otherwise
one divergence by rounding would hide all later errors.

A wrong token can only pass within the noise that the control measures. The simulation of tests/test_verdict_power.py
shows how reliably more frequent errors are detected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import Generation
from benchctl.decoding.model.target import Target
from benchctl.decoding.verify import common_start
from benchctl.records.schema import Verdict

# A gap beyond this many rounding units of the largest logit needs no control: rounding never came near it.
_MOST_ROUNDINGS = 256


class BaselineAnswers:
    """The baseline's answers to the prompts at hand, by token ids.

    A timed answer is remembered where there is one. A second turn whose history differs (the method's first answer was
    another one) is a prompt that the baseline was never asked: `decode` then answers it, untimed. So every answer is
    compared on its own prompt, and a divergence in the first turn is not counted again in the second.
    """

    def __init__(self, decode: Callable[[Sequence[Sequence[int]]], Sequence[Generation]]) -> None:
        self._decode = decode
        self._answers: dict[tuple[int, ...], tuple[int, ...]] = {}

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


@dataclass(frozen=True)
class Judgement:
    """A verdict with its evidence at the token that decides: the first divergence, or a later token that is harder to
    explain. All but the first two are None where nothing diverged, or one answer only ended earlier.

    margin         the target's best logit minus its second best
    gap            how far the worse of the two tokens chosen there lies below the best; later, the method's token
    noise          the largest difference of a logit there, between passes of one row and those of the method
    control_noise  the largest such difference at any token after the first, which prefill gives; both noises are None
                   where the gap is so large that no control was needed
    decided_at     index of the token that decides
    """

    verdict: Verdict | None = None
    first_divergence: int | None = None
    margin: float | None = None
    noise: float | None = None
    gap: float | None = None
    control_noise: float | None = None
    decided_at: int | None = None

    @property
    def evidence(self) -> dict[str, float]:
        """What a row keeps in `fidelity`, by name."""
        values = {"gap": self.gap, "control_noise": self.control_noise, "decided_at": self.decided_at}
        return {name: float(value) for name, value in values.items() if value is not None}


class Referee:
    """Judges greedy answers against the baseline's answers to the same token ids. Verdicts are cached.

    `read_control` gives the control of an answer, see AnswerControl. Without a target nothing explains a difference.
    """

    def __init__(
        self,
        target: Target | None,
        baseline_answers: BaselineAnswers,
        read_control: Callable[[Sequence[int], Sequence[int]], AnswerControl],
    ) -> None:
        self._target, self._baseline_answers, self._read_control = target, baseline_answers, read_control
        self._judged: dict[tuple[tuple[int, ...], ...], Judgement] = {}

    def judge(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sizes: Sequence[int], whole_answer: bool = True
    ) -> Judgement:
        """The verdict on a method's greedy answer `token_ids`, given in passes of one row and of these `sizes` (see
        pass_sizes).

        Without `whole_answer` the tokens after the first divergence are not judged: those of another engine need not
        be the target's, and after it only the target could say which are."""
        baseline_ids = self._baseline_answers.answer(prompt_ids)
        divergence = first_divergence(baseline_ids, token_ids)
        if divergence is None:
            return Judgement("identical")
        if self._target is None or divergence == min(len(baseline_ids), len(token_ids)):
            return Judgement("lossy", divergence)
        key = tuple(prompt_ids), tuple(token_ids), tuple(sizes)
        if key not in self._judged:
            chosen = baseline_ids[divergence], token_ids[divergence]
            near = self._target.next_logits(prompt_ids, baseline_ids[:divergence], one_by_one=True)
            gap = _gap(near, chosen)
            if gap > _MOST_ROUNDINGS * torch.finfo(near.dtype).eps * near.double().abs().max().item():
                judgement = Judgement("lossy", divergence, _margin(near), gap=gap, decided_at=divergence)
            else:
                control = self._read_control(prompt_ids, token_ids)
                gaps, noises = control.gaps(), control.noises(sizes)
                gaps[divergence] = _gap(control.logits(divergence), chosen)
                judged = len(gaps) if whole_answer else divergence + 1
                verdict, at = _worst(gaps[:judged], noises, divergence)
                margin, most = _margin(control.logits(at)), max(noises[1:], default=0.0)
                judgement = Judgement(verdict, divergence, margin, noises[at], gaps[at], most, at)
            self._judged[key] = judgement
        return self._judged[key]


def first_divergence(first: Sequence[int], second: Sequence[int]) -> int | None:
    """The first index at which two answers differ, one of them ending counted as differing; None when they are equal.

    >>> first_divergence([5, 6, 7], [5, 6, 8]), first_divergence([5, 6], [5, 6, 7]), first_divergence([5], [5])
    (2, 2, None)
    """
    divergence = common_start(first, second)
    return None if divergence == len(first) == len(second) else divergence


def _margin(target_logits: Tensor) -> float:
    best, second = target_logits.double().topk(2).values.tolist()
    return float(best - second)


def _gap(target_logits: Tensor, tokens: Sequence[int]) -> float:
    """How far the worst of these tokens lies below the best one."""
    best = target_logits.max().item()
    return float(max(best - target_logits[token].item() for token in tokens))


def _worst(gaps: Sequence[float], noises: Sequence[float], first: int) -> tuple[Verdict, int]:
    """The worst verdict on any token from `first` on, and the first token that has it.

    tie      the token lies within twice the noise at its own position: each of two logits may be off by the noise
    numeric  within twice the largest noise of the answer, as the noise at one position is one draw; not allowed for
             the first token, which prefill gives, where every method reads the same rows as the baseline
    lossy    otherwise
    """
    worst: tuple[Verdict, int] = "tie", first
    most = max(noises[1:], default=0.0)
    for index in range(first, len(gaps)):
        if gaps[index] <= 2 * noises[index]:
            continue
        if index == 0 or gaps[index] > 2 * most:
            return "lossy", index
        if worst[0] == "tie":
            worst = "numeric", index
    return worst


MOST_SIZES = 4


def pass_sizes(rows: Sequence[int], together: int = 1) -> tuple[int, ...]:
    """How many rows the passes of the target had, other than one, for a method whose steps read `rows`.

    A step of 0 rows left the target early. In a batch the rows of all answers go through the kernels `together`. Of
    more than MOST_SIZES sizes the smallest, the largest and the most frequent are used. Empty where every pass had one
    row, like the baseline's: then nothing rounds differently.
    """
    used = Counter(count * together for count in (1, *rows) if count)
    del used[1]
    often = [size for size, _ in used.most_common()]
    ends = [min(often), max(often)] if often else []
    return tuple(sorted(list(dict.fromkeys(ends + often))[:MOST_SIZES]))


class AnswerControl:
    """An `answer` to `prompt_ids`, read by the target with one row per pass, as plain decoding does, and with several.

    Each reading fills a cache of its own, so that rounding adds up as it does in decoding. All tokens are the same:
    only rounding differs. All readings begin with the same prefill; for the first token, the comparison reads the last
    token of the prompt as a row of its own.

    The result depends only on the arguments, so a resumed run gets the same. Reading n rows per pass takes 1/n of the
    baseline's passes: four sizes take about the time of the answer, and plain reading, done once, as much again.
    Memory: logits [tokens, vocabulary] in the target's dtype on the host.
    """

    def __init__(self, target: Target, prompt_ids: Sequence[int], answer: Sequence[int]) -> None:
        self._target, self._prompt_ids, self._answer = target, prompt_ids, list(answer)
        self._rows = self._answer[:-1]  # the last token is chosen, but never read
        self._differences: dict[int, Tensor] = {}

    def logits(self, index: int) -> Tensor:
        """The logits [vocabulary], on the host, from which plain decoding chooses token `index` of the answer."""
        return self._alone[index]

    def gaps(self) -> list[float]:
        """How far each token of the answer lies below the choice of plain decoding after the same text; 0 where it is
        that choice."""
        chosen = self._alone.gather(1, torch.tensor(self._answer)[:, None])[:, 0]
        return (self._alone.amax(-1).double() - chosen.double()).tolist()

    def noises(self, sizes: Sequence[int]) -> tuple[float, ...]:
        """For each token of the answer, the largest difference of any of its logits between passes of one row and
        passes of these `sizes`."""
        differences = torch.stack([self._prefill_difference, *(self._difference(size) for size in sizes)])
        return tuple(differences.amax(0).tolist())

    @cached_property
    @torch.inference_mode()
    def _alone(self) -> Tensor:
        """[tokens, vocabulary]"""
        first = self._target.next_logits(self._prompt_ids).cpu()
        logits = first.new_empty(1 + len(self._rows), len(first))
        logits[0] = first
        for index, row in enumerate(self._read(1), 1):
            logits[index] = row.cpu()[0]
        return logits

    @cached_property
    def _prefill_difference(self) -> Tensor:
        """[tokens], 0 for all but the first."""
        split = self._target.next_logits(self._prompt_ids, one_by_one=True).cpu()
        difference = torch.zeros(len(self._alone), dtype=torch.float64)
        difference[0] = (self._alone[0].double() - split.double()).abs().max()
        return difference

    @torch.inference_mode()
    def _difference(self, size: int) -> Tensor:
        """[tokens], 0 for the first, which is that of prefill."""
        if size not in self._differences:
            difference, done = torch.zeros(len(self._alone), dtype=torch.float64), 1
            for logits in self._read(size):
                alone = self._alone[done : done + len(logits)]
                difference[done : done + len(logits)] = (alone.double() - logits.cpu().double()).abs().amax(-1)
                done += len(logits)
            self._differences[size] = difference
        return self._differences[size]

    def _read(self, size: int) -> Iterator[Tensor]:
        """Logits [at most `size`, vocabulary] of the rows after the prompt, `size` rows per pass, on one cache."""
        text = self._target.begin(self._prompt_ids)
        stream = Stream(self._target, len(text) + len(self._rows))
        stream.cache.encoded = self._target.read(self._prompt_ids)
        stream.push(text)
        stream.advance()
        stream.keep(range(len(text)))
        for start in range(0, len(self._rows), size):
            rows = self._rows[start : start + size]
            stream.push(rows)
            stream.advance()
            yield stream.logits()
            stream.keep(range(len(rows)))
