"""two_model[draft_exits=...]: drafts of a draft model that leaves early are those of a replay without a cache."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from oracles import Drafter, Naive, replay
from refusals import refused
from runs import CONTEXT_TOKENS, FIRST_FAST, LAYERS, Pair, answer, pair, pair_of, prompt_of, rounds_of, run

from benchctl.conformance import checks
from benchctl.conformance.findings import Skipped
from benchctl.conformance.method_under_test import MethodUnderTest
from benchctl.conformance.random_models import FEW_TOKENS, random_models
from benchctl.decoding.method import Context
from benchctl.decoding.sampling import Sampling
from benchctl.methods.two_model import TwoModel


def with_exits(models: Pair, *exits: int) -> Pair:
    """The pair, whose draft model says that it was trained with these exits."""
    draft_model = copy.deepcopy(models.draft_model)
    draft_model.config.draft_exits = list(exits)
    return pair_of(models.model, draft_model)


def drafter(
    naive: Naive, exits: tuple[int, ...], sure: float, most: int, confidence: float, left: list[int]
) -> Drafter:
    """Each token by the first exit that is sure; ``left`` gets the layers of each token."""

    def draft(text: list[int], budget: int) -> list[int]:
        proposal: list[int] = []
        while len(proposal) < min(most, budget):
            states = naive.last_states([*text, *proposal])
            probs = {layer: naive.logits(states[layer]).softmax(-1) for layer in (*exits, LAYERS)}
            layer = next((layer for layer in exits if float(probs[layer].max()) >= sure), LAYERS)
            left.append(layer)
            proposal.append(int(probs[layer].argmax()))
            if float(probs[layer].max()) < confidence:
                break
        return proposal

    return draft


@pytest.mark.parametrize(
    ("exits", "sure", "most", "confidence"),
    [((1,), 0.3, 6, 0.0), ((1, 3), 0.35, 5, 0.2), ((2,), 0.0, 3, 0.0), ((1, 2, 3), 1.0, 4, 0.3)],
)
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
def test_steps_and_depths_are_those_of_the_replay(
    family: str,
    seed: int,
    exits: tuple[int, ...],
    sure: float,
    most: int,
    confidence: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tokens, and the layers that each of them ran, which rows before it wait for."""
    models, climbed, ran = with_exits(pair(family, seed), *exits), list[int](), list[tuple[int, int]]()
    climb = TwoModel.climb

    def watched(method: TwoModel, context: Context, own: list[int], *how: object) -> torch.Tensor:
        logits: torch.Tensor = climb(method, context, own, *how)
        lengths = method._stream.cache.lengths
        climbed.append(sum(length == method._stream.length for length in lengths))
        return logits

    monkeypatch.setattr(TwoModel, "climb", watched)
    label = f"two_model[draft_exits={'+'.join(map(str, exits))},exit_confidence={sure},draft_tokens={most}"
    for tokens in (1, 13, CONTEXT_TOKENS - 20):
        prompt, text, left = prompt_of(tokens, seed), answer(family, seed, tokens), list[int]()
        climbed.clear()
        got = run(f"{label},confidence={confidence}]", models.target, prompt, len(text), draft=models.draft)
        assert list(got.token_ids) == text
        plain = drafter(models.naive_draft, exits, sure, most, confidence, left)
        assert rounds_of(got) == replay(prompt, text, len(text), plain)
        assert climbed == left
        ran.append((len(set(left)), sum(step.accepted for step in got.steps)))
    assert family != "llama" or sure in (0.0, 1.0) or max(kinds for kinds, _ in ran) > 1
    assert sum(accepted for _, accepted in ran)


def test_an_exit_that_is_never_sure_drafts_as_the_whole_model() -> None:
    models = with_exits(pair("llama"), 1, 2)
    for sampling in (Sampling(), Sampling(temperature=0.8, seed=3)):
        found = [
            run(f"two_model[{options}]", models.target, prompt_of(13), 40, draft=models.draft, sampling=sampling)
            for options in ("draft_exits=1+2,exit_confidence=1", "draft_tokens=6")
        ]
        assert found[0].token_ids == found[1].token_ids and found[0].steps == found[1].steps


@pytest.mark.slow
@pytest.mark.parametrize("accept", ["token", "block"])
@pytest.mark.parametrize("warm", [checks.WARM, Sampling(temperature=1.3, top_p=0.8)], ids=("top_k", "top_p"))
def test_sampled_answers_have_the_target_s_distribution(
    warm: Sampling, accept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ways that draws can go are enumerated; some tokens leave, others do not."""
    models, left = random_models("llama", FEW_TOKENS), set[int]()
    layers, climb = models.draft.layers, TwoModel.climb
    monkeypatch.setattr(models.draft.config, "draft_exits", [1], raising=False)
    monkeypatch.setattr(checks, "random_models", lambda kind, vocabulary: models)
    monkeypatch.setattr(checks, "WARM", warm)

    def watched(method: TwoModel, *how: object) -> torch.Tensor:
        logits: torch.Tensor = climb(method, *how)
        left.add(1 if method._stream.cache.lengths[-1] < method._stream.length else layers)
        return logits

    monkeypatch.setattr(TwoModel, "climb", watched)
    label = f"two_model[draft_exits=1,exit_confidence=0.5,draft_tokens=2,confidence=0.3,accept={accept}]"
    assert checks.sampled(MethodUnderTest(label, tmp_path), models) is None
    assert left == {1, layers}


@pytest.mark.parametrize("exits", ["1", "2+3"])
def test_doctor_finds_nothing_wrong_with_it(exits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits, stops, earlier prompts, seeds, forced text and caches."""
    models = random_models("llama")
    monkeypatch.setattr(models.draft.config, "draft_exits", [1, 2, 3], raising=False)
    label = f"two_model[draft_exits={exits},exit_confidence=0.3,confidence=0.1]"
    findings = {
        name: check(MethodUnderTest(label, tmp_path), models)
        for name, check in checks.ON_A_TARGET.items()
        if name != "sampled"
    }
    assert {name for name, finding in findings.items() if finding is not None} == {"batches"}
    assert isinstance(findings["batches"], Skipped)


def test_exits_that_the_draft_model_was_not_trained_with_are_refused() -> None:
    for models, there in ((pair("llama"), "without exits"), (with_exits(pair("llama"), 1, 3), "exits 1+3")):
        with refused("exits_not_trained", "layer 2", there):
            run("two_model[draft_exits=2]", models.target, prompt_of(5), 5, draft=models.draft)


def test_text_beyond_the_draft_model_s_context_goes_on_without_drafts() -> None:
    """Rows that had left at an exit still waited when nothing was read any more, and the next step kept too many."""
    models, short = pair("llama"), with_exits(pair("llama", 0, 32), 1)
    plain = drafter(models.naive_draft, (1,), 0.0, 3, 0.0, [])

    def inside(text: list[int], budget: int) -> list[int]:
        return plain(text, min(budget, 33 - len(text)))

    label = "two_model[draft_exits=1,exit_confidence=0,draft_tokens=3,confidence=0]"
    for prompt_tokens in (20, 32, 33):
        prompt, text = prompt_of(prompt_tokens), answer("llama", 0, prompt_tokens)
        got = run(label, models.target, prompt, len(text), draft=short.draft)
        assert list(got.token_ids) == text
        assert rounds_of(got) == replay(prompt, text, len(text), inside)
