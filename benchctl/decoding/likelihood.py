"""How likely the target finds an answer: it reads prompt and answer as they are, and is asked at every token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchctl.decoding.stream import Stream
from benchctl.decoding.target import Target

_BLOCK = 64  # rows whose logits are held at a time


@dataclass(frozen=True)
class Likelihood:
    """Tokens of an answer, how many of them the target would have said, and the logarithm of their probability."""

    tokens: int
    agreed: int
    logprob: float


def likelihood(target: Target, prompt_ids: Sequence[int], answer: Sequence[int]) -> Likelihood:
    """The target's opinion of the ids `answer`, its stop token included, each after the text before it.

    Of the target's logits as they are, at temperature 1 and uncut; in nats.
    """
    agreed, logprob, done = 0, 0.0, 0
    for block in logprobs(target, prompt_ids, answer):
        said = torch.tensor(answer[done : done + len(block)], device=block.device)
        agreed += int((block.argmax(-1) == said).sum())
        logprob += float(block.gather(-1, said[:, None]).sum())
        done += len(block)
    return Likelihood(len(answer), agreed, logprob)


@torch.inference_mode()
def logprobs(target: Target, prompt_ids: Sequence[int], answer: Sequence[int]) -> Iterator[Tensor]:
    """Blocks [rows, vocabulary] of the target's log-probabilities, float64, for each token of `answer` in turn."""
    read = target.read(prompt_ids)
    rows = [*read, *answer[:-1]]
    stream = Stream(target, len(rows))
    stream.push(rows)
    stream.advance()
    states = stream.states[len(read) - 1 :]
    for start in range(0, len(answer), _BLOCK):
        yield target.head(states[start : start + _BLOCK]).double().log_softmax(-1)
