"""transformers' assisted generation takes the same steps as two_model, prompt_lookup and layer-prefix drafts.

transformers drafts before prefill, so that its first pass over the prompt already verifies a draft; here prefill gives
one token. Given the prompt and that token, and one new token less, its rounds must be ours, one by one. Its rounds from
the prompt itself must be the replay oracle's in that convention, which ties the oracle to a second implementation.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import Drafter, ExitRule, Rounds, exit_drafter, model_drafter, noisy_copy, replay
from runs import Pair, pair, pair_of, prompt_of, rounds_of, run
from transformers import AutoModelForCausalLM, GenerationConfig

from benchctl.methods.prompt_lookup import PromptLookup

NEW_TOKENS = 40
MODELS = (("llama", 0), ("qwen3", 2))


@dataclass
class Spy:
    """Counts passes through the target's last layer and, as a streamer, the tokens each round commits."""

    rows: list[int] = field(default_factory=list)
    committed: list[list[int]] = field(default_factory=list)

    def put(self, tokens: torch.Tensor) -> None:
        self.committed.append(tokens.flatten().tolist())

    def end(self) -> None:
        pass

    def watch(self, _module: Any, inputs: tuple[torch.Tensor, ...], _output: Any) -> None:
        self.rows.append(inputs[0].shape[1])


def generate(
    model: Any,
    prompt: list[int],
    new_tokens: int,
    settings: dict[str, int] | None = None,
    assistant: Any = None,
    stops: tuple[int, ...] = (),
) -> tuple[list[int], Rounds]:
    """transformers' greedy assisted generation of ``prompt``: tokens, and rounds (drafted, accepted), the pass over the
    prompt first. ``settings`` are fields of its GenerationConfig."""
    spy = Spy()
    # A padding id would make it hide every such token of the prompt from attention.
    config: Any = GenerationConfig(do_sample=False, max_new_tokens=new_tokens, **(settings or {}))  # type: ignore[no-untyped-call]
    # What the model's own configuration says would fill in for None.
    config.eos_token_id = model.generation_config.eos_token_id = list(stops) or None
    handle = model.model.layers[-1].register_forward_hook(spy.watch)
    try:
        model.generate(torch.tensor([prompt]), generation_config=config, streamer=spy, assistant_model=assistant)
    finally:
        handle.remove()
    answers = spy.committed[1:]  # the first is the prompt
    fed = [len(prompt)] + [1] * (len(answers) - 1)
    drafted = [rows - own for rows, own in zip(spy.rows, fed, strict=True)]
    rounds = [(depth, len(tokens) - 1) for depth, tokens in zip(drafted, answers, strict=True)]
    return [token for tokens in answers for token in tokens], rounds


def _fixed_length(model: Any, draft_tokens: int, confidence: float = 0.0) -> Any:
    """The model as an assistant that drafts this many tokens, always."""
    settings = model.generation_config
    settings.eos_token_id = None
    settings.num_assistant_tokens = draft_tokens
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = confidence
    return model


def _capped(rounds: Rounds, new_tokens: int) -> Rounds:
    """Prompt lookup there may propose past the limit; here a draft ends one token before it, for the bonus token."""
    capped: Rounds = []
    left = new_tokens
    for drafted, accepted in rounds:
        capped.append((min(drafted, left - 1), accepted))
        left -= accepted + 1
    return capped


def _assert_same_rounds(
    label: str,
    models: Pair,
    prompt: list[int],
    drafter: Drafter,
    settings: dict[str, int] | None = None,
    assistant: Any = None,
) -> None:
    ours = run(label, models.target, prompt, NEW_TOKENS, draft=models.draft)
    tokens, rounds = generate(models.model, [*prompt, ours.token_ids[0]], NEW_TOKENS - 1, settings, assistant)
    assert tokens == list(ours.token_ids[1:])
    assert _capped(rounds, NEW_TOKENS - 1) == rounds_of(ours)
    tokens, rounds = generate(models.model, prompt, NEW_TOKENS, settings, assistant)
    assert tokens == list(ours.token_ids)
    expected = replay(prompt, tokens, NEW_TOKENS, drafter, drafts_before_prefill=True)
    assert _capped(rounds, NEW_TOKENS) == expected


@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize(("draft_tokens", "confidence"), [(1, 0.0), (4, 0.0), (5, 0.25)])
def test_two_model_steps_equal_assisted_generation(
    draft_tokens: int, confidence: float, family: str, seed: int
) -> None:
    models = pair(family, seed)
    label = f"two_model[draft_tokens={draft_tokens},confidence={confidence}]"
    drafter = model_drafter(models.naive_draft, draft_tokens, confidence)
    assistant = _fixed_length(models.draft_model, draft_tokens, confidence)
    _assert_same_rounds(label, models, prompt_of(13, seed), drafter, assistant=assistant)


@pytest.mark.parametrize("tree", ["1x1x1", "likeliest,width=1,depth=3,nodes=3,confidence=0"])
def test_steps_of_a_draft_tree_without_branches_equal_assisted_generation(tree: str) -> None:
    models = pair("llama")
    drafter, assistant = model_drafter(models.naive_draft, 3), _fixed_length(models.draft_model, 3)
    _assert_same_rounds(f"draft_tree[tree={tree}]", models, prompt_of(13), drafter, assistant=assistant)


@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize(("draft_tokens", "max_ngram"), [(10, 2), (4, 3), (1, 1)])
def test_prompt_lookup_steps_equal_prompt_lookup_generation(
    draft_tokens: int, max_ngram: int, family: str, seed: int
) -> None:
    models = pair(family, seed)
    label = f"prompt_lookup[draft_tokens={draft_tokens},max_ngram={max_ngram},match=first]"
    drafter = PromptLookup(draft_tokens, max_ngram, "first").plain_drafter(models.target, None)
    settings = {"prompt_lookup_num_tokens": draft_tokens, "max_matching_ngram_size": max_ngram}
    _assert_same_rounds(label, models, prompt_of(13, seed), drafter, settings)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize(("exit_layer", "draft_tokens"), [(1, 2), (2, 4), (3, 5)])
def test_layer_prefix_drafts_take_the_steps_of_early_exit_generation(
    exit_layer: int, draft_tokens: int, family: str, seed: int
) -> None:
    models = pair(family, seed)
    label = f"early_exit[mode=draft,exits={exit_layer},threshold=0,draft_tokens={draft_tokens}]"
    drafter = exit_drafter(models.naive, ExitRule((exit_layer,), threshold=0.0), draft_tokens)
    _fixed_length(models.model, draft_tokens)
    _assert_same_rounds(label, models, prompt_of(13, seed), drafter, {"assistant_early_exit": exit_layer})


@pytest.mark.slow
def test_stop_token_ends_assisted_generation_after_the_same_number_of_steps() -> None:
    """Its drafts end at a stop token and count it as the bonus, so tokens and the number of steps are what compares."""
    models = pair("llama")
    prompt = prompt_of(13)
    text = list(run("autoregressive", models.target, prompt, NEW_TOKENS).token_ids)
    assistant = _fixed_length(models.draft_model, 4)
    for stop in sorted(set(text[6:]) - set(text[:6])):
        ours = run(
            "two_model[draft_tokens=4,confidence=0]", models.with_stops(stop), prompt, NEW_TOKENS, draft=models.draft
        )
        tokens, rounds = generate(models.model, [*prompt, text[0]], NEW_TOKENS - 1, None, assistant, (stop,))
        assert (tokens, len(rounds)) == (list(ours.token_ids[1:]), len(ours.steps))


def test_a_trained_model_says_what_was_published_in_the_steps_of_assisted_generation(shared: Path) -> None:
    """The trained stories260K in float32, with a noisy copy as its draft model, and its published greedy answers."""
    folder = shared / "models" / "stories260K"
    if not folder.is_dir():
        pytest.skip("no stories260K here")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval().requires_grad_(False)
    stories = pair_of(model, noisy_copy(model, 0.1))
    samples = json.loads((folder / "golden_greedy.json").read_text())["samples"]
    exits = "early_exit[mode=draft,exits=4,threshold=0]"
    for sample in samples:
        published = sample["new_ids"][:NEW_TOKENS]
        for label in ("autoregressive", "two_model", "prompt_lookup", exits):
            ours = run(label, stories.with_stops(1, 2), sample["prompt_ids"], len(published), draft=stories.draft)
            assert list(ours.token_ids) == published
    # Of the four, one whose two likeliest tokens are never closer than 2e-3: rounding does not decide a draft.
    prompt = samples[3]["prompt_ids"]
    assistant = _fixed_length(copy.copy(stories.draft_model), 5)
    drafter = model_drafter(stories.naive_draft, 5)
    _assert_same_rounds("two_model[draft_tokens=5,confidence=0]", stories, prompt, drafter, assistant=assistant)
    settings = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2}
    lookup = "prompt_lookup[draft_tokens=10,max_ngram=2,match=first]"
    drafter = PromptLookup(10, 2, "first").plain_drafter(stories.target, None)
    _assert_same_rounds(lookup, stories, prompt, drafter, settings)
    _fixed_length(stories.model, 4)
    drafter = exit_drafter(stories.naive, ExitRule((4,), threshold=0.0), 4)
    _assert_same_rounds(exits, stories, prompt, drafter, {"assistant_early_exit": 4})
