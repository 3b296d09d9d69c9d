"""The no-draft control: how far the target's logits move when nothing changes but the number of rows in a pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from benchctl.decoding.stream import Stream
from benchctl.decoding.target import Target

ROWS = (2, 4, 16)  # the kernels change with the number of rows: few, some and many, as verifications have
_BLOCK = 16  # tokens compared at a time; every number of rows divides it


@torch.inference_mode()
def answer_noise(target: Target, prompt_ids: Sequence[int], answer: Sequence[int]) -> float:
    """The largest difference of a logit between two ways of reading the target's own `answer` to `prompt_ids`.

    One way reads it as plain decoding does, a row in a pass, the others 2, 4 and 16 rows in a pass, as verification
    does; each fills a cache of its own, so that rounding adds up as it does in decoding. Nothing is drafted and every
    token is the same: what differs is rounding. It is the maximum over all positions and the whole vocabulary, of the
    logits as the head gives them; 0 for an answer of one token, which prefill gives whatever comes after.

    MEASUREMENT 2.1, `numeric`. The result depends on nothing but its arguments, so a resumed run finds the same.
    """
    rows = list(answer[:-1])
    alone = [block.cpu() for block in _logits(target, prompt_ids, rows, 1)]
    return max(
        (
            (one.double() - other.cpu().double()).abs().max().item()
            for size in ROWS
            for one, other in zip(alone, _logits(target, prompt_ids, rows, size), strict=True)
        ),
        default=0.0,
    )


def _logits(target: Target, prompt_ids: Sequence[int], rows: Sequence[int], size: int) -> Iterator[Tensor]:
    """Blocks [tokens, vocabulary] of the logits of `rows` behind a prompt, read `size` rows in a pass.

    A way is read to its end before the next one begins: one cache at a time is what decoding itself needs.
    """
    stream = _read(target, prompt_ids, len(rows))
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        yield torch.cat([_pass(stream, block[part : part + size]) for part in range(0, len(block), size)])


def _read(target: Target, prompt_ids: Sequence[int], more: int) -> Stream:
    """A stream that has read the prompt, with room for `more` rows."""
    text = target.read(prompt_ids)
    stream = Stream(target, len(text) + more)
    stream.push(text)
    stream.advance()
    stream.keep(range(len(text)))
    return stream


def _pass(stream: Stream, rows: Sequence[int]) -> Tensor:
    """Logits [rows, vocabulary] of rows that are read together."""
    stream.push(rows)
    stream.advance()
    target_logits = stream.logits()
    stream.keep(range(len(rows)))
    return target_logits
