"""Greedy exact methods take the very steps that their drafter and the target's text dictate.

Verification repairs the text whatever the draft was, so a wrong mask, a wrong position or a stale draft cache shows
only in the steps. The oracle drafts by full recomputation and accepts by comparing with the known text.
"""

from __future__ import annotations

import pytest
from mutants import ForgetfulTwoModel, LateTwoModel
from oracles import Drafter, ExitRule, autoregressive, exit_drafter, model_drafter, replay
from runs import LAYERS, MODELS, NEW_TOKENS, answer, check_chain, generate, pair, prompt_of, rounds_of, run

from benchctl.methods.prompt_lookup import PromptLookup
from benchctl.methods.two_model import TwoModel

TWO_MODEL = ((1, 0.0), (4, 0.0), (5, 0.25), (3, 0.4), (9, 0.0))
LOOKUP = (
    (10, 2, "first", True, 1),
    (3, 3, "last", True, 2),
    (2, 2, "first", False, 1),
    (4, 1, "last", False, 1),
    (1, 1, "first", True, 1),
)
EVERY = tuple(range(1, LAYERS))
EXITS = (
    ("exits=1", ExitRule((1,), threshold=0.0), 4),
    ("exits=3", ExitRule((3,), threshold=0.0), 5),
    ("exits=3+1", ExitRule((1, 3), threshold=0.3), 4),
    ("confidence=softmax_max,min_exit=1", ExitRule(EVERY, "softmax_max", 0.5), 1),
    ("confidence=state_cosine,min_exit=2", ExitRule((2, 3), "state_cosine", 0.8), 5),
    ("exits=2", ExitRule((2,), threshold=2.0), 3),
)


def _assert_rounds(label: str, drafter: Drafter, family: str, seed: int) -> None:
    steps = check_chain(label, drafter, family, seed)
    assert [step.rows for step in steps] == [1 + step.drafted for step in steps]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize(("draft_tokens", "confidence"), TWO_MODEL)
def test_two_model_steps_equal_replay(draft_tokens: int, confidence: float, family: str, seed: int) -> None:
    label = f"two_model[draft_tokens={draft_tokens},confidence={confidence}]"
    _assert_rounds(label, model_drafter(pair(family, seed).naive_draft, draft_tokens, confidence), family, seed)


@pytest.mark.parametrize(
    ("stop", "confidence"), [("product", 0.1), ("product", 0.4), ("entropy", 0.4), ("entropy", 0.6)]
)
def test_two_model_steps_equal_replay_by_other_rules_to_stop(stop: str, confidence: float) -> None:
    """These confidences end some drafts early, and not all."""
    drafter = model_drafter(pair("llama").naive_draft, 5, confidence, stop=stop)
    _assert_rounds(f"two_model[draft_tokens=5,stop={stop},confidence={confidence}]", drafter, "llama", 0)
    lengths = {len(drafter(prompt_of(tokens), 9)) for tokens in range(1, 30)}
    assert len(lengths) > 1


@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize(("draft_tokens", "max_ngram", "match", "allow_short", "min_ngram"), LOOKUP)
def test_prompt_lookup_steps_equal_replay(
    draft_tokens: int, max_ngram: int, match: str, allow_short: bool, min_ngram: int, family: str, seed: int
) -> None:
    ngrams = f"max_ngram={max_ngram},min_ngram={min_ngram}"
    options = f"draft_tokens={draft_tokens},{ngrams},match={match},allow_short={str(allow_short).lower()}"
    method = PromptLookup(draft_tokens, max_ngram, match, allow_short, min_ngram)
    drafter = method.plain_drafter(pair(family, seed).target, None)
    _assert_rounds(f"prompt_lookup[{options}]", drafter, family, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize(("options", "rule", "draft_tokens"), EXITS)
def test_early_exit_steps_equal_replay(options: str, rule: ExitRule, draft_tokens: int, family: str, seed: int) -> None:
    label = f"early_exit[mode=draft,{options},threshold={rule.threshold},draft_tokens={draft_tokens}]"
    _assert_rounds(label, exit_drafter(pair(family, seed).naive, rule, draft_tokens), family, seed)


@pytest.mark.parametrize("prompt_tokens", [5, 20, 32, 33, 50])
def test_text_beyond_the_draft_model_s_context_goes_on_without_drafts(prompt_tokens: int) -> None:
    """A draft model of shorter context than the target's used to end in an error about tensor shapes."""
    models, short = pair("llama"), pair("llama", 0, 32)
    prompt = prompt_of(prompt_tokens)
    text = answer("llama", 0, prompt_tokens)
    got = run("two_model[draft_tokens=4,confidence=0]", models.target, prompt, NEW_TOKENS, draft=short.draft)
    assert list(got.token_ids) == text
    assert rounds_of(got) == replay(prompt, text, len(text), model_drafter(models.naive_draft, 4, 0.0, 32))


@pytest.mark.parametrize("mutant", [ForgetfulTwoModel, LateTwoModel])
def test_replay_exposes_a_faulty_draft_cache_that_the_text_hides(mutant: type[TwoModel]) -> None:
    models = pair("llama", 0, 512)
    method = mutant(draft_tokens=4)
    method.use_draft_model(models.draft)
    method.prepare(models.target)
    got = generate(method, models, prompt_of(13))
    text = autoregressive(models.naive, prompt_of(13), NEW_TOKENS)
    assert list(got.token_ids) == text
    assert rounds_of(got) != replay(prompt_of(13), text, NEW_TOKENS, model_drafter(models.naive_draft, 4))
