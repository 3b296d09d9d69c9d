"""How likely the target finds an answer: it reads prompt and answer as they are, and is asked at every token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.target import Target

_BLOCK, _TREE_BLOCK = 64, 32  # rows whose logits are held at a time


@dataclass(frozen=True)
class Likelihood:
    """Tokens of an answer, how many of them the target would have said, and the logarithm of their probability."""

    tokens: int
    agreed: int
    logprob: float


def likelihood(target: Target, prompt_ids: Sequence[int], answer: Sequence[int]) -> Likelihood:
    """The target's opinion of the ids `answer`, its stop token included, at temperature 1 and uncut; in nats."""
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
    begun = target.begin(prompt_ids)
    rows = [*begun, *answer[:-1]]
    stream = Stream(target, len(rows))
    if target.info.opaque:
        yield from _blocks(target, stream, rows, len(begun))
        return
    stream.cache.encoded = target.read(prompt_ids)
    stream.push(rows)
    stream.advance()
    states = stream.states[len(begun) - 1 :]
    for start in range(0, len(answer), _BLOCK):
        yield target.head(states[start : start + _BLOCK]).double().log_softmax(-1)


def _blocks(target: Target, stream: Stream, rows: Sequence[int], prompt_tokens: int) -> Iterator[Tensor]:
    """The blocks of ``logprobs`` where a pass computes the logits of all its rows: the prompt has no block."""
    starts = [0, *range(prompt_tokens, len(rows), _BLOCK), len(rows)]
    for start, end in pairwise(starts):
        stream.push(rows[start:end], last_only=start == 0)
        stream.advance()
        yield target.head(stream.states[-1:] if start == 0 else stream.states).double().log_softmax(-1)
        stream.keep(range(end - start))


@torch.inference_mode()
def reply_chances(
    target: Target, prompt_ids: Sequence[int], replies: Sequence[Sequence[int]], continued_by: Sequence[int]
) -> list[float]:
    """The probability of each of `replies`, ids that follow the prompt, and that none of `continued_by` comes next.

    Where "10" is the tokens 1 0, the chance of "1" is p(1) * (1 - p(a digit | 1)). Of logits at temperature 1, uncut;
    for targets without an encoder.
    """
    # A tree of the replies, common beginnings said once: node 0 is the prompt, each other a token after its parent.
    beginnings = dict.fromkeys(tuple(reply[:end]) for reply in replies for end in range(1, len(reply) + 1))
    nodes = {text: node for node, text in enumerate([(), *beginnings])}
    tokens, parents = [text[-1] for text in beginnings], [nodes[text[:-1]] for text in beginnings]
    chances, ended = [1.0] * len(nodes), [1.0] * len(nodes)
    continuing = list(continued_by)
    for node, probs in enumerate(_next_probs(target, prompt_ids, tokens, parents)):
        ended[node] = max(0.0, 1.0 - float(probs[continuing].sum()))
        for child, (parent, token) in enumerate(zip(parents, tokens, strict=True), 1):
            if parent == node:  # nodes stand behind their parents
                chances[child] = chances[node] * float(probs[token])
    return [chances[nodes[tuple(reply)]] * ended[nodes[tuple(reply)]] for reply in replies]


def _next_probs(
    target: Target, prompt_ids: Sequence[int], tokens: Sequence[int], parents: Sequence[int]
) -> Iterator[Tensor]:
    """The distribution [vocabulary] of what comes after the prompt and after each token, float64 on the host."""
    stream = Stream(target, len(prompt_ids) + len(tokens))
    stream.push(prompt_ids)
    stream.advance()
    yield from stream.logits(len(prompt_ids) - 1).cpu().double().softmax(-1)
    stream.keep(range(len(prompt_ids)))
    stream.push(tokens, [parent - 1 for parent in parents])
    stream.advance()
    for start in range(0, len(tokens), _TREE_BLOCK):
        yield from target.head(stream.states[start : start + _TREE_BLOCK]).cpu().double().softmax(-1)
