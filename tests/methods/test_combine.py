"""Combined drafters take the steps of a replay of both, run the prompt once, and are loaded as their parts are."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from compared import group_of
from fixtures_records import RUN, baseline_row, drafted_row, method
from fixtures_run import make_settings
from oracles import Drafter, model_drafter
from refusals import refused
from runs import FIRST_FAST, NEW_TOKENS, check_tree, pair, prepared, prompt_of, run
from warned import ids

import benchctl.measuring.run as run_module
from benchctl import __version__, registry
from benchctl.analysis.names import label_lines
from benchctl.conformance import checks
from benchctl.conformance.findings import Deviation
from benchctl.conformance.method_under_test import MethodUnderTest
from benchctl.conformance.random_models import random_models
from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.texts import write_texts
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Context, Outcome
from benchctl.decoding.verify import Verdict
from benchctl.measuring.check import Models, check, choose_method, choose_methods
from benchctl.measuring.run import method_info
from benchctl.methods.combine import Combine
from benchctl.methods.m2r2 import M2R2
from benchctl.methods.m2r2.drafting import BEFORE_ROOT
from benchctl.methods.prompt_lookup import PromptLookup
from benchctl.registry import build, canonical_label, expand_sweep, parse_label, source_sha256

LOOKUP = "prompt_lookup[draft_tokens=3,max_ngram=2,min_ngram=2]"
MODEL = "two_model[draft_tokens=4,confidence=0.4]"


def combined(when: str, drafters: tuple[Drafter, ...], text: list[int], budget: int) -> list[list[int]]:
    """The branches that are verified."""
    drafts = [drafter(text, budget) for drafter in drafters]
    if when == "union":
        return drafts
    if when == "first":
        return [drafts[0] or drafts[1]]
    return [max(drafts, key=len)]


@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
@pytest.mark.parametrize("when", ["first", "longer", "union"])
@pytest.mark.parametrize("order", [1, -1], ids=["lookup first", "model first"])
def test_steps_equal_replay(order: int, when: str, family: str, seed: int) -> None:
    models = pair(family, seed)
    labels = (LOOKUP, MODEL)[::order]
    lookup = PromptLookup(3, 2, min_ngram=2).plain_drafter(models.target, None)
    drafters = (lookup, model_drafter(models.naive_draft, 4, 0.4))[::order]
    label, draft = f"combine[first={labels[0]},then={labels[1]},when={when}]", partial(combined, when, drafters)
    check_tree(label, draft, family, seed)


@pytest.mark.parametrize(
    "label",
    [
        "combine[first=prompt_lookup,then=draft_tree]",
        "combine[first=two_model,then=draft_tree]",
        "combine[first=draft_tree,then=prompt_lookup,when=union]",
        "combine[first=medusa,then=eagle]",
        "combine[first=eagle,then=medusa,when=union]",
        "combine[first=eagle,then=draft_tree,when=longer]",
        "combine[first=prompt_lookup,then=dflash]",
        "combine[first=dflash[confidence=0],then=medusa,when=union]",
        "combine[first=prompt_lookup,then=m2r2[confidence=0,gates=2]]",
    ],
)
def test_answers_of_combinations_equal_autoregressive_decoding(label: str) -> None:
    """The text repeats itself, so that the first part has accepted tokens before the second one drafts."""
    models, prompt = pair("llama"), [5, 6, 7, 8] * 5
    expected = run("autoregressive", models.target, prompt, NEW_TOKENS).token_ids
    assert run(label, models.target, prompt, NEW_TOKENS, draft=models.draft).token_ids == expected


def test_m2r2_starts_from_the_state_of_the_last_token_whoever_drafted_it() -> None:
    target = pair("llama").target
    method = prepared("combine[first=prompt_lookup,then=m2r2[gates=2,features=last]]", target)
    assert isinstance(method, Combine) and isinstance(m2r2 := method.parts[1], M2R2)
    states, asked = torch.randn(4, target.config.hidden_size, dtype=target.dtype), list[torch.Tensor]()
    verdict = Verdict(path=(0, 2), next_token=7)
    outcome = Outcome(Draft.chain([5, 6, 7]), verdict, torch.empty(0), states, kept_rows=[0, 1, 3])
    method.observe(cast(Context, None), outcome)
    m2r2._run = lambda stream, rows, ahead: [torch.zeros(1, target.config.hidden_size, dtype=target.dtype)]

    def noted(before: torch.Tensor) -> torch.Tensor:
        asked.append(before)
        return before

    m2r2._of_feature = noted
    m2r2._propose(cast(Stream, None), [BEFORE_ROOT])
    assert torch.equal(asked[0], states[3:4])


def test_the_prompt_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    models, pushed = pair("llama"), list[int]()
    push = Stream.push

    def watched(stream: Stream, tokens: Sequence[int], parents: Sequence[int] | None = None, **more: Any) -> None:
        if stream.target is models.target:
            pushed.append(len(tokens))
        push(stream, tokens, parents, **more)

    monkeypatch.setattr(Stream, "push", watched)
    for then in ("medusa", "two_model", "token_recycling"):
        pushed.clear()
        run(f"combine[then={then}]", models.target, prompt_of(20), 6, draft=models.draft)
        assert pushed.count(20) == 1


def deeper_with_probs(method: Combine, context: Context, budget: int) -> Draft:
    """The deeper draft with the probabilities that its tokens were drawn with: a mistake."""
    drafts: list[Draft] = [part.draft(context, budget) for part in method.parts]
    return max(drafts, key=lambda draft: draft.depth)


def test_tokens_of_a_draft_that_is_chosen_for_its_depth_do_not_have_their_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft that ends at an unlikely token is not chosen, so tokens of the chosen ones are likelier than drawn."""
    parts = "first=two_model[confidence=0.4,draft_tokens=2],then=prompt_lookup[draft_tokens=2],when=longer"
    label, models = f"combine[{parts}]", random_models("llama")
    assert checks.sampled(MethodUnderTest(label, tmp_path), models) is None
    monkeypatch.setattr(Combine, "draft", deeper_with_probs)
    assert isinstance(checks.sampled(MethodUnderTest(label, tmp_path), models), Deviation)


def test_parts_keep_stores_of_their_own_and_copies_of_them_give_the_same_steps() -> None:
    models = pair("llama")
    method = prepared("combine[first=suffix[memory=run],then=token_recycling,when=union]", models.target)
    assert isinstance(method, Combine) and method.memory == "run"
    store = method.new_store()
    request = DecodeRequest(prompt_of(13), NEW_TOKENS, store=store)
    cold = decode(method, models.target, request)
    kept = copy.deepcopy(store)
    warm = decode(method, models.target, request)
    again = decode(method, models.target, replace(request, store=kept))
    assert warm.token_ids == cold.token_ids
    assert warm.steps == again.steps and len(warm.steps) < len(cold.steps)
    assert len(store) == 2


def test_labels_of_parts_have_options_of_their_own() -> None:
    label = "combine[first=suffix[tree=true,factor=2],then=two_model[draft_tokens=3],when=longer]"
    method = build(label)
    assert isinstance(method, Combine)
    assert (method.first, method.then, method.when) == ("suffix[factor=2.0,tree=true]", MODEL_OF_THREE, "longer")
    canonical = canonical_label(method, parse_label(label))
    assert canonical == f"combine[first=suffix[factor=2.0,tree=true],then={MODEL_OF_THREE},when=longer]"
    assert canonical_label(build(canonical), parse_label(canonical)) == canonical
    assert label_lines(canonical) == (
        *("combine", "first=suffix[factor=2.0,tree=true]", f"then={MODEL_OF_THREE}", "when=longer"),
    )
    same = "combine[first=suffix[depth=24]]"
    assert canonical_label(build(same), parse_label(same)) == "combine"
    assert expand_sweep("combine[first=suffix|prompt_lookup[max_ngram=2,min_ngram=2],when=first|union]")[3] == (
        "combine[first=prompt_lookup[max_ngram=2,min_ngram=2],when=union]"
    )


MODEL_OF_THREE = "two_model[draft_tokens=3]"


@pytest.mark.parametrize(
    ("label", "problem", "fact"),
    [
        ("combine[first=medusa[accept=typical]]", "bad_option_value", "is lossy"),
        ("combine[first=early_exit]", "bad_option_value", "is lossy"),
        ("combine[first=early_exit[mode=draft]]", "bad_option_value", "runs rows of its own in the target, learns"),
        ("combine[first=deed[mode=draft]]", "bad_option_value", "runs rows of its own in the target, learns"),
        ("combine[first=m2r2,then=suffix]", "bad_option_value", "give it as `then`"),
        ("combine[then=m2r2,when=longer]", "bad_option_value", "with when=first"),
        ("combine[then=m2r2,when=union]", "bad_option_value", "with when=first"),
        ("combine[first=eagle,then=m2r2]", "bad_option_value", "eagle reads states of layers that m2r2 runs"),
        (
            "combine[first=dflash,then=m2r2[source=slow]]",
            "bad_option_value",
            "dflash reads states of layers that m2r2[source=slow] runs",
        ),
        ("combine[then=kangaroo]", "bad_option_value", "runs rows of its own in the target, learns"),
        ("combine[then=lookahead]", "bad_option_value", "runs rows of its own in the target, learns"),
        ("combine[then=two_model[stop=bandit]]", "bad_option_value", "runs rows of its own in the target, learns"),
        ("combine[then=two_model[accept=block]]", "bad_option_value", "runs rows of its own in the target, learns"),
        ("combine[then=combine]", "bad_option_value", "combination itself"),
        ("combine[first=eagle,then=eagle[version=1]]", "bad_option_value", "both read states"),
        ("combine[then=autoregressive]", "bad_option_value", "does not draft and verify"),
        ("combine[then=suffix[depth=24]]", "bad_option_value", "first and then are both suffix"),
        ("combine[then=suffix[depth=1]]", "bad_option_value", "depth is 1"),
        ("combine[then=suffix[size=1]]", "unknown_option", "no option 'size'"),
        ("combine[then=nothing]", "unknown_method", "nothing"),
        ("combine[then=suffix[depth=3]", "bad_label", "depth=3"),
    ],
)
def test_parts_that_cannot_be_combined_are_refused(label: str, problem: str, fact: str) -> None:
    with refused(problem, fact):
        build(label)


def test_parts_that_their_training_makes_equal_are_refused() -> None:
    """The embedded heads were trained with head=shared."""
    with refused("bad_option_value", "both medusa"):
        choose_methods(["combine[first=medusa,then=medusa[head=shared]]"], Models("smollm2", ""))


def test_a_part_that_pushes_rows_is_refused_when_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def pushes(method: PromptLookup, context: Context, budget: int) -> Draft:
        context.stream.push(context.tokens[:1])
        return Draft.chain(context.tokens[:1])

    monkeypatch.setattr(PromptLookup, "draft", pushes)
    method = prepared("combine[first=prompt_lookup,then=suffix]", pair("llama").target)
    with refused("cannot_combine"):
        decode(method, pair("llama").target, DecodeRequest(prompt_of(13), NEW_TOKENS))


def test_draft_models_and_modules_of_parts_are_chosen_as_for_the_parts_alone() -> None:
    models = Models("ref-dense", "ref-draft")
    choice = choose_method("combine[first=suffix,then=medusa]", models)
    assert choice.parts[1].embedded == choose_method("medusa", models).embedded != ""
    assert isinstance(choice.method, Combine) and choice.method.parts[1] is choice.parts[1].method
    assert choice.draft_model("ref-draft") == ""
    assert choose_method("combine", models).draft_model("ref-draft") == "ref-draft"
    of_all = {choice.label: choice for choice in choose_methods(["all"], Models("ref-dense", ""))}
    assert of_all["combine"].unsupported and not of_all["suffix"].unsupported
    with refused("cannot_run_here"):
        choose_method("combine", Models("ref-dense", ""))
    with refused("several_draft_models"):
        choose_methods(["combine[then=two_model[draft_model=ref-dense]]", "two_model"], models)


def test_code_of_a_part_that_is_a_plug_in_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SHIPPED", registry.SHIPPED - {"suffix"})
    monkeypatch.setattr(run_module, "SHIPPED", registry.SHIPPED)
    examined = {f"{source_sha256('suffix')} {__version__} suffix": False}
    for found, doctor in (({}, "never"), (examined, "failed")):
        monkeypatch.setattr(registry, "_examined", lambda found=found: found)
        alone, part = (
            method_info(choose_method(label, Models("ref-dense", "")))
            for label in ("suffix", "combine[first=suffix,then=token_recycling]")
        )
        assert part.source_sha256 == alone.source_sha256 == source_sha256("suffix")
        assert part.doctor == alone.doctor == doctor


def test_a_file_of_texts_is_recorded_by_its_hash(tmp_path: Path) -> None:
    hashes = set()
    for token in (5, 6):
        write_texts(tmp_path / "texts.jsonl", "0" * 64, [[token]])
        for label in ("suffix[texts={}]", "combine[first=suffix[texts={}],then=prompt_lookup]"):
            choice = choose_method(label.format(tmp_path / "texts.jsonl"), Models("ref-dense", ""))
            hashes.add(method_info(choice).modules_sha256)
    assert len(hashes) == 2 and "" not in hashes


@pytest.mark.usefixtures("no_weights")
def test_a_file_of_texts_of_a_part_is_checked_before_weights_are_read(run_folder: Path, tmp_path: Path) -> None:
    write_texts(tmp_path / "texts.jsonl", "0" * 64, [[5, 6, 7]])
    methods = (f"combine[first=suffix[texts={tmp_path / 'texts.jsonl'}]]",)
    with refused("texts_of_other_tokenizer"):
        check(replace(make_settings(run_folder, tmp_path / "out.jsonl"), methods=methods), lambda notice: None)


def test_a_run_with_a_part_that_remembers_is_warned_of() -> None:
    label = "combine[first=suffix[memory=run],when=union]"
    rows = [baseline_row(), replace(drafted_row(), label=label)]
    group = group_of(rows, replace(RUN, methods=(RUN.methods[0], method(label))))
    assert "carries_over" in ids(group)
