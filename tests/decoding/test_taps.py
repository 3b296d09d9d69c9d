"""Residuals at tapped layers are transformers' own, for rows of prompts, chains and trees; taps change no count."""

from __future__ import annotations

import pytest
import torch
from runs import LAYERS, MODELS, pair, prompt_of
from torch import Tensor

from benchctl.decoding.kv.stream import LayerRun, Stream
from benchctl.decoding.model.target import Target


def tapped(target: Target, *taps: int) -> Stream:
    stream = Stream(target, 64)
    stream.taps = taps
    return stream


@pytest.mark.parametrize("taps", [(2, 3), (LAYERS,), (0, 1, LAYERS), (1,)])
@pytest.mark.parametrize(("family", "seed"), MODELS)
@torch.inference_mode()
def test_features_are_the_residuals_of_a_full_forward(family: str, seed: int, taps: tuple[int, ...]) -> None:
    """A prompt of 21 rows, then a chain of 4, then a tree of 6 of which a path is kept, then one row."""
    models = pair(family, seed)
    stream = tapped(models.target, *taps)

    def check(texts: list[list[int]]) -> None:
        """The last row of each text, and no other, ran in the latest pass."""
        expected = torch.stack([models.naive.last_states(text) for text in texts], 1)
        assert len(stream.features) == len(taps)
        for tap, feature in zip(taps, stream.features, strict=True):
            torch.testing.assert_close(feature, expected[tap], rtol=0.0, atol=1e-12)

    prompt = prompt_of(21, seed)
    stream.push(prompt)
    stream.advance()
    check([prompt[: end + 1] for end in range(21)])
    stream.keep(range(21))
    check([prompt[: end + 1] for end in range(21)])  # until the next pass
    stream.push([3, 4, 5, 6])
    stream.advance()
    check([[*prompt, 3, 4, 5, 6][: 22 + end] for end in range(4)])
    stream.keep(range(2))
    text = [*prompt, 3, 4]
    stream.push([7, 8, 9, 10, 11, 12], [-1, 0, 0, 1, 2, 4])
    stream.advance()
    branches = [[7], [7, 8], [7, 9], [7, 8, 10], [7, 9, 11], [7, 9, 11, 12]]
    check([[*text, *branch] for branch in branches])
    stream.keep([0, 2, 4])
    stream.push([5])
    stream.advance()
    check([[*text, 7, 9, 11, 5]])


def states_of(target: Target, *taps: int) -> tuple[Tensor, list[LayerRun]]:
    stream = tapped(target, *taps)
    stream.push(prompt_of(13))
    stream.advance()
    return stream.states, stream.runs


@torch.inference_mode()
def test_a_pass_in_stages_is_one_pass_with_the_same_states() -> None:
    target = pair("llama").target
    plain, runs = states_of(target)
    staged, staged_runs = states_of(target, 1, 3)
    assert torch.equal(plain, staged) and runs == staged_runs == [LayerRun(0, LAYERS, 13)]


@torch.inference_mode()
def test_a_stream_without_taps_keeps_no_features() -> None:
    stream = tapped(pair("llama").target)
    stream.push([3, 4])
    stream.advance()
    assert stream.features == ()


@torch.inference_mode()
def test_rows_that_would_miss_a_tap_are_refused() -> None:
    for first in (1, LAYERS - 1):
        stream = tapped(pair("llama").target, 2)
        stream.push([3, 4])
        with pytest.raises(ValueError):
            stream.advance(first)
