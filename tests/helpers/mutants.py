"""Methods with one mistake each, for tests that show that the tests can fail."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchctl.decoding.draft import Draft
from benchctl.decoding.method import Context
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import draw
from benchctl.decoding.verify import Verdict
from benchctl.methods.two_model import TwoModel


class StaleStream:
    """A stream that is told to forget rejected rows and keeps them: the mistake that verification hides."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._stale = 0
        self.target = stream.target
        self.push, self.advance, self.keep = stream.push, stream.advance, stream.keep

    @property
    def length(self) -> int:
        return int(self._stream.length) - self._stale

    @property
    def rows(self) -> Any:
        return self._stream.rows

    @property
    def base(self) -> int:
        return int(self._stream.base) - self._stale

    @property
    def states(self) -> Tensor:
        states: Tensor = self._stream.states
        return states

    @property
    def text(self) -> list[int]:
        text: list[int] = self._stream.text[self._stale :]
        return text

    def truncate(self, length: int) -> None:
        self._stale += self.length - length


class ForgetfulTwoModel(TwoModel):
    """two_model with a draft cache that is never rolled back."""

    _stream: Any

    def start(self, context: Context) -> int:
        first: int = super().start(context)
        self._stream = StaleStream(self._stream)
        return first


class LateTwoModel(TwoModel):
    """two_model whose draft model takes every token from position 20 on to stand one place earlier."""

    def use_draft_model(self, draft_model: Target) -> None:
        self._model = copy.copy(draft_model)
        self._model.rotary = torch.cat((self._model.rotary[:20], self._model.rotary[19:-1]))


class UnrepairedTwoModel(TwoModel):
    """After a rejection the bonus token is drawn from p, not from what is left of it."""

    def verify(self, context: Context, draft: Draft, target_logits: Tensor) -> Verdict:
        verdict: Verdict = super().verify(context, draft, target_logits)
        if len(verdict.path) == len(draft):
            return verdict
        probs = context.sampling.probs(target_logits)
        return replace(verdict, next_token=draw(probs[len(verdict.path)], context.generator))


class UnwarpedBonusTwoModel(TwoModel):
    """The bonus token after a draft accepted whole ignores temperature, top-k and top-p."""

    def verify(self, context: Context, draft: Draft, target_logits: Tensor) -> Verdict:
        verdict: Verdict = super().verify(context, draft, target_logits)
        if len(verdict.path) < len(draft):
            return verdict
        return replace(verdict, next_token=draw(target_logits[-1].softmax(-1), context.generator))


class FlatterTwoModel(TwoModel):
    """The draft is said to come from a flatter distribution than the one it was drawn from."""

    def draft(self, context: Context, budget: int) -> Draft:
        draft: Draft = super().draft(context, budget)
        if draft.probs is None:
            return draft
        flatter = [probs.sqrt() for probs in draft.probs]
        return replace(draft, probs=[probs / probs.sum() for probs in flatter])
