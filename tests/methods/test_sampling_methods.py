"""Sampled answers of exact methods have exactly the target's distribution.

The joint distribution of three tokens is enumerated by full recomputation and transformers' own logits warpers, and
compared with drawn answers by a G-test. Decoding starts behind a fixed token, so that the first step already drafts,
verifies and ends in a bonus token.

Power: a total variation of 0.05 is a Kullback-Leibler divergence of at least 2 * 0.05^2 = 0.005 (Pinsker), which adds
2 * DRAWS * 0.005 = 40 to a G statistic of 28 degrees of freedom or fewer: flagged at the level used here in three of
four cases at the very least, and mistakes that happen are far larger. The last tests show both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from math import log

import numpy as np
import pytest
import torch
from mutants import FlatterEarlyExit, FlatterTwoModel, UnrepairedLookup, UnrepairedTwoModel, UnwarpedBonusTwoModel
from oracles import in_float64, noisy_copy
from runs import Pair, pair_of, prepared
from scipy.stats import chi2
from tiny import tiny_model
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from benchctl.decoding.counting import Step, count_step
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import Context, Method, UsesDraftModel
from benchctl.decoding.sampling import Sampling

VOCABULARY = 8
TOKENS = 3
DRAWS = 4000
SIGNIFICANCE = 2e-3
PROMPT = (2, 6, 1, 6, 2, 6)  # ends in a pair seen before, so that prompt lookup has something to copy
WARM = Sampling(temperature=1.3, top_k=4, top_p=0.85, seed=1)
WARPERS = (TemperatureLogitsWarper(WARM.temperature), TopKLogitsWarper(WARM.top_k), TopPLogitsWarper(WARM.top_p))

Answer = tuple[int, ...]
Joint = dict[Answer, float]


@cache
def models() -> Pair:
    """Two layers over few tokens: every continuation can be enumerated."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    model = in_float64(tiny_model("llama", seed=19, layers=2, dtype=torch.float64, **sizes, **heads))
    draft_model = noisy_copy(model, 0.2)
    draft_model.model.layers = draft_model.model.layers[:1]
    draft_model.config.num_hidden_layers = 1
    return pair_of(model, draft_model)


@cache
def _warped(text: Answer) -> Tensor:
    scores = models().naive.logits(models().naive.last_states(text)[-1])[None]
    for warper in WARPERS:
        scores = warper(torch.tensor([text]), scores)
    return scores[0].softmax(-1)


@cache
def _joint() -> Joint:
    """Probability of every answer of TOKENS tokens, by the chain rule."""
    joint: Joint = {}
    for answer in product(range(VOCABULARY), repeat=TOKENS):
        chance = 1.0
        for index, token in enumerate(answer):
            chance *= float(_warped((*PROMPT, *answer[:index]))[token]) if chance > 0.0 else 0.0
        joint[answer] = chance
    return joint


@torch.inference_mode()
def _steps(method: Method, draws: int) -> Iterator[list[Step]]:
    """The steps of answers drawn one after another from the same text, to which the stream returns in between."""
    if isinstance(method, UsesDraftModel):
        method.use_draft_model(models().draft)
    method.prepare(models().target)
    *text, root = PROMPT
    stream = Stream(models().target, 32)
    context = Context(models().target, stream, text, len(text), 1 + TOKENS, WARM, WARM.generator())
    method.start(context)
    for _ in range(draws):
        context.tokens = [*text, root]
        steps: list[Step] = []
        while context.remaining_tokens > 0:
            stream.runs.clear()
            steps.append(count_step(context, method.step(context), stream.runs))
            context.tokens += steps[-1].tokens
        yield steps
        stream.truncate(len(text))


def _counts(runs: Iterable[list[Step]]) -> Counter[Answer]:
    return Counter(tuple(token for step in steps for token in step.tokens) for steps in runs)


@cache
def _runs(label: str) -> list[list[Step]]:
    return list(_steps(prepared(label, models().target, models().draft), DRAWS))


def _p_value(counts: Counter[Answer], joint: Joint) -> float:
    """Of a G-test; cells that expect fewer than five draws count as one, and an impossible answer settles it."""
    if any(joint[answer] == 0.0 for answer in counts):
        return 0.0
    draws = counts.total()
    cells = [(counts[answer], chance * draws) for answer, chance in joint.items() if chance * draws >= 5]
    rare = (draws - sum(seen for seen, _ in cells), draws - sum(wanted for _, wanted in cells))
    cells += [rare] if rare[1] > 1e-6 else []
    statistic = 2.0 * sum(seen * log(seen / wanted) for seen, wanted in cells if seen)
    return float(chi2.sf(statistic, len(cells) - 1))


LABELS = (
    "two_model[draft_tokens=2]",
    "prompt_lookup[draft_tokens=2]",
    "early_exit[mode=draft,exits=1,threshold=0,draft_tokens=2]",
    "medusa[heads=2,tree=2x2]",
)


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_joint_distribution_of_three_tokens_is_the_target_s(label: str) -> None:
    assert _p_value(_counts(_runs(label)), _joint()) > SIGNIFICANCE


@pytest.mark.parametrize("label", LABELS)
def test_draws_meet_rejection_partial_and_full_acceptance(label: str) -> None:
    firsts = Counter((steps[0].drafted, steps[0].accepted) for steps in _runs(label))
    assert set(firsts) == {(2, 0), (2, 1), (2, 2)}
    assert min(firsts.values()) > DRAWS / 20


def _tilted(joint: Joint) -> Joint:
    """Some answers a tenth likelier, the others a tenth less: the hardest deviation of total variation 0.05 to see."""
    tilted: Joint = {}
    moved = 0.0
    for answer, chance in sorted(joint.items(), key=lambda item: -item[1]):
        step = -0.1 if moved > 0 else 0.1
        tilted[answer] = chance * (1 + step)
        moved += chance * step
    whole = sum(tilted.values())
    return {answer: chance / whole for answer, chance in tilted.items()}


def _share_flagged(truth: Joint, experiments: int = 300) -> float:
    """How often DRAWS answers of the distribution ``truth`` are told from the target's."""
    answers = [answer for answer, chance in truth.items() if chance > 0]
    chances = np.array([truth[answer] for answer in answers])
    drawn = np.random.default_rng(0).multinomial(DRAWS, chances / chances.sum(), size=experiments)
    tests = [Counter(dict(zip(answers, counts.tolist(), strict=True))) for counts in drawn]
    return sum(_p_value(counts, _joint()) < SIGNIFICANCE for counts in tests) / experiments


def test_total_variation_of_five_hundredths_is_flagged() -> None:
    tilted = _tilted(_joint())
    variation = sum(abs(tilted[answer] - chance) for answer, chance in _joint().items()) / 2
    assert variation == pytest.approx(0.05, abs=0.001)
    assert _share_flagged(tilted) > 0.75
    assert _share_flagged(_joint()) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [
        UnrepairedTwoModel(draft_tokens=2),
        UnrepairedLookup(draft_tokens=2),
        UnwarpedBonusTwoModel(draft_tokens=2),
        FlatterTwoModel(draft_tokens=2),
        FlatterEarlyExit(mode="draft", exits="1", threshold=0.0, draft_tokens=2),
    ],
    ids=lambda mutant: type(mutant).__name__,
)
def test_mistaken_rule_is_flagged(mutant: Method) -> None:
    assert _p_value(_counts(_steps(mutant, 800)), _joint()) < SIGNIFICANCE
