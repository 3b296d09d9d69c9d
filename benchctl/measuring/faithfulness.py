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
kl_infinite_tokens      tokens of an answer whose KL is infinite, as q finds impossible what the target may say
kl_unrepeated_tokens    tokens of an answer that the method did not give a second time, so that its q was not heard

The first five are only taken of greedy answers that are not the baseline's: one that is agrees everywhere and has its
likelihood. KL is taken of every answer, sampled ones too, of a method that claims no exactness, for q may differ where
the token does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchctl.decoding.experts.tiers import Timer
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Context, Method, Step
from benchctl.decoding.model.likelihood import Likelihood, likelihood, logprobs
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling


@dataclass(frozen=True)
class Given:
    """What an answer was given under: a method's depth may depend on its limits, and its tokens on the seed."""

    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0


class Faithfulness:
    """The sums of answers to the prompts at hand; what was computed once is kept until `forget`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._likelihoods: dict[tuple[tuple[int, ...], tuple[int, ...]], Likelihood] = {}
        self._divergences: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Mapping[str, float]] = {}

    def forget(self) -> None:
        """Drop what was kept."""
        self._likelihoods.clear()
        self._divergences.clear()

    def sums(self, prompt_ids: Sequence[int], answer: Sequence[int], baseline: Sequence[int]) -> dict[str, float]:
        """What the target thinks of `answer` and of the baseline's to the same prompt; empty where they are equal."""
        if tuple(answer) == tuple(baseline):
            return {}
        own, other = self._likelihood(prompt_ids, answer), self._likelihood(prompt_ids, baseline)
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

        Empty where it has none of its own for each token: what drafts has the target's. An answer whose KL cannot be
        told counts as such, for the mean over the others speaks of the better ones.
        """
        key = id(method), tuple(prompt_ids), tuple(answer)
        if key not in self._divergences:
            self._divergences[key] = self._diverges(method, prompt_ids, answer, given)
        return self._divergences[key]

    def _diverges(
        self, method: Method, prompt_ids: Sequence[int], answer: Sequence[int], given: Given
    ) -> Mapping[str, float]:
        try:
            own = own_logits(method, self._target, prompt_ids, answer, given)
        except NotItsOwn:
            return {}
        if own is None:
            return {"kl_unrepeated_tokens": len(answer)}
        nats = kl_nats(self._target, prompt_ids, answer, own)
        if not math.isfinite(nats):
            return {"kl_infinite_tokens": len(answer)}
        return {"kl_tokens": len(answer), "kl_nats": nats}

    def _likelihood(self, prompt_ids: Sequence[int], answer: Sequence[int]) -> Likelihood:
        key = tuple(prompt_ids), tuple(answer)
        if key not in self._likelihoods:
            self._likelihoods[key] = likelihood(self._target, prompt_ids, answer)
        return self._likelihoods[key]


def kl_nats(target: Target, prompt_ids: Sequence[int], answer: Sequence[int], own: Sequence[Tensor]) -> float:
    """Sum of KL(p || q) over the tokens of `answer`: p is the target's distribution on that text, q the softmax of
    `own` [1, vocabulary] each, the method's logits for that token."""
    total, done = 0.0, 0
    for p in logprobs(target, prompt_ids, answer):
        q = torch.cat(list(own[done : done + len(p)])).to(p.device).double().log_softmax(-1)
        # A token that the target cannot say adds nothing, however unlikely the method finds it.
        total += float(torch.where(p > -torch.inf, p.exp() * (p - q), 0.0).sum())
        done += len(p)
    return total


def own_logits(
    method: Method, target: Target, prompt_ids: Sequence[int], answer: Sequence[int], given: Given
) -> list[Tensor] | None:
    """The logits [1, vocabulary] that each token of `answer` was chosen from, in a decoding done for this.

    None where the method gives another answer. Raises NotItsOwn where it does not choose every token from logits of its
    own.
    """
    listener = _Listener(method)
    decode(listener, target, DecodeRequest(prompt_ids, given.max_new_tokens, given.sampling, seed=given.seed))
    return [choice.logits for choice in listener.heard] if _said(listener.heard) == tuple(answer) else None


class NotItsOwn(Exception):
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
            raise NotItsOwn
