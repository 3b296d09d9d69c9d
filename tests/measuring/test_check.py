"""What is checked before any weights are loaded: methods, models, prompts, names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures_run import make_settings, write_prompts
from plain_t5 import tiny_t5
from refusals import refused
from tiny import tiny_folder, tiny_tokenizer
from untrained import facts_of, untrained

from benchctl import bundled
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folders import save_modules
from benchctl.judges.local import Local
from benchctl.measuring import settings as ask
from benchctl.measuring.check import (
    NO_DRAFT,
    CheckedRun,
    Models,
    check,
    choose_methods,
    choose_models,
    name_run,
)
from benchctl.measuring.prompts.fit import without_remark
from benchctl.methods.medusa import Medusa
from benchctl.methods.two_model import TwoModel
from benchctl.registry import parse_label, with_trained


@pytest.fixture
def settings(run_folder: Path, tmp_path: Path) -> ask.RunSettings:
    return make_settings(run_folder, tmp_path / "out.jsonl")


@pytest.fixture
def long_prompts(tmp_path: Path) -> Path:
    """One prompt that fits, one that does not, and one of which only the second turn does not."""
    endless = "Say something. " * 100
    prompts = [
        {"id": "fine", "prompt": "Hi"},
        {"id": "endless", "prompt": endless},
        {"id": "later", "turns": ["Hi", endless]},
    ]
    return write_prompts(tmp_path / "long.jsonl", prompts)


def quiet_check(settings: ask.RunSettings) -> CheckedRun:
    return check(settings, lambda notice: None)


def test_the_baseline_is_first_and_every_label_is_there_once() -> None:
    texts = ("early_exit[threshold=0.9]", "autoregressive", "two_model[draft_tokens=6]", "two_model", "early_exit")
    labels = [choice.label for choice in choose_methods(texts, Models("", "draft"))]
    assert labels == ["autoregressive", "early_exit", "two_model"]


def test_all_brings_in_every_method_and_notes_what_some_of_them_lack() -> None:
    choices = {choice.label: choice.unsupported for choice in choose_methods(("all",), Models("", ""))}
    assert {choices.pop(name) for name in ("combine", "two_model", "draft_tree")} == {NO_DRAFT}
    trained = (
        "deed",
        "dflash",
        "eagle",
        "kangaroo",
        "m2r2",
        "m2r2_dynamic",
        "m2r2_prefetch",
        "medusa",
        "mixture_of_depths",
    )
    for name in (*trained, "pseudo", "sequential", "skip_decode", "specee"):
        assert f"benchctl train {name} " in choices.pop(name)
    assert set(choices.values()) == {""}


def test_options_of_training_are_filled_in_but_for_those_that_the_asked_ones_exclude() -> None:
    trained = {"kind": "streaming", "rank": "8", "nodes": "8"}
    assert with_trained(parse_label("pseudo[rows=2]"), trained).text == "pseudo[kind=streaming,rank=8,nodes=8,rows=2]"
    assert with_trained(parse_label("pseudo[tree=1x1x1]"), trained).text == "pseudo[kind=streaming,rank=8,tree=1x1x1]"


def test_a_method_asked_for_by_name_without_its_draft_model_is_refused() -> None:
    with refused("cannot_run_here", "two_model", "--draft-model"):
        choose_methods(("all", "two_model"), Models("", ""))
    assert choose_methods(("two_model[draft_model=x]",), Models("", ""))[1].unsupported == ""


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("label", "id", "fact"),
    [
        ("medusa", "cannot_run_here", "benchctl train medusa"),
        ("early_exit[confidence=classifier]", "cannot_run_here", "benchctl train early_exit"),
        ("medusa[modules=nowhere]", "no_modules_folder", "nowhere"),
    ],
)
def test_a_method_asked_for_by_name_without_its_modules_is_refused_before_weights_are_loaded(
    settings: ask.RunSettings, label: str, id: str, fact: str
) -> None:
    with refused(id, fact):
        quiet_check(replace(settings, methods=("all", label)))


def test_modules_of_another_method_are_refused_before_weights_are_loaded(
    settings: ask.RunSettings, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target.load(run_folder / "target")
    save_modules(tmp_path / "heads", untrained(Medusa(), target), facts_of("medusa", Medusa(), target))
    monkeypatch.setattr(Target, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    label = f"early_exit[confidence=classifier,modules={tmp_path / 'heads'}]"
    with refused("modules_of_other_method", str(tmp_path / "heads"), "of medusa", "not of early_exit"):
        quiet_check(replace(settings, methods=(label,)))


def test_the_embedded_target_and_its_draft_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bundled.PackModel("ref", "ref", "target", 1, 1, "", "", "", "", draft="ref-draft")
    monkeypatch.setattr(bundled, "models", lambda: (model,))
    assert choose_models(ask.ModelSettings()) == choose_models(ask.ModelSettings("ref"))
    assert (choose_models(ask.ModelSettings()).target, choose_models(ask.ModelSettings()).draft) == ("ref", "ref-draft")
    assert choose_models(ask.ModelSettings("owner/elsewhere")).draft == ""
    assert choose_models(ask.ModelSettings("ref", "owner/mine")).draft == "owner/mine"


@pytest.mark.usefixtures("no_weights")
def test_a_draft_model_of_another_tokenizer_is_announced_or_refused_before_weights_are_loaded(
    settings: ask.RunSettings, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny_folder(tmp_path / "other", layers=1)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {token: 319 - index for token, index in tokenizer["model"]["vocab"].items()}
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    asked, notices = replace(settings, models=replace(settings.models, draft=str(other))), list[str]()
    check(asked, notices.append)
    assert [notice for notice in notices if str(other) in notice and "320 of 320 tokens" in notice] == notices
    monkeypatch.setattr(TwoModel, "any_tokenizer", False)
    with refused("unsuitable_draft_model", str(other), "--draft-model"):
        quiet_check(asked)


@pytest.fixture
def encoding(tmp_path: Path) -> str:
    """Configuration and tokenizer of a model with an encoder."""
    tiny_t5(vocabulary=320).config.save_pretrained(tmp_path / "t5")
    tiny_tokenizer(chat=False).save_pretrained(tmp_path / "t5")
    return str(tmp_path / "t5")


@pytest.mark.usefixtures("no_weights")
def test_a_draft_model_with_an_encoder_is_refused_before_loading(settings: ask.RunSettings, encoding: str) -> None:
    """It drafted for a prompt that its encoder had read before, and few of its tokens were accepted."""
    for models, label in (
        (replace(settings.models, draft=encoding), "two_model"),
        (settings.models, f"two_model[draft_model={encoding}]"),
    ):
        with refused("unsuitable_draft_model", "t5", "--draft-model"):
            quiet_check(replace(settings, models=models, methods=(label,)))


@pytest.mark.usefixtures("no_weights")
def test_batches_on_a_target_with_an_encoder_are_refused_early(settings: ask.RunSettings, encoding: str) -> None:
    asked = replace(settings, models=replace(settings.models, target=encoding, draft=""), methods=("autoregressive",))
    assert quiet_check(asked).models.target == encoding
    with refused("no_batches", "t5", "--batch-size"):
        quiet_check(replace(asked, batch_size=2))


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("changes", [{"dtype": "bfloat16"}, {"target": "t5"}, {"target": "mixtral"}], ids=str)
def test_float16_weights_are_refused_early_where_there_are_no_products_for_them(
    settings: ask.RunSettings, changes: dict[str, str], encoding: str, tmp_path: Path
) -> None:
    tiny_folder(tmp_path / "mixtral", "mixtral")
    places: dict[str, Any] = {**changes}
    if "target" in places:
        places["target"] = str(tmp_path / changes["target"])
    models = replace(settings.models, draft="", weights="float16")
    asked = replace(settings, models=models, methods=("autoregressive",))
    assert quiet_check(asked).settings.models.weights == "float16"
    with refused("weights_unsupported", "--weights float16"):
        quiet_check(replace(asked, models=replace(models, **places)))


@pytest.mark.usefixtures("no_weights")
def test_a_temperature_too_low_is_refused_before_loading(settings: ask.RunSettings) -> None:
    """It ended every sampled answer in an error of torch."""
    with refused("temperature_too_low", "1e-40"):
        quiet_check(replace(settings, answers=replace(settings.answers, temperature=1e-40)))
    with refused("temperature_too_low", "1e-40"):
        Local(model="judge", way="generate", temperature=1e-40)


@pytest.mark.usefixtures("no_weights")
def test_prompts_beyond_the_context_are_listed_before_loading(settings: ask.RunSettings, long_prompts: Path) -> None:
    long = replace(settings, prompts=ask.PromptSettings(benches=(str(long_prompts),)))
    facts = ("2 of 3", "128 tokens", "endless (", "later (", "--long-prompts skip", "--long-prompts cut")
    with refused("prompt_too_long", *facts):
        quiet_check(long)


@pytest.mark.usefixtures("no_weights")
def test_the_context_of_a_longrope_model_is_explained_where_a_prompt_does_not_fit(
    settings: ask.RunSettings, long_prompts: Path, tmp_path: Path
) -> None:
    """Phi-3 with a context of 128k tokens takes 4096 here, where its short factors hold.
    The error named 4096 without a reason, although config.json says 131072."""
    models = replace(settings.models, target=str(tiny_folder(tmp_path / "phi3", "phi3_longrope")), draft="")
    prompts = ask.PromptSettings(benches=(str(long_prompts),))
    with refused("prompt_too_long", "64 tokens", "128", "longrope"):
        quiet_check(replace(settings, models=models, prompts=prompts, methods=("prompt_lookup",)))


@pytest.mark.parametrize(
    ("policy", "kept", "remark"), [("skip", ["fine"], "left out"), ("cut", ["fine", "endless", "later"], "cut")]
)
def test_long_prompts_can_be_left_out_or_cut_and_the_record_says_so(
    settings: ask.RunSettings, long_prompts: Path, policy: ask.LongPrompts, kept: list[str], remark: str
) -> None:
    prompts = ask.PromptSettings(benches=(str(long_prompts),), long_prompts=policy)
    (suite,) = quiet_check(replace(settings, prompts=prompts)).suites
    assert [prompt.id for prompt in suite.prompts] == kept
    assert suite.origin == f"{long_prompts}, 2 longer than the context {remark}"
    assert without_remark(suite.origin) == str(long_prompts), "so that its prompts can be judged"


def test_where_chats_may_be_cut_the_record_says_so(settings: ask.RunSettings, tmp_path: Path) -> None:
    """`benchctl judge` looked for a file of that whole name."""
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"turns": ["a", "b"]}\n')
    (suite,) = quiet_check(
        replace(settings, prompts=ask.PromptSettings(benches=(str(chats),), long_prompts="cut"))
    ).suites
    assert suite.origin != str(chats) == without_remark(suite.origin)


def test_leaving_out_every_prompt_is_refused(settings: ask.RunSettings, long_prompts: Path) -> None:
    long_prompts.write_text(long_prompts.read_text().splitlines()[1] + "\n")
    with refused("no_prompt_fits", "long"):
        quiet_check(replace(settings, prompts=ask.PromptSettings(benches=(str(long_prompts),), long_prompts="skip")))


def test_a_suite_and_a_category_of_it_are_refused(settings: ask.RunSettings) -> None:
    """Their prompts would count twice, as if they were independent."""
    benches = ("tasks/repeat", "tasks")
    with refused("suite_twice", "tasks/repeat"):
        quiet_check(replace(settings, prompts=ask.PromptSettings(benches=benches, limit=2)))


def test_two_files_of_one_name_are_refused(settings: ask.RunSettings, run_folder: Path, tmp_path: Path) -> None:
    """Their rows would carry the same suite and ids."""
    copy = tmp_path / "three.jsonl"
    copy.write_bytes((run_folder / "three.jsonl").read_bytes())
    both = (str(run_folder / "three.jsonl"), str(copy))
    with refused("suite_name_twice", "'three'"):
        quiet_check(replace(settings, prompts=ask.PromptSettings(benches=both)))


def test_a_file_is_named_by_its_run(settings: ask.RunSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checked = quiet_check(replace(settings, out=None))
    assert checked.out.parent == Path("results")
    assert checked.out.name.startswith("three-two_model-draft_tokens=2-+early_exit-threshold=0.0-")
    assert name_run(checked.suites, checked.choices, ("all",)).startswith("three-all-")
    assert name_run(checked.suites * 3, checked.choices * 2, ()).startswith("3-suites-5-methods-")


def test_a_run_with_two_draft_models_is_refused() -> None:
    """The header held the first one's hash only, so that neither resume nor compare could see the second change."""
    texts = ("two_model[draft_model=small]", "two_model[draft_model=smaller]")
    with refused("several_draft_models", "small, smaller"):
        choose_methods(texts, Models("", "draft"))


@pytest.mark.usefixtures("no_weights")
def test_what_makes_answers_differ_from_those_of_generate_is_named_before_weights_are_loaded(
    settings: ask.RunSettings, tmp_path: Path
) -> None:
    """A penalty in the generation configuration, and a template that ends turns with a token that ends no answer.
    Users compared answers with those of generate and could not see why they differ."""
    folder, notices = tiny_folder(tmp_path / "tuned"), list[str]()
    asked = replace(settings, models=replace(settings.models, target=str(folder)))
    check(asked, notices.append)
    assert notices == []
    generation = {"eos_token_id": 4, "repetition_penalty": 1.1}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message['content'] }}</s>{% endfor %}")
    check(asked, notices.append)
    assert len(notices) == 2
    assert "</s>" in notices[0] and "2" in notices[0]
    assert "repetition_penalty 1.1" in notices[1]
