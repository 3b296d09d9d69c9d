"""Exact methods say what the target says: token for token, whatever the family, the prompt, the limit or the stop."""

from __future__ import annotations

import pytest
import torch
from oracles import Naive, autoregressive, in_float64, model_drafter, noisy_copy, replay
from runs import (
    CONTEXT_TOKENS,
    EXACT,
    LAYERS,
    LOSSY,
    NEW_TOKENS,
    OF_EXPERTS,
    VOCABULARY,
    Pair,
    answer,
    pair,
    prompt_of,
    rounds_of,
    run,
    with_head_of,
)
from tiny import tiny_model

from benchctl.decoding.model.target import Target
from benchctl.registry import build, builtin_names, parse_label

OTHER_MODELS = (("llama", 1), ("qwen3", 2), ("mixtral", 3), ("mistral_window", 4), ("qwen2_window", 5))
MODELS = (("llama", 0), *(pytest.param(*model, marks=pytest.mark.slow) for model in OTHER_MODELS))


def test_each_list_holds_what_its_labels_claim() -> None:
    """Labels that are lossy by name are exact where no token exits, or where all layers run."""
    assert {parse_label(label).name for label in (*EXACT, *LOSSY, *OF_EXPERTS)} == set(builtin_names())
    assert {build(label).exactness for label in LOSSY} == {"lossy"}
    full_depth = [label for label in EXACT if build(label).exactness == "lossy"]
    assert all("threshold=2" in label or f"min_layers={LAYERS}" in label for label in full_depth)


@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("label", EXACT)
def test_exact_method_gives_the_target_s_own_tokens(label: str, family: str, seed: int) -> None:
    models = pair(family, seed)
    for prompt_tokens in (1, 2, 13, CONTEXT_TOKENS - 7, CONTEXT_TOKENS - 1):
        got = run(label, models.target, prompt_of(prompt_tokens, seed), NEW_TOKENS, draft=models.draft)
        assert list(got.token_ids) == answer(family, seed, prompt_tokens)
        assert got.stop_reason == ("length" if prompt_tokens + NEW_TOKENS <= CONTEXT_TOKENS else "context")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["olmoe", "mixtral"])
@pytest.mark.parametrize("label", OF_EXPERTS)
def test_a_method_for_mixtures_of_experts_gives_their_own_tokens(label: str, family: str) -> None:
    models = pair(family, 3)
    assert build(label).unsupported(pair("llama").target.info) is not None
    for prompt_tokens in (1, 2, 13, CONTEXT_TOKENS - 7):
        got = run(label, models.target, prompt_of(prompt_tokens, 3), NEW_TOKENS)
        assert list(got.token_ids) == answer(family, 3, prompt_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("label", EXACT)
def test_exact_method_stops_at_any_limit(label: str) -> None:
    """One, two, and a token less, as many, one and two more than are drafted (1, 2, 3, 4, 5, 6 and 10 above)."""
    models = pair("llama")
    for limit in (*range(1, 13), NEW_TOKENS - 1):
        got = run(label, models.target, prompt_of(13), limit, draft=models.draft)
        assert list(got.token_ids) == answer("llama", 0, 13)[:limit]
        assert 1 + sum(len(step.tokens) for step in got.steps) == len(got.token_ids) == len(got.layers)
        assert all(len(step.tokens) - step.accepted in (0, 1) for step in got.steps)


def _first_places(prompt_tokens: int) -> dict[int, int]:
    """Each token of the answer and where it comes first: as a stop token it would end the answer there."""
    places: dict[int, int] = {}
    for index, token in enumerate(answer("llama", 0, prompt_tokens)):
        places.setdefault(token, index)
    return places


@pytest.mark.slow
@pytest.mark.parametrize("label", EXACT)
def test_answer_ends_with_the_first_stop_token_wherever_it_falls(label: str) -> None:
    models = pair("llama")
    for stop, index in list(_first_places(13).items())[::3]:
        got = run(label, models.with_stops(stop), prompt_of(13), NEW_TOKENS, draft=models.draft)
        assert list(got.token_ids) == answer("llama", 0, 13)[: index + 1]
        assert got.stop_reason == "stop"
        assert 1 + sum(len(step.tokens) for step in got.steps) == len(got.token_ids) == len(got.layers)


def _stop_in_each_role(models: Pair, draft_tokens: int) -> dict[str, int]:
    """Stop tokens that would fall inside an accepted block, on a bonus token, and on the first token."""
    text = answer("llama", 0, 13)
    rounds = replay(prompt_of(13), text, NEW_TOKENS, model_drafter(models.naive_draft, draft_tokens))
    places = _first_places(13)
    roles = {"first": text[0]}
    at = 1
    for _, accepted in rounds:
        for offset in range(accepted + 1):
            role = "bonus" if offset == accepted else "last accepted" if offset == accepted - 1 else "inside"
            token = text[at + offset]
            if places[token] == at + offset:
                roles.setdefault(role, token)
        at += accepted + 1
    return roles


def test_stop_token_is_met_in_every_role() -> None:
    """Inside an accepted block, at its end, as bonus, as the very first token; accepted is counted up to the stop."""
    models = pair("llama")
    roles = _stop_in_each_role(models, draft_tokens=4)
    assert set(roles) == {"first", "inside", "last accepted", "bonus"}
    for stop in roles.values():
        got = run("two_model[draft_tokens=4]", models.with_stops(stop), prompt_of(13), NEW_TOKENS, draft=models.draft)
        expected = autoregressive(models.naive, prompt_of(13), NEW_TOKENS, frozenset({stop}))
        drafter = model_drafter(models.naive_draft, 4)
        assert list(got.token_ids) == expected
        assert rounds_of(got) == replay(prompt_of(13), expected, NEW_TOKENS, drafter)


def test_drafted_stop_token_that_is_rejected_ends_nothing() -> None:
    models = pair("llama")
    text = answer("llama", 0, 13)
    draft = model_drafter(models.naive_draft, 4)
    guesses = {token for at in range(1, NEW_TOKENS) for token in draft([*prompt_of(13), *text[:at]], 4)}
    never_said = guesses - set(text)
    assert never_said, "no rejected guess to make a stop token of"
    for stop in never_said:
        got = run("two_model[draft_tokens=4]", models.with_stops(stop), prompt_of(13), NEW_TOKENS, draft=models.draft)
        assert list(got.token_ids) == text
        assert got.stop_reason == "length"


@pytest.mark.parametrize("label", EXACT)
def test_first_of_several_stop_ids_ends_the_answer(label: str) -> None:
    models = pair("llama")
    places = _first_places(13)
    stops = [token for token in places if places[token] >= 5]
    unused = next(token for token in range(VOCABULARY) if token not in places)
    got = run(label, models.with_stops(*stops, unused), prompt_of(13), NEW_TOKENS, draft=models.draft)
    assert list(got.token_ids) == answer("llama", 0, 13)[: min(places[stop] for stop in stops) + 1]


def test_threshold_nought_leaves_at_the_first_exit_and_above_one_never() -> None:
    models = pair("llama")
    for policy in ("propagate", "deferred_exact"):
        first = run(f"early_exit[threshold=0,exits=2+3,kv_policy={policy}]", models.target, prompt_of(13), 10)
        never = run(f"early_exit[threshold=2,exits=2+3,kv_policy={policy}]", models.target, prompt_of(13), 10)
        assert first.layers == (LAYERS,) + (2,) * 9
        assert never.layers == (LAYERS,) * 10


@pytest.mark.slow
@pytest.mark.parametrize("wider", ["draft", "target"])
def test_heads_padded_to_different_widths_draft_what_they_share(wider: str) -> None:
    """One tokenizer, padded to 48 in one model and to 56 in the other. The wide draft's own favourites are padding."""
    wide = in_float64(tiny_model("llama", layers=LAYERS, dtype=torch.float64, vocab_size=56))
    wide_draft = noisy_copy(wide)
    wide_draft.lm_head.weight[48:] *= 2.0
    narrow, narrow_draft = with_head_of(wide, 48), with_head_of(wide_draft, 48)
    drafts = model_drafter(Naive(narrow_draft), 4, 0.2)
    prompt = prompt_of(13)
    expected = autoregressive(Naive(narrow), prompt, NEW_TOKENS)
    if wider == "target":  # padding is never said by a trained model
        wide.lm_head.bias = torch.nn.Parameter(torch.tensor([0.0] * 48 + [-1e4] * 8, dtype=torch.float64))
        target, draft = Target(wide, None), Target(narrow_draft, None)
    else:
        target, draft = Target(narrow, None), Target(wide_draft, None)
        padding = [row for row in range(13, 52) if Naive(wide_draft).argmax([*prompt, *expected][:row]) >= 48]
        assert len(padding) > 5
    got = run("two_model[draft_tokens=4,confidence=0.2]", target, prompt, NEW_TOKENS, draft=draft)
    assert list(got.token_ids) == expected
    assert rounds_of(got) == replay(prompt, expected, NEW_TOKENS, drafts)
    assert any(step.accepted > 1 for step in got.steps)
