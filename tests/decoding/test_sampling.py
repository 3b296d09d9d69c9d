"""Warped distributions against transformers' own processors, and generators that depend on nothing else."""

from __future__ import annotations

import itertools
from typing import cast

import pytest
import torch
from refusals import refused
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from benchctl.decoding.sampling import LEAST_TEMPERATURE, Sampling, draw, likeliest

SETTINGS = list(itertools.product((0.3, 1.0, 1.7), (0, 1, 5, 40), (0.05, 0.5, 0.9, 1.0)))


def logits(rows: int = 16, vocabulary: int = 40, seed: int = 0) -> Tensor:
    return 2.0 * torch.randn(rows, vocabulary, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def theirs(scores: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """What generate() would draw from, in its order: temperature, top-k, top-p."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    no_ids = cast(torch.LongTensor, torch.zeros(scores.shape[0], 1, dtype=torch.long))
    return warpers(no_ids, cast(torch.FloatTensor, scores)).softmax(-1)


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_probabilities_equal_those_of_transformers(temperature: float, top_k: int, top_p: float) -> None:
    ours = Sampling(temperature, top_p, top_k).probs(logits())
    torch.testing.assert_close(ours, theirs(logits(), temperature, top_k, top_p), rtol=0.0, atol=1e-15)


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_equal_logits_are_treated_as_by_transformers(temperature: float, top_k: int, top_p: float) -> None:
    """Rounded to halves, most rows have ties where top-k or top-p cuts."""
    tied = (2.0 * logits()).round() / 2.0
    ours = Sampling(temperature, top_p, top_k).probs(tied)
    torch.testing.assert_close(ours, theirs(tied, temperature, top_k, top_p), rtol=0.0, atol=1e-15)


def test_rows_asked_for_one_by_one_are_the_rows_of_all() -> None:
    for sampling in (Sampling(), Sampling(0.8, 0.9, 10)):
        one_by_one = torch.stack([sampling.rows(logits(5))[row] for row in (4, 0, 2)])
        torch.testing.assert_close(one_by_one, sampling.probs(logits(5))[[4, 0, 2]], rtol=0.0, atol=1e-15)


def test_probabilities_are_float64_whatever_the_logits_are() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        probs = Sampling(1.0).probs(logits().to(dtype))
        assert probs.dtype == torch.float64
        torch.testing.assert_close(probs.sum(-1), torch.ones(16, dtype=torch.float64), rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_of_equal_logits_the_first_is_the_likeliest(dtype: torch.dtype) -> None:
    rows = torch.tensor([[0.0, 2.0, 2.0, -1.0], [-3.0, -3.0, -3.0, -3.0], [1.0, torch.nan, 5.0, torch.nan]])
    assert likeliest(rows.to(dtype)) == [1, 0, 1]
    assert likeliest(logits().to(dtype)) == logits().to(dtype).argmax(-1).tolist()


def test_warping_leaves_the_logits_alone() -> None:
    scores = logits()
    Sampling(0.5, 0.5, 5).probs(scores)
    assert torch.equal(scores, logits())


def test_temperature_zero_is_greedy() -> None:
    scores = logits(3)
    sampling = Sampling()
    assert sampling.greedy
    assert not Sampling(0.01).greedy
    assert sampling.probs(scores).argmax(-1).tolist() == scores.argmax(-1).tolist()
    assert sampling.probs(scores).sort(-1).values[:, -2:].tolist() == [[0.0, 1.0]] * 3
    state = sampling.generator().get_state()
    generator = sampling.generator()
    assert sampling.draw(scores[:1], generator) == int(scores[0].argmax())
    assert torch.equal(generator.get_state(), state)


def test_draws_follow_the_warped_probabilities() -> None:
    sampling = Sampling(1.0, top_k=2)
    row = torch.tensor([[0.1, 0.5, 0.15, 0.25]], dtype=torch.float64).log()
    generator = sampling.generator()
    drawn = [sampling.draw(row, generator) for _ in range(3000)]
    assert set(drawn) == {1, 3}
    assert drawn.count(1) / 3000 == pytest.approx(2 / 3, abs=0.04)


def test_the_same_seeds_draw_the_same_tokens_whatever_happened_before() -> None:
    probs = torch.full((50,), 0.02, dtype=torch.float64)

    def tokens(seed: int, prompt_seed: int) -> list[int]:
        generator = Sampling(1.0, seed=seed).generator(prompt_seed)
        return [draw(probs, generator) for _ in range(12)]

    first = tokens(3, 5)
    torch.manual_seed(99)
    draw(probs, Sampling(1.0, seed=3).generator(5))
    assert tokens(3, 5) == first
    assert len({tuple(tokens(seed, prompt)) for seed in range(6) for prompt in range(6)}) == 36


def test_drawing_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    draw(torch.full((5,), 0.2, dtype=torch.float64), Sampling(1.0).generator())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 0.0099, -1.0, float("nan")])
def test_a_temperature_too_low_to_divide_by_is_refused(temperature: float) -> None:
    """Logits divided by 1e-320 are infinite, and probabilities nan: every sampled answer was an error of torch."""
    with refused("temperature_too_low", f"{temperature:g}", "0.01"):
        Sampling(temperature)
    assert Sampling(LEAST_TEMPERATURE, 1.0).probs(1e6 * logits()).sum(-1).allclose(torch.ones(16, dtype=torch.float64))
