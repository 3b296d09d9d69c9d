"""Plain questions to a stream, shared by its tests: commit tokens, compare logits, audit the cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from tiny import VOCABULARY, tiny_target
from torch import Tensor

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.target import Target

VARIANTS = ("llama", "mistral_window", "qwen2_window", "olmoe", "gemma")
TEXT = torch.randint(0, VOCABULARY, (24,), generator=torch.Generator().manual_seed(3)).tolist()


@cache
def target_of(variant: str) -> Target:
    return tiny_target(variant, layers=4, seed=1)


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-12)


def commit(stream: Stream, tokens: Sequence[int]) -> Tensor:
    """Logits of ``tokens``, which then belong to the text."""
    stream.push(tokens)
    stream.advance()
    logits = stream.logits()
    stream.keep(range(stream.rows))
    return logits


def after(target: Target, tokens: Sequence[int]) -> Stream:
    stream = Stream(target, len(tokens))
    commit(stream, tokens)
    return stream


def logits_of(target: Target, tokens: Sequence[int]) -> Tensor:
    return commit(Stream(target, len(tokens)), tokens)


def assert_cached_as_if_fresh(stream: Stream, text: Sequence[int]) -> None:
    """Cache audit: keys and values of every layer equal those of one pass over ``text``."""
    fresh = after(stream.target, text)
    assert stream.cache.lengths == [len(text)] * stream.target.layers
    for ours, theirs in zip(stream.cache.kv, fresh.cache.kv, strict=True):
        assert_same(ours[:, : len(text)], theirs[:, : len(text)])
