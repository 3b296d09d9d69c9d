"""`benchctl doctor --method --model`: what it asks of a method, that mistakes are found, and what it prints."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from command import cli, ok
from fakes_measuring import Lying
from fixtures_run import make_folder
from mutants import ForgetfulTwoModel, LateTwoModel, UnrepairedTwoModel
from oracles import Drafter, ExitRule, exit_drafter, model_drafter
from runs import CONTEXT_TOKENS, answer, pair, prepared, prompt_of

from benchctl.conformance import checks, own_model
from benchctl.conformance.distributions import Drawing, Text
from benchctl.conformance.findings import Deviation, Held, Skipped
from benchctl.conformance.own_model import Case, chances, draws, g_test, greedy, sampled, steps, verify
from benchctl.conformance.random_models import FEW_TOKENS, random_models
from benchctl.decoding.method import Context, Method, Speculative, UsesDraftModel
from benchctl.methods.two_model import TwoModel

PROMPTS = (prompt_of(13), prompt_of(5))


def case(
    method: Method | str, label: str = "two_model[draft_tokens=4]", draws: int = 0, context_tokens: int = CONTEXT_TOKENS
) -> Case:
    models = pair("llama", 0, context_tokens)
    if isinstance(method, str):
        label, method = method, prepared(method, models.target, models.draft)
    else:
        if isinstance(method, UsesDraftModel):
            method.use_draft_model(models.draft)
        method.prepare(models.target)
    return Case(label, method, models.target, models.draft, PROMPTS, 24, draws)


@pytest.mark.slow
@pytest.mark.parametrize(
    "label", ["two_model[draft_tokens=3,confidence=0.4]", "prompt_lookup", "early_exit[mode=draft,threshold=0.3]"]
)
def test_a_method_that_keeps_its_claim_passes_every_check(label: str) -> None:
    found = {each.check: each for each in verify(case(label, draws=40), "tiny")}
    assert {name: each.verdict for name, each in found.items()} == dict.fromkeys(own_model.CHECKS, "pass")
    assert {each.label for each in found.values()} == {label} and found["greedy"].target == "tiny"
    assert found["greedy"].detail.startswith("48 tokens")
    assert "total variation" in found["sampled"].detail and "40 draws" in found["draws"].detail


def test_a_method_that_says_something_else_is_told_where() -> None:
    found = greedy(case(Lying(), "lying"))
    text = answer("llama", 0, 13)
    assert isinstance(found, Deviation)
    assert found.expected.startswith(f"{text[1]} {text[2]} ") and "token 2 of prompt 1" in found.expected


@pytest.mark.parametrize("mutant", [ForgetfulTwoModel, LateTwoModel])
def test_a_draft_cache_that_the_text_hides_is_found_by_its_steps(mutant: type[TwoModel]) -> None:
    """LateTwoModel goes wrong from position 20 on, which both prompts reach; a fresh start repeats its mistake."""
    faulty = case(mutant(draft_tokens=4), context_tokens=512)
    assert isinstance(greedy(faulty), Held)
    found = steps(faulty)
    assert isinstance(found, Deviation)
    assert " accepted of " in found.expected and found.expected.split(" in step")[0] != found.seen


ORACLES: dict[str, Drafter] = {
    "two_model[draft_tokens=3,confidence=0.4]": model_drafter(pair("llama").naive_draft, 3, 0.4),
    "two_model[draft_tokens=5,stop=product,confidence=0.1]": model_drafter(
        pair("llama").naive_draft, 5, 0.1, stop="product"
    ),
    "two_model[draft_tokens=5,stop=entropy,confidence=0.4]": model_drafter(
        pair("llama").naive_draft, 5, 0.4, stop="entropy"
    ),
    "early_exit[mode=draft,exits=3+1,threshold=0.3]": exit_drafter(
        pair("llama").naive, ExitRule((1, 3), threshold=0.3), 4
    ),
    "early_exit[mode=draft,confidence=state_cosine,min_exit=2,threshold=0.8]": exit_drafter(
        pair("llama").naive, ExitRule((2, 3), "state_cosine", 0.8), 4
    ),
}


@pytest.mark.parametrize("label", ORACLES)
def test_plain_drafts_are_those_of_transformers_own_model(label: str) -> None:
    models = pair("llama")
    method = prepared(label, models.target, models.draft)
    assert isinstance(method, Speculative)
    drafter = method.plain_drafter(models.target, models.draft)
    assert drafter is not None
    text = [*prompt_of(13), *answer("llama", 0, 13)]
    with torch.inference_mode():
        drafts = [drafter(text[:at], 4) for at in range(13, 40)]
    assert drafts == [ORACLES[label](text[:at], 4) for at in range(13, 40)]
    assert len(set(map(len, drafts))) > 1


def test_the_target_s_last_states_are_those_of_transformers_own_model() -> None:
    models, text = pair("llama"), prompt_of(13)
    assert torch.allclose(models.target.last_states(text), models.naive.last_states(text), atol=1e-9)


@pytest.mark.parametrize("label", ["medusa", "early_exit[mode=draft,confidence=classifier,threshold=0.5,decay=4]"])
def test_steps_of_trained_drafters_are_those_of_a_fresh_start(label: str) -> None:
    assert isinstance(steps(case(label)), Held)


def test_steps_are_compared_wherever_the_answer_ends() -> None:
    """At a stop token inside an accepted block, and at the end of the context."""
    models = pair("llama")
    text = answer("llama", 0, 13)
    for stop in sorted({*text[1:12]} - {text[0]}):
        assert isinstance(steps(replace(case("two_model"), target=models.with_stops(stop), prompts=PROMPTS[:1])), Held)
    assert isinstance(steps(replace(case("two_model"), prompts=(prompt_of(57),))), Held)


@pytest.mark.parametrize(
    "label",
    [
        *("lookahead", "early_exit", "autoregressive"),
        *("two_model[stop=bandit]", "kangaroo[stop=bandit]", "pseudo[rows=2,depth=0,tree=6x4]"),
    ],
)
def test_steps_that_do_not_follow_from_the_text_are_skipped(label: str) -> None:
    """A bandit, and pseudo-rows that some candidates lack, draft otherwise after a fresh start: no fault of theirs."""
    assert isinstance(steps(case(label)), Skipped)


@pytest.mark.slow
def test_a_wrong_rule_is_found_by_enumeration() -> None:
    found = sampled(case(UnrepairedTwoModel(draft_tokens=4)))
    assert isinstance(found, Deviation) and float(found.seen) > 0.001


class SameDraws(TwoModel):
    """Draws well, but from the same numbers for every prompt and seed: by its rules nothing is wrong with it."""

    def start(self, context: Context) -> int:
        context.generator.manual_seed(7)
        first: int = super().start(context)
        return first


@pytest.mark.slow
def test_numbers_that_are_not_drawn_are_found_by_frequencies_alone() -> None:
    same = case(SameDraws(draft_tokens=4), draws=80)
    assert isinstance(sampled(same), Held)
    found = draws(same)
    assert isinstance(found, Deviation) and "80 draws" in found.seen


@pytest.mark.slow
def test_most_draws_are_not_decoded_and_the_least_deviation_found_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 answers are decoded, 3,960 follow from their numbers. Of the 40 those count that took the way of an earlier
    one: each misses a share q that does not follow from its numbers with 1 - q, all of them together with 0.01."""
    monkeypatch.setattr(own_model, "_DECODED", 40)
    monkeypatch.setattr(own_model, "_DRAWS_PER_DECODING", 100)
    decoded: list[int] = []
    drawn = Case.drawn

    def drawn_and_noted(asked: Case, seed: int = 0) -> Text:
        decoded.append(seed)
        return drawn(asked, seed)

    drawings: list[Drawing] = []

    def drawing_and_noted(*given: Any) -> Drawing:
        drawings.append(Drawing(*given))
        return drawings[0]

    monkeypatch.setattr(Case, "drawn", drawn_and_noted)
    monkeypatch.setattr(own_model, "Drawing", drawing_and_noted)
    asked = case("two_model[draft_tokens=3]", draws=4000)
    found = draws(asked)
    test = g_test(Counter({text: round(4000 * chance) for text, chance in chances(asked).items()}), chances(asked))
    assert isinstance(found, Held) and test is not None
    (drawing,) = drawings
    assert 5 < drawing.checked < 40
    detectable = f"{1 - 0.01 ** (1 / drawing.checked) + test.detectable:.2g}"
    assert "4,000 draws, 40 decoded" in found.detail and f"variation of {detectable} " in found.detail
    assert 40 <= len(decoded) < 200


@pytest.mark.slow
def test_of_draws_that_are_all_decoded_none_is_taken_to_follow_from_its_numbers() -> None:
    asked = case("two_model[draft_tokens=3]", draws=300)
    found = draws(asked)
    test = g_test(Counter({text: round(300 * chance) for text, chance in chances(asked).items()}), chances(asked))
    assert isinstance(found, Held) and test is not None
    assert f"variation of {min(test.detectable, 1.0):.2g} " in found.detail


def test_a_method_that_draws_numbers_of_its_own_is_decoded_for_every_draw() -> None:
    found = draws(case("lookahead", draws=60))
    assert isinstance(found, Held)
    assert "60 draws, all decoded" in found.detail


def test_an_answer_that_the_target_cannot_give_is_found_at_once() -> None:
    found = draws(case(Lying(), "lying", draws=3))
    assert isinstance(found, Deviation) and found.seen


def test_lossy_and_greedy_claims_are_not_asked_what_they_do_not_claim() -> None:
    lossy = case("early_exit[threshold=0.3]", draws=5)
    assert {each.verdict for each in verify(lossy, "tiny")} == {"skip"}
    reasons = {each.check: each.detail for each in verify(lossy, "tiny")}
    assert "lossy" in reasons["sampled"] and lossy.method.reason in reasons["greedy"]
    modest, lying = UnrepairedTwoModel(draft_tokens=4), Lying()
    modest.exactness = lying.exactness = "exact_greedy"
    found = {each.check: each for each in verify(case(modest, draws=5), "tiny")}
    verdicts = {"greedy": "pass", "steps": "pass", "sampled": "skip", "draws": "skip"}
    assert {name: each.verdict for name, each in found.items()} == verdicts
    assert all("claims exact_greedy" in found[name].detail for name in ("sampled", "draws"))
    assert isinstance(greedy(case(lying, "lying")), Deviation)


def few(stop_ids: frozenset[int] = frozenset()) -> Case:
    target = random_models("llama", FEW_TOKENS).with_stops(stop_ids).target
    return Case("autoregressive", prepared("autoregressive", target), target, None, (checks._SHORT_PROMPT,), 8, 0)


def test_the_chances_are_those_that_transformers_own_model_gives() -> None:
    expected = checks._chances(random_models("llama", FEW_TOKENS))
    found = chances(few())
    assert found.keys() == expected.keys()
    assert found == {text: pytest.approx(chance) for text, chance in expected.items()}


def test_a_stop_token_ends_an_answer_and_keeps_its_chance() -> None:
    stop = next(iter(chances(few())))[1]
    found = chances(few(frozenset({stop})))
    assert sum(found.values()) == pytest.approx(1.0)
    assert {len(text) for text in found if stop in text} > {2}
    assert all(stop not in text[:-1] for text in found)
    assert isinstance(sampled(few(frozenset({stop}))), Held)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("verify"))


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def invoke(*arguments: str) -> Result:
    usual = (
        "--model target --draft-model draft --bench three.jsonl --device cpu --max-new-tokens 8 --draws 30 --limit 2"
    )
    return cli("doctor", *usual.split(), *arguments)


@pytest.mark.slow
def test_verify_prints_a_line_for_each_check_and_their_sum(here: Path) -> None:
    result = ok(invoke("--method", "two_model", "--method", "early_exit"))
    lines = result.stdout.splitlines()
    assert lines[0] == "two_model" and re.findall(r"\d+", lines[-1]) == ["4", "0", "4"]
    assert lines[1].split()[:3] == ["pass", "greedy", "target"] and "16 tokens" in lines[1]
    assert max(map(len, lines)) <= 80


def test_verify_prints_json_for_programs(here: Path) -> None:
    result = invoke("--method", "prompt_lookup", "--json")
    found = json.loads(result.stdout)
    assert [each["check"] for each in found] == list(own_model.CHECKS)
    assert {each["verdict"] for each in found} == {"pass"}


def test_verify_exits_with_1_where_a_check_fails(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(own_model.CHECKS, "greedy", lambda case: Deviation("this", "that", "fix it"))
    result = invoke("--method", "prompt_lookup")
    assert result.exit_code == 1
    assert "fail  greedy" in result.stdout and "To do: fix it." in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "no_such"), "no_such"),
        (("--method", "autoregressive"), "name another --method"),
        (("--method", "two_model", "--model", "nowhere"), "nowhere"),
        # It was the draft model that was said to be missing, which an embedded target would have brought along.
        (("--method", "two_model", "--model", "/nope", "--draft-model", ""), "/nope"),
        (("--method", "prompt_lookup", "--draft-model", "/nope"), "/nope"),
        (("--method", "two_model", "--draft-model", ""), "draft"),
        (("--aa",), "--draft-model"),
        (("--method", "medusa"), "medusa"),
    ],
)
@pytest.mark.usefixtures("here", "no_weights")
def test_what_cannot_be_verified_is_refused_before_weights_are_read(arguments: tuple[str, ...], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2 and words in result.stderr and "Traceback" not in result.stderr
