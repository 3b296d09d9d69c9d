"""Sampled output has the target's distribution: by exact enumeration of all draws, and by a G-test on real ones.

Wrong rules, of the kinds published codes contain, are put through the same tests and must be caught.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from plain_trees import Expanding, Model, Text, table, texts_of
from scipy import stats
from torch import Tensor

from benchctl.conformance.distributions import Chance, distribution, total_variation
from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.drafting.grow import Picks, grow_best_first, grow_shape
from benchctl.decoding.drafting.trees import wide_tree
from benchctl.decoding.sampling import Sampling, draw
from benchctl.decoding.verify import Rows, Verdict, verify_block, verify_rejection

VOCABULARY = 4
DEPTH = 2
TOKENS = DEPTH + 1  # the longest path and the bonus token
NO_GENERATOR = torch.Generator()
Rule = Callable[[Draft, Rows, torch.Generator], Verdict]

model = partial(table, vocabulary=VOCABULARY)
target = model(1, Sampling(1.0))
drafter = model(2, Sampling(1.0))
cut_target = model(1, Sampling(0.8, top_k=3))  # a token the target cannot say, and the drafter can
cut_drafter = model(2, Sampling(1.2, top_p=0.7))  # and the reverse


def joint(probs: Model, tokens: int = TOKENS, vocabulary: int = VOCABULARY) -> dict[Text, float]:
    """Probability of every text of ``tokens`` tokens."""
    return {text: _chance_of(probs, (), text) for text in itertools.product(range(vocabulary), repeat=tokens)}


def _chance_of(probs: Model, text: Text, more: Text) -> float:
    chance = 1.0
    for place, token in enumerate(more):
        chance *= float(probs((*text, *more[:place]))[token])
    return chance


def continued(found: dict[Text, float], probs: Model) -> dict[Text, float]:
    """Committed tokens, followed by plain sampling up to TOKENS tokens."""
    totals: Counter[Text] = Counter()
    for text, chance in found.items():
        for more in itertools.product(range(VOCABULARY), repeat=TOKENS - len(text)):
            totals[text + more] += chance * _chance_of(probs, text, more)  # type: ignore[assignment]
    return dict(totals)


def commit(draft: Draft, target_probs: Model, rule: Rule = verify_rejection) -> Text:
    """One verification as a step does it: the tokens it commits."""
    rows = torch.stack([target_probs(text) for text in [(), *texts_of(draft)]])
    verdict = rule(draft, rows, NO_GENERATOR)
    return (*(draft.tokens[row] for row in verdict.path), verdict.next_token)


def drawn_tree(shape: Text, draft_probs: Model, replacement: bool) -> Draft:
    """A tree whose rows are drawn from the drafter; ``shape`` holds the parents."""
    tokens: list[int] = []
    rows: list[Tensor] = []
    for row, parent in enumerate(shape):
        text = [(), *texts_of(Draft(tuple(tokens), shape[:row]))][parent + 1]
        probs = draft_probs(text)
        left = probs.clone()
        if not replacement:
            left[[tokens[other] for other in range(row) if shape[other] == parent]] = 0.0
        tokens.append(draw(left, NO_GENERATOR))
        rows.append(probs)
    return Draft(tuple(tokens), shape, probs=rows, replacement=replacement)


CHAIN = (ROOT, 0)
TREES = {
    "chain": CHAIN,
    "one token": (ROOT,),
    "two siblings": (ROOT, ROOT),
    "three siblings": (ROOT, ROOT, ROOT),
    "two levels": (ROOT, ROOT, 0, 0),
    "unequal depth": (ROOT, ROOT, 1, 1),
}


@pytest.mark.parametrize("replacement", [True, False], ids=["drawn independently", "drawn without replacement"])
@pytest.mark.parametrize("shape", TREES.values(), ids=TREES.keys())
def test_drafts_drawn_from_a_model_leave_the_target_s_distribution(shape: Text, replacement: bool) -> None:
    def step(chance: Chance) -> Text:
        return commit(drawn_tree(shape, drafter, replacement), target)

    assert total_variation(continued(distribution(step), target), joint(target)) < 1e-13


@pytest.mark.parametrize("shape", [CHAIN, (ROOT, ROOT)], ids=["chain", "two siblings"])
def test_supports_that_differ_leave_the_target_s_distribution(shape: Text) -> None:
    def step(chance: Chance) -> Text:
        return commit(drawn_tree(shape, cut_drafter, True), cut_target)

    assert total_variation(continued(distribution(step), cut_target), joint(cut_target)) < 1e-13


DETERMINISTIC = {
    "chain": Draft.chain([2, 1]),
    "siblings": Draft((0, 3, 1), (ROOT, ROOT, ROOT)),
    "all tokens": Draft((0, 1, 2, 3), (ROOT,) * 4),
    "duplicate siblings": Draft((2, 2, 1), (ROOT, ROOT, ROOT)),
    "the same token on two branches": Draft((2, 0, 1, 1, 3), (ROOT, ROOT, 0, 1, 1)),
    "scratch rows among them": Draft((2, 0, 1, 3), (ROOT, ROOT, ROOT, 0), scratch=(False, True, False, True)),
    "nothing": Draft(),
}


@pytest.mark.parametrize("draft", DETERMINISTIC.values(), ids=DETERMINISTIC.keys())
def test_deterministic_drafts_leave_the_target_s_distribution(draft: Draft) -> None:
    for probs in (target, cut_target):
        found = distribution(lambda chance: commit(draft, probs))  # noqa: B023 called at once
        assert total_variation(continued(found, probs), joint(probs)) < 1e-13


def test_drafts_chosen_by_looking_at_the_text_are_still_point_masses() -> None:
    """A drafter may be random in any way its ``probs`` do not mention: here it flips a coin between two chains."""

    def step(chance: Chance) -> Text:
        return commit(Draft.chain([[2, 1], [0, 0]][chance.choose((0.3, 0.7))]), target)

    assert total_variation(continued(distribution(step), target), joint(target)) < 1e-13


Grow = Callable[[Expanding, Picks], Draft]
GROWN: dict[str, Grow] = {
    "widths": lambda expand, picks: grow_shape(expand, wide_tree((2, 1)), picks),
    "a shape": lambda expand, picks: grow_shape(expand, ((0,), (1,), (2,), (1, 0), (1, 1)), picks),
}
DISTINCT: dict[str, Grow] = {
    "best first": lambda expand, picks: grow_best_first(expand, 2, 4, picks),
    "best first, one level": lambda expand, picks: grow_best_first(expand, 1, 9, picks),
}
GROWERS = [
    *((grow, replacement) for grow in GROWN.values() for replacement in (False, True)),
    *((grow, False) for grow in DISTINCT.values()),
]


@pytest.mark.parametrize(("probs", "draft_probs"), [(target, drafter), (cut_target, cut_drafter)], ids=["whole", "cut"])
@pytest.mark.parametrize(("grow", "replacement"), GROWERS)
def test_grown_trees_leave_the_target_s_distribution(
    grow: Grow, replacement: bool, probs: Model, draft_probs: Model
) -> None:
    picks = Picks(Sampling(1.0), NO_GENERATOR, replacement)
    found = distribution(lambda chance: commit(grow(Expanding(draft_probs), picks), probs))
    assert total_variation(continued(found, probs), joint(probs)) < 1e-13


def unlikely_left_out(chance: Chance) -> Text:
    """A tree of drawn tokens that is cut by looking at them, as reranking does."""
    picks = Picks(Sampling(1.0), NO_GENERATOR)
    draft = grow_shape(Expanding(drafter), wide_tree((2,)), picks)
    assert draft.probs is not None
    kept = [row for row, token in enumerate(draft.tokens) if draft.probs[row][token] > 0.2]
    probs = [draft.probs[row] for row in kept]
    return commit(Draft(tuple(draft.tokens[row] for row in kept), (ROOT,) * len(kept), (), probs, False), target)


def test_leaving_out_drawn_tokens_by_their_probability_is_caught() -> None:
    assert total_variation(continued(distribution(unlikely_left_out), target), joint(target)) > 0.005


def drawn_chain(draft_probs: Model, least: float = 0.0, most: int = DEPTH) -> Draft:
    """It ends after a token with a lower draft probability than ``least``."""
    tokens, rows = list[int](), list[Tensor]()
    while len(tokens) < most:
        rows.append(draft_probs(tuple(tokens)))
        tokens.append(draw(rows[-1], NO_GENERATOR))
        if float(rows[-1][tokens[-1]]) < least:
            break
    return Draft.chain(tokens, rows)


CHAINS: dict[str, Callable[[], Draft]] = {
    "chain": lambda: drawn_chain(drafter),
    "one token": lambda: drawn_chain(drafter, most=1),
    "nothing": Draft,
    "ends after an unlikely token": lambda: drawn_chain(drafter, 0.3),
    "without the tokens that the target says": lambda: drawn_chain(cut_drafter),
    "deterministic": lambda: Draft.chain([2, 1]),
    "drawn, called deterministic": lambda: Draft.chain(drawn_chain(drafter).tokens),
}


@pytest.mark.parametrize("probs", [target, cut_target], ids=["whole", "cut"])
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
def test_block_verification_leaves_the_target_s_distribution(chain: Callable[[], Draft], probs: Model) -> None:
    found = distribution(lambda chance: commit(chain(), probs, verify_block))
    assert total_variation(continued(found, probs), joint(probs)) < 1e-13


def accepted(rule: Rule, draft_probs: Model) -> float:
    """Tokens of a chain that are kept on average."""
    found = distribution(lambda chance: commit(drawn_chain(draft_probs), target, rule))
    return sum(chance * (len(text) - 1) for text, chance in found.items())


@pytest.mark.parametrize("seed", range(2, 8))
def test_block_verification_keeps_at_least_as_many_tokens(seed: int) -> None:
    """Theorem 2 of the paper; two or more tokens are kept as one in no case here, so it is strictly more."""
    other = model(seed, Sampling(1.0))
    assert accepted(verify_block, other) > accepted(verify_rejection, other) + 1e-6


def test_a_chain_of_the_target_itself_is_kept_whole() -> None:
    assert accepted(verify_block, target) == pytest.approx(DEPTH)


def test_a_block_is_a_chain() -> None:
    with pytest.raises(ValueError, match="chains"):
        verify_block(drawn_tree_of((ROOT, ROOT)), torch.zeros(3, VOCABULARY), NO_GENERATOR)


def drawn_tree_of(shape: Text) -> Draft:
    return Draft(tuple(0 for _ in shape), shape)


def token_residual_behind_a_block(draft: Draft, rows: Rows, generator: torch.Generator) -> Verdict:
    """A mistake that an engine shipped: the bonus token of a block from max(0, P - Q), not from max(0, p_i P - Q)."""
    verdict = verify_block(draft, rows, generator)
    kept = len(verdict.path)
    if kept == len(draft) or draft.probs is None:
        return verdict
    return Verdict(verdict.path, draw((rows[kept] - draft.probs[kept]).clamp_min(0.0), generator))


def test_the_bonus_token_of_another_residual_is_caught() -> None:
    other = model(5, Sampling(1.0))
    found = distribution(lambda chance: commit(drawn_chain(other), target, token_residual_behind_a_block))
    assert total_variation(continued(found, target), joint(target)) > 0.005


def siblings_called_independent(chance: Chance) -> Text:
    draft = drawn_tree((ROOT, ROOT, ROOT), drafter, False)
    return commit(Draft(draft.tokens, draft.parents, probs=draft.probs, replacement=True), target)


def draft_called_deterministic(chance: Chance) -> Text:
    """Drawn tokens judged by the rule for fixed ones: accepted with p(x), struck out when rejected."""
    return commit(Draft.chain(drawn_tree(CHAIN, drafter, True).tokens), target)


def test_a_wrong_rule_is_caught() -> None:
    """Those that published codes contain are caught by doctor's own check; see doctor_mutants.py."""
    found = distribution(siblings_called_independent)
    assert total_variation(continued(found, target), joint(target)) > 0.005


def test_a_drawn_token_may_be_called_deterministic() -> None:
    """It costs acceptance, not correctness: given the token, the point-mass rule is exact whatever drew it."""
    found = distribution(draft_called_deterministic)
    assert total_variation(continued(found, target), joint(target)) < 1e-13


# From here on real draws: what enumeration replaces, the uniform numbers and torch's multinomial, is in play too.
DRAWS = 100_000
WIDE = 6
PAIRS = list(itertools.product(range(WIDE), repeat=2))


def g_test(counts: Counter[Text], expected: dict[Text, float]) -> float:
    """p-value of the G-test that ``counts`` were drawn from ``expected``."""
    observed = np.array([counts[pair] for pair in PAIRS], dtype=float)
    chances = np.array([expected[pair] for pair in PAIRS])
    return float(stats.power_divergence(observed, observed.sum() * chances, lambda_="log-likelihood").pvalue)


def first_two(draft: Draft, rows: Tensor, target_probs: Model, generator: torch.Generator) -> Text:
    verdict = verify_rejection(draft, rows, generator)
    tokens = (*(draft.tokens[row] for row in verdict.path), verdict.next_token)
    return tokens if len(tokens) == 2 else (*tokens, draw(target_probs(tokens), generator))


@pytest.mark.slow
def test_a_hundred_thousand_real_draws_pass_the_g_test_on_the_first_two_tokens() -> None:
    wide_target, wide_drafter = (model(seed, Sampling(1.0), vocabulary=WIDE) for seed in (3, 4))
    generator = torch.Generator().manual_seed(11)
    proposals = torch.multinomial(wide_drafter(()), DRAWS, replacement=True, generator=generator).tolist()
    probs = (wide_drafter(()),)
    drafts = [Draft((token,), (ROOT,), probs=probs) for token in range(WIDE)]
    rows = [torch.stack((wide_target(()), wide_target((token,)))) for token in range(WIDE)]
    counts = Counter(first_two(drafts[token], rows[token], wide_target, generator) for token in proposals)
    assert g_test(counts, joint(wide_target, 2, WIDE)) > 0.001
