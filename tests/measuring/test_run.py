"""A run from settings to a results file: what is written, and what a resumed run adds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures_run import LABELS, make_settings, measure, measured, timeless
from refusals import refused
from tiny import tiny_model
from tiny_encoder import random_folder
from untrained import facts_of, untrained

from benchctl.analysis.comparison import differences
from benchctl.decoding.model.loading import form_sha256
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folders import modules_sha256, save_modules
from benchctl.measuring import settings as ask
from benchctl.measuring.run import traffic_of
from benchctl.measuring.session import Notice, Progress, is_stable
from benchctl.methods.medusa import Medusa
from benchctl.records.reader import row_key
from benchctl.records.writer import RunFile, read


@pytest.fixture
def settings(run_folder: Path, tmp_path: Path) -> ask.RunSettings:
    return make_settings(run_folder, tmp_path / "out.jsonl")


@pytest.fixture(scope="module")
def whole(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFile:
    """One run from beginning to end, for the tests that only look at it."""
    out = tmp_path_factory.mktemp("whole") / "whole.jsonl"
    events: list[Notice | Progress] = []
    measure(make_settings(run_folder, out), events.append)
    progress = [event for event in events if isinstance(event, Progress)]
    assert [event.done for event in progress if not event.warm_up] == list(range(1, 25))
    assert {event.total for event in progress} == {24}
    assert {event.done for event in progress if event.warm_up} == {0}
    return read(out)


def test_a_run_writes_every_generation_in_its_planned_order(whole: RunFile) -> None:
    rows = measured(whole)
    assert [row.order for row in rows] == list(range(24))
    assert [row.label for row in rows[:6]] == [*LABELS, *LABELS[::-1]]
    assert [row.prompt_id for row in rows] == ["short"] * 6 + ["talk"] * 12 + ["story"] * 6
    assert [row.turn for row in rows if row.prompt_id == "talk"] == [0, 0, 0, 1, 1, 1] * 2


def test_the_header_says_what_was_fixed_before(whole: RunFile) -> None:
    header = whole.run
    assert (header.baseline, header.order, header.dtype, header.device) == ("autoregressive", "abba", "float32", "cpu")
    assert [method.label for method in header.methods] == list(LABELS)
    options = {"draft_model": "", "draft_tokens": 2, "confidence": 0.5, "draft_vocabulary": "stored"}
    options |= {"stop": "confidence", "token_cost": 0.15, "draft_by": "none", "accept": "token"}
    options |= {"draft_exits": "", "exit_confidence": 0.8}
    assert header.methods[1].options == options
    assert [method.exactness for method in header.methods] == ["exact", "exact", "lossy"]
    assert header.draft is not None and (header.target.name, header.draft.name) == ("target", "draft")
    assert (header.target.layers, header.draft.layers) == (3, 1)
    assert header.target.weights_sha256 != header.draft.weights_sha256
    assert [(suite.name, suite.source, suite.prompts) for suite in header.suites] == [("three", "file", 3)]
    assert (header.max_new_tokens, header.repeats, header.threads) == (6, 2, 1)
    assert header.machine["cpu"] and header.versions["torch"] and header.command == ("benchctl", "run")
    assert (header.target.stop_ids, header.machine["stop_ids_from"]) == ((2,), ["2 generation_config.json"])


def test_float16_weights_are_another_target_and_its_draft_model_has_them_too(
    settings: ask.RunSettings, whole: RunFile, tmp_path: Path
) -> None:
    measure(replace(settings, models=replace(settings.models, weights="float16")))
    header = read(tmp_path / "out.jsonl").run
    assert (header.weights, header.dtype, header.target_name) == ("float16", "float32", "target (float16 weights)")
    assert (whole.run.weights, whole.run.target_name) == ("", "target")
    for half, full in ((header.target, whole.run.target), (header.draft, whole.run.draft)):
        assert half is not None and full is not None
        assert half.weights_sha256 == form_sha256(full.weights_sha256, "float16")
    assert {found.field for found in differences(whole.run, header)} == {"target", "draft", "weights"}
    assert header.step_bytes < whole.run.step_bytes
    with refused("other_settings", "float16"):
        measure(replace(settings, resume=True))


def test_a_method_of_all_that_cannot_run_is_recorded_and_left_out(settings: ask.RunSettings, tmp_path: Path) -> None:
    events: list[Notice | Progress] = []
    once = ask.RepeatSettings(repeats=1, warm_up=0)
    measure(replace(settings, methods=("all",), repeat=once), events.append)
    file = read(tmp_path / "out.jsonl")
    reasons = {method.label: method.unsupported for method in file.run.methods}
    assert reasons["expert_offload"].startswith("the target is dense")
    assert Notice(f"expert_offload cannot run here: {reasons['expert_offload']}.") in events
    assert {row.label for row in measured(file)} == {label for label, reason in reasons.items() if not reason}


def test_a_run_uses_the_threads_asked_for_and_loads_only_what_it_needs(
    settings: ask.RunSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    models, repeat = replace(settings.models, threads=2), ask.RepeatSettings(warm_up=0)
    summary = measure(replace(settings, methods=("prompt_lookup",), models=models, repeat=repeat))
    file = read(tmp_path / "out.jsonl")
    assert asked == [2] and file.run.draft is None
    assert summary.warm_up_rounds == 0 and all(row.repeat >= 0 for row in file.rows)


@pytest.mark.parametrize("kept", [0, 7, 23, 24])
def test_a_resumed_run_is_the_same_run(settings: ask.RunSettings, whole: RunFile, kept: int, tmp_path: Path) -> None:
    """Whatever number of rows is there, what is added is what was missing, second turns and verdicts included."""
    out = tmp_path / "out.jsonl"
    warm_up = len(whole.rows) - 24
    out.write_bytes(b"".join(whole.path.read_bytes().splitlines(keepends=True)[: 1 + warm_up + kept]))
    summary = measure(replace(settings, resume=True))
    assert (summary.recalled, summary.measured, summary.failed) == (kept, 24 - kept, 0)
    assert timeless(measured(read(out))) == timeless(measured(whole))


def test_warm_up_goes_on_counting_in_a_resumed_run(settings: ask.RunSettings, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    measure(replace(settings, repeat=ask.RepeatSettings(repeats=1, warm_up=1)))
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:-1]))
    measure(replace(settings, repeat=ask.RepeatSettings(repeats=1, warm_up=1), resume=True))
    rows = read(out).rows
    assert {row.repeat for row in rows} == {-2, -1, 0}
    assert len({row_key(row) for row in rows}) == len(rows) == 12 + 2 * 3


def test_the_header_has_the_hash_of_trained_modules(settings: ask.RunSettings, tmp_path: Path) -> None:
    heads, target = tmp_path / "heads", Target.load(settings.models.target)
    save_modules(heads, untrained(Medusa(), target, 0), facts_of("medusa", Medusa(), target))
    measure(replace(settings, methods=("prompt_lookup", f"medusa[modules={heads},nodes=15]")))
    file = read(tmp_path / "out.jsonl")
    assert [method.modules_sha256 for method in file.run.methods] == ["", "", modules_sha256(str(heads))]
    assert {row.verdict for row in measured(file) if row.label.startswith("medusa")} <= {"identical", "tie"}
    assert any(sum(row.accepted) for row in measured(file) if row.label.startswith("medusa"))


def test_warm_up_ends_when_two_rounds_take_the_same_time() -> None:
    assert is_stable({"a": 2.00, "b": 1.00}, {"a": 1.95, "b": 1.04})
    assert not is_stable({"a": 2.00, "b": 1.50}, {"a": 1.95, "b": 1.04})


def read_of(model: Any, share: float = 1.0) -> int:
    """Bytes of all parameters but the embedding, of experts a share; a tied head is read, being the embedding."""
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    assert tied == (model.config.tie_word_embeddings is True)
    return sum(
        round(parameter.nbytes * (share if "experts" in name else 1))
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if "embed_tokens" not in name
    )


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *((family, {}) for family in ("llama", "qwen2", "qwen3", "llama_biases", "gemma", "olmoe")),
        *((family, {}) for family in ("qwen2_moe", "qwen3_moe_every_second")),
        ("gpt_oss", {"layer_types": ["full_attention"] * 3}),
    ],
)
def test_a_step_reads_every_weight_but_the_embedding_and_of_experts_those_a_token_goes_to(
    family: str, settings: dict[str, Any]
) -> None:
    model = tiny_model(family, **settings)
    config, mixture = model.config, "moe" in family or family == "gpt_oss"
    share = config.num_experts_per_tok / config.num_experts if mixture else 1.0
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache_bytes = config.num_hidden_layers * 2 * config.num_key_value_heads * head_dim * 4
    assert traffic_of(Target(model, None)) == (read_of(model, share), cache_bytes)
    assert (share < 1) == mixture


def test_half_as_wide_numbers_are_half_as_many_bytes() -> None:
    wide, narrow = (traffic_of(Target(tiny_model("llama", dtype=dt), None)) for dt in (torch.float32, torch.bfloat16))
    assert wide == (2 * narrow[0], 2 * narrow[1])


def test_traffic_is_unknown_where_the_cache_does_not_grow_with_the_text(tmp_path: Path) -> None:
    assert traffic_of(Target(tiny_model("mistral_window"), None)) == (0, 0)
    assert traffic_of(Target.load(random_folder(tmp_path))) == (0, 0)
