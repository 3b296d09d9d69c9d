"""Fidelity of an answer to the target, as sums that need no judge, computed after the clock has stopped.

All sums are teacher forcing: the target reads prompt and answer, and its choice at every token of the answer is
compared. Probabilities are those of the target's logits at temperature 1, uncut. A row keeps in `fidelity`, as sums
over the tokens of the answer, the stop token included:

scored_tokens           tokens of the answer
target_agreed_tokens    tokens that are the target's most likely one after the text before them
target_logprob          sum of ln p(token), in nats
baseline_scored_tokens, baseline_target_logprob
                        the same for the baseline's answer to the same prompt ids
kl_tokens, kl_nats      tokens with a distribution q of the method's own, and the sum of KL(p || q) over them
kl_infinite_tokens      tokens of an answer with infinite KL: q excludes a token that the target may choose
kl_unrepeated_tokens    tokens of an answer that the method did not give again, so that its q is unknown

The first five are computed for greedy answers that differ from the baseline's, and for all of other engines. KL is
computed for every answer, sampled ones too, of a method that does not claim exactness, as q may differ where the token
does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from benchctl.decoding.experts.offload import Timer
from benchctl.decoding.loop import DecodeRequest, decode, untimed
from benchctl.decoding.method import CarriesOver, Context, Method
from benchctl.decoding.model.likelihood import Likelihood, likelihood, logprobs
from benchctl.decoding.model.target import Target
from benchctl.measuring.verdict import BaselineAnswers


class TeacherForcing:
    """Computes the sums of answers, and caches them."""

    def __init__(self, target: Target, baseline_answers: BaselineAnswers) -> None:
        self._target, self._baseline_answers = target, baseline_answers
        self._likelihoods: dict[tuple[tuple[int, ...], tuple[int, ...]], Likelihood] = {}
        self._divergences: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Mapping[str, float]] = {}

    def sums(self, prompt_ids: Sequence[int], answer: Sequence[int], also_equal: bool = False) -> dict[str, float]:
        """The target's scores of `answer` and of the baseline's answer to the same prompt; empty if they are equal,
        since the baseline is the target's own answer, unless `also_equal`."""
        baseline_answer = self._baseline_answers.answer(prompt_ids)
        if tuple(answer) == tuple(baseline_answer) and not also_equal:
            return {}
        own, baseline = self._likelihood(prompt_ids, answer), self._likelihood(prompt_ids, baseline_answer)
        return {
            "scored_tokens": own.tokens,
            "target_agreed_tokens": own.agreed,
            "target_logprob": own.logprob,
            "baseline_scored_tokens": baseline.tokens,
            "baseline_target_logprob": baseline.logprob,
        }

    def divergence(self, method: Method, request: DecodeRequest, answer: Sequence[int]) -> Mapping[str, float]:
        """KL of a method's own distributions, recorded while it gives the same answer again, untimed.

        Empty for a method without a distribution of its own for each token: one that drafts has the target's. Answers
        with unknown KL are counted, since a mean over the others would be too favourable.
        """
        key = id(method), tuple(request.prompt_ids), tuple(answer)
        if key not in self._divergences:
            self._divergences[key] = self._divergence(method, request, answer)
        return self._divergences[key]

    def _divergence(self, method: Method, request: DecodeRequest, answer: Sequence[int]) -> Mapping[str, float]:
        try:
            own = own_logits(method, self._target, request, answer)
        except NotItsOwn:
            return {}
        if own is None:
            return {"kl_unrepeated_tokens": len(answer)}
        nats = kl_nats(self._target, request.prompt_ids, answer, own)
        finite = {"kl_tokens": len(answer), "kl_nats": nats}
        return finite if math.isfinite(nats) else {"kl_infinite_tokens": len(answer)}

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
        # A token that the target excludes (p = 0) adds nothing, as p ln p goes to 0.
        total += float(torch.where(p > -torch.inf, p.exp() * (p - q), 0.0).sum())
        done += len(p)
    return total


def own_logits(method: Method, target: Target, request: DecodeRequest, answer: Sequence[int]) -> list[Tensor] | None:
    """The logits [1, vocabulary] from which the method chooses each token of `answer`, decoded again for this.

    None if the method gives another answer. Raises NotItsOwn if it does not choose every token from its own logits.
    """
    recorder = _Recorder(method)
    if isinstance(method, CarriesOver):  # decode gives its store to the recorder only
        method.store = method.new_store() if request.store is None else request.store
    decode(recorder, target, replace(request, clock=untimed, timer=None, profile=False))
    repeated = [token for _, token in recorder.choices] == list(answer)
    return [logits for logits, _ in recorder.choices] if repeated else None


class NotItsOwn(Exception):
    """The method committed a token that it did not choose from its own logits."""


@dataclass
class _Recording(Context):
    """A generation whose choices are recorded: the logits [1, vocabulary] and the token of each."""

    choices: list[tuple[Tensor, int]] = field(default_factory=list)

    def pick(self, logits: Tensor) -> int:
        token = super().pick(logits)
        self.choices.append((logits.detach().cpu(), token))
        return token


class _Recorder(Method):
    """A prepared method that records the logits of each choice."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.exactness = method.exactness
        self.choices: list[tuple[Tensor, int]] = []

    def serve(self, target: Target, timer: Timer | None) -> AbstractContextManager[Target]:
        return self._method.serve(target, timer)

    def start(self, context: Context) -> int:
        first = self._method.start(self._recording(context))
        self._check(1)
        return first

    def step(self, context: Context) -> Sequence[int]:
        tokens = self._method.step(self._recording(context))
        self._check(context.new_tokens + len(tokens))
        return tokens

    def _recording(self, context: Context) -> _Recording:
        """The same generation: stream and text are shared, not copied."""
        return _Recording(**vars(context), choices=self.choices)

    def _check(self, tokens: int) -> None:
        if len(self.choices) != tokens:
            raise NotItsOwn
