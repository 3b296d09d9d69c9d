"""A text forced upon a method: it says exactly that, in the steps that it takes when it meets that text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from fakes_measuring import Lying, Shallower
from oracles import Drafter, ExitRule, caught_up, exit_drafter, model_drafter, replay
from plain_t5 import tiny_t5
from runs import LAYERS, VOCABULARY, pair, prepared, prompt_of, rounds_of, ticking

from benchctl.decoding.batch import decode_batch
from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.verify import ForcedText, Verdict
from benchctl.methods.prompt_lookup import PromptLookup
from benchctl.registry import build

PROMPT = tuple(prompt_of(13))
LIMIT = 30


def forced_run(
    label: str, text: Sequence[int], *, family: str = "llama", limit: int = LIMIT, target: Target | None = None
) -> Generation:
    models = pair(family)
    method = prepared(label, target or models.target, models.draft)
    return say(method, target or models.target, text, limit)


def say(method: Method, target: Target, text: Sequence[int] | None, limit: int = LIMIT) -> Generation:
    return decode(method, target, DecodeRequest(PROMPT, limit, forced=text and tuple(text), clock=ticking()))


@cache
def foreign_text() -> tuple[int, ...]:
    """A text of nobody: mostly what the draft model would say next, now and then a random token or a repetition."""
    naive, chance = pair("llama").naive_draft, torch.Generator().manual_seed(5)
    text: list[int] = []
    while len(text) < LIMIT:
        roll = float(torch.rand((), generator=chance))
        if roll < 0.65:
            text.append(naive.argmax([*PROMPT, *text]))
        elif roll < 0.8 and len(text) > 6:
            text += text[-6:-2]
        else:
            text.append(int(torch.randint(VOCABULARY, (), generator=chance)))
    return tuple(text[:LIMIT])


DRAFTERS = (
    ("two_model[draft_tokens=3,confidence=0]", lambda: model_drafter(pair("llama").naive_draft, 3)),
    ("two_model[draft_tokens=4,confidence=0.5]", lambda: model_drafter(pair("llama").naive_draft, 4, 0.5)),
    (
        "prompt_lookup[draft_tokens=3,max_ngram=3,match=last]",
        lambda: PromptLookup(3, 3).plain_drafter(pair("llama").target, None),
    ),
    (
        "early_exit[mode=draft,exits=1+3,threshold=0.3]",
        lambda: exit_drafter(pair("llama").naive, ExitRule((1, 3), threshold=0.3), 4),
    ),
)


@pytest.mark.parametrize(("label", "drafter"), DRAFTERS)
def test_drafted_and_accepted_step_by_step_are_those_of_the_replay_oracle(label: str, drafter: object) -> None:
    """Its rounds are worked out from the text alone, by full recomputation, without cache, mask or verification."""
    draft: Drafter = drafter()  # type: ignore[operator]
    got = forced_run(label, foreign_text())
    expected = replay(PROMPT, foreign_text(), LIMIT, draft)
    assert rounds_of(got) == expected
    assert 0 < sum(accepted for _, accepted in expected) < sum(drafted for drafted, _ in expected)


@pytest.mark.parametrize("policy", ["propagate", "deferred_exact"])
def test_exits_are_decided_by_the_method_s_own_confidence_on_the_text(policy: str) -> None:
    """By full recomputation over the forced text: where each token leaves, and what would have been said there."""
    naive, rule = pair("llama").naive, ExitRule((1, 2, 3), threshold=0.3)
    text, exits, own = [*PROMPT, foreign_text()[0]], [LAYERS], [naive.argmax(PROMPT)]
    for token in foreign_text()[1:]:
        depths = [LAYERS] * (len(PROMPT) - 1) + exits
        said, layer = rule.choose(naive, text, depths if policy == "propagate" else None)
        text.append(token)
        exits.append(layer)
        own.append(said)
    got = forced_run(f"early_exit[min_exit=1,threshold=0.3,kv_policy={policy}]", foreign_text())
    assert list(got.layers) == (exits if policy == "propagate" else caught_up(exits, len(PROMPT)))
    agreed = sum(one == other for one, other in zip(own, foreign_text(), strict=True))
    assert got.forced is not None and (got.forced.judged, got.forced.agreed) == (LIMIT, agreed)
    assert 0 < agreed < LIMIT and len(set(exits)) > 2


@pytest.mark.parametrize("label", ["autoregressive", "two_model", "lookahead[ngram=4,window=12]", "medusa", "m2r2"])
def test_a_text_that_ends_with_a_stop_token_ends_there(label: str) -> None:
    """Also inside a draft, and where the method would have gone on."""
    for end in range(1, 14):
        stop = foreign_text()[end - 1]
        if stop in foreign_text()[: end - 1]:
            continue
        got = forced_run(label, foreign_text()[:end], target=pair("llama").with_stops(stop))
        assert (got.token_ids, got.stop_reason) == (foreign_text()[:end], "stop")
        assert 1 + sum(len(step.tokens) for step in got.steps) == len(got.layers) == end


def test_a_batch_says_the_text_of_each_of_its_prompts_as_each_would_alone() -> None:
    target, texts = pair("llama").target, [foreign_text(), foreign_text()[::-1], (3,) * LIMIT]
    requests = [DecodeRequest(prompt_of(n), LIMIT, forced=text) for n, text in zip((13, 2, 7), texts, strict=True)]
    for request, got, text in zip(requests, decode_batch(Shallower(), target, requests), texts, strict=True):
        alone = decode(Shallower(), target, request)
        assert got.token_ids == text
        assert (got.steps, got.layers, got.forced) == (alone.steps, alone.layers, alone.forced)
        assert got.forced is not None and got.forced.agreed < LIMIT


def test_a_target_with_an_encoder_says_it_behind_its_start_token() -> None:
    target = Target(tiny_t5(), None)
    for label in ("autoregressive", "prompt_lookup", "early_exit[exits=2,threshold=0]"):
        free = say(build(label), target, None, 12)
        assert free.stop_reason == "length" and len(set(free.token_ids)) > 1
        text = free.token_ids[1:] + free.token_ids[:1]
        got = say(build(label), target, text, 12)
        assert got.token_ids == text


@pytest.mark.parametrize(
    ("text", "ends"),
    [((5, 6), "2 tokens, .* after 4"), ((5, 6, 7, 8, 9), "5 .* after 4"), ((), "0 .*4")],
)
def test_a_text_that_is_no_whole_answer_is_refused(text: tuple[int, ...], ends: str) -> None:
    with pytest.raises(ValueError, match=ends):
        decode(build("autoregressive"), pair("llama").target, DecodeRequest(PROMPT, 4, forced=text))


def test_a_text_that_goes_on_behind_a_stop_token_is_refused() -> None:
    with pytest.raises(ValueError, match="4 tokens, .* after 2"):
        forced_run("autoregressive", (5, 6, 7, 8), limit=4, target=pair("llama").with_stops(6))


def test_a_method_that_says_something_else_all_the_same_is_found_out() -> None:
    """Its times would be those of another text, under the name of this one."""
    with pytest.raises(ValueError, match=r"the method said \d+ where another token was forced upon it: replay takes"):
        say(Lying(), pair("llama").target, foreign_text())


DRAFT = Draft(tokens=(7, 8, 7, 9), parents=(ROOT, 0, 1, 0))  # 7 8 7, and 7 9


@pytest.mark.parametrize(
    ("text", "own", "verdict", "judged", "agreed"),
    [
        ((7, 8, 9), Verdict((0,), 5), Verdict((0, 1), 9), 2, 1),  # the example of the docstring
        ((7, 9, 4), Verdict((0, 3), 4), Verdict((0, 3), 4), 3, 3),  # it says the text by itself
        ((7, 9, 4), Verdict((0, 1, 2), 4), Verdict((0, 3), 4), 2, 1),  # the other branch says the text
        ((6, 7, 8), Verdict((), 5), Verdict((), 6), 1, 0),  # no row says it
        ((7, 8), Verdict((0, 1, 2), 4), Verdict((0, 1, 2), 4), 2, 2),  # the loop cuts what is behind its end
        ((7, 8), Verdict((0, 3), 4), Verdict((0, 1), 4), 2, 1),
        ((7, 8, 7, 1), Verdict((0, 1), 7), Verdict((0, 1), 7), 3, 3),  # it may take less than the draft has of the text
    ],
)
def test_a_verdict_stays_the_method_s_own_as_long_as_it_says_the_text(
    text: tuple[int, ...], own: Verdict, verdict: Verdict, judged: int, agreed: int
) -> None:
    forced = ForcedText((1, 2, *text))
    assert forced.impose(2, DRAFT, own) == verdict
    assert (forced.judged, forced.agreed) == (judged, agreed)
