"""How an answer looks to the target: sums that need no judge and no key, taken after the clock has stopped.

All of it is teacher forcing: the target reads the prompt and the answer as they are, and is asked at every token of the
answer what it would have said. Probabilities are of the target's logits as they are, at temperature 1 and uncut.
What a row keeps of it in `fidelity`, as sums over the tokens of the answer, its stop token included:

scored_tokens           tokens of the answer
target_agreed_tokens    those that are the target's likeliest token after the text before them
target_logprob          sum of ln p(token), in nats
baseline_scored_tokens, baseline_target_logprob
                        the same of the baseline's answer to the same prompt ids
kl_tokens, kl_nats      tokens at which the method's own distribution q was at hand, and the sum of KL(p || q) there

The first five are only taken of greedy answers that are not the baseline's: one that is agrees everywhere and has its
likelihood. KL is taken of every answer, sampled ones too, of a method that claims no exactness, for q may differ where
the token does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchctl.decoding.loop import Limits, decode
from benchctl.decoding.method import Context, Method, Step
from benchctl.decoding.sampling import Sampling
from benchctl.decoding.stream import Stream
from benchctl.decoding.target import Target
from benchctl.decoding.tiers import Timer

_BLOCK = 64  # rows whose logits are held at a time


@dataclass(frozen=True)
class Score:
    """Tokens of an answer, how many of them the target would have said, and the logarithm of their probability."""

    tokens: int
    agreed: int
    logprob: float


@dataclass(frozen=True)
class Given:
    """What an answer was given under: a method's depth may depend on its limits, and its tokens on the seed."""

    limits: Limits
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0


class Faithfulness:
    """The sums of answers to the prompts at hand; what was computed once is kept until `forget`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._scores: dict[tuple[tuple[int, ...], tuple[int, ...]], Score] = {}
        self._divergences: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Mapping[str, float]] = {}

    def forget(self) -> None:
        """Drop what was kept."""
        self._scores.clear()
        self._divergences.clear()

    def sums(self, prompt_ids: Sequence[int], answer: Sequence[int], baseline: Sequence[int]) -> dict[str, float]:
        """What the target thinks of `answer` and of the baseline's to the same prompt; empty where they are equal."""
        if tuple(answer) == tuple(baseline):
            return {}
        own, other = self._score(prompt_ids, answer), self._score(prompt_ids, baseline)
        return {
            "scored_tokens": own.tokens,
            "target_agreed_tokens": own.agreed,
            "target_logprob": own.logprob,
            "baseline_scored_tokens": other.tokens,
            "baseline_target_logprob": other.logprob,
        }

    def divergence(
        self, method: Method, prompt_ids: Sequence[int], answer: Sequence[int], given: Given
    ) -> Mapping[str, float]:
        """KL of a method's own distributions, heard while it gives the same answer again, untimed.

        Empty where it has none of its own for each token (what drafts has the target's), or does not repeat itself.
        """
        key = id(method), tuple(prompt_ids), tuple(answer)
        if key not in self._divergences:
            own = own_logits(method, self._target, prompt_ids, answer, given)
            nats = math.nan if own is None else kl_nats(self._target, prompt_ids, answer, own)
            self._divergences[key] = {"kl_tokens": len(answer), "kl_nats": nats} if math.isfinite(nats) else {}
        return self._divergences[key]

    def _score(self, prompt_ids: Sequence[int], answer: Sequence[int]) -> Score:
        key = tuple(prompt_ids), tuple(answer)
        if key not in self._scores:
            self._scores[key] = score(self._target, prompt_ids, answer)
        return self._scores[key]


def score(target: Target, prompt_ids: Sequence[int], answer: Sequence[int]) -> Score:
    """The target's opinion of `answer`, token by token after the text before it."""
    agreed, logprob, done = 0, 0.0, 0
    for logprobs in _logprobs(target, prompt_ids, answer):
        said = torch.tensor(answer[done : done + len(logprobs)], device=logprobs.device)
        agreed += int((logprobs.argmax(-1) == said).sum())
        logprob += float(logprobs.gather(-1, said[:, None]).sum())
        done += len(logprobs)
    return Score(len(answer), agreed, logprob)


def kl_nats(target: Target, prompt_ids: Sequence[int], answer: Sequence[int], own: Sequence[Tensor]) -> float:
    """Sum of KL(p || q) over the tokens of `answer`: p is the target's distribution on that text, q the softmax of
    `own` [1, vocabulary] each, the method's logits for that token."""
    total, done = 0.0, 0
    for p in _logprobs(target, prompt_ids, answer):
        q = torch.cat(list(own[done : done + len(p)])).to(p.device).double().log_softmax(-1)
        # A token that the target cannot say adds nothing, however unlikely the method finds it.
        total += float(torch.where(p > -torch.inf, p.exp() * (p - q), 0.0).sum())
        done += len(p)
    return total


@torch.inference_mode()
def _logprobs(target: Target, prompt_ids: Sequence[int], answer: Sequence[int]) -> Iterator[Tensor]:
    """Blocks [rows, vocabulary] of the target's log-probabilities, float64, for each token of `answer` in turn."""
    read = target.read(prompt_ids)
    rows = [*read, *answer[:-1]]
    stream = Stream(target, len(rows))
    stream.push(rows)
    stream.advance()
    states = stream.states[len(read) - 1 :]
    for start in range(0, len(answer), _BLOCK):
        yield target.head(states[start : start + _BLOCK]).double().log_softmax(-1)


def own_logits(
    method: Method, target: Target, prompt_ids: Sequence[int], answer: Sequence[int], given: Given
) -> list[Tensor] | None:
    """The logits [1, vocabulary] that each token of `answer` was chosen from, in a decoding done for this.

    None where the method does not choose every token from logits of its own, or gives another answer.
    """
    listener = _Listener(method)
    try:
        decode(listener, target, prompt_ids, given.limits, given.sampling, lambda: 0.0, given.seed)
    except _NotItsOwn:
        return None
    return [choice.logits for choice in listener.heard] if _said(listener.heard) == tuple(answer) else None


class _NotItsOwn(Exception):
    """A token came without a choice of the method's own."""


@dataclass(frozen=True, eq=False)
class _Choice:
    logits: Tensor
    token: int


def _said(choices: Sequence[_Choice]) -> tuple[int, ...]:
    return tuple(choice.token for choice in choices)


@dataclass
class _Listening(Context):
    """A generation whose choices are listened to."""

    heard: list[_Choice] = field(default_factory=list)

    def pick(self, logits: Tensor) -> int:
        token = super().pick(logits)
        self.heard.append(_Choice(logits.detach().cpu(), token))
        return token


class _Listener(Method):
    """A prepared method that keeps what each of its tokens was chosen from."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.heard: list[_Choice] = []

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        return self._method.serve(target, timer)

    def start(self, context: Context) -> int:
        first = self._method.start(self._listening(context))
        self._check(1)
        return first

    def step(self, context: Context) -> Step:
        step = self._method.step(self._listening(context))
        self._check(len(context.tokens) - context.prompt_tokens + len(step.tokens))
        return step

    def _listening(self, context: Context) -> _Listening:
        """The same generation: stream and text are shared, not copied."""
        return _Listening(**vars(context), heard=self.heard)

    def _check(self, tokens: int) -> None:
        if len(self.heard) != tokens:
            raise _NotItsOwn
