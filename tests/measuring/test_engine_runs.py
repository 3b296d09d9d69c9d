"""Runs of engines, from the prompts to the table, on servers that answer with the target's own tokens."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import cli
from fake_engine import VERSION, Answers, FakeEngine, Step, counting, program, running, speculating, wait_for
from fixtures_run import make_settings, measure_file, measured
from refusals import refused
from transformers import Lfm2Config

from benchctl.analysis.comparison import Group, MethodFigures, compare
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE, BLOCK_EFFICIENCY
from benchctl.analysis.metrics.faithfulness import TARGET_AGREEMENT, TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP, TPOT, TTFT
from benchctl.analysis.warnings import warnings
from benchctl.analysis.winner import summarise
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.engines.llama_cpp import LlamaCpp
from benchctl.measuring import run as runs
from benchctl.measuring.check import Choice, check
from benchctl.measuring.machine.meter import Meter
from benchctl.measuring.run import _check_same_engine, _deployment, run
from benchctl.measuring.session import Notice, Progress
from benchctl.measuring.settings import AnswerSettings, ModelSettings, RepeatSettings, RunSettings
from benchctl.records.schema import EngineInfo
from benchctl.records.writer import RunFile, read
from benchctl.registry import build

NEW_TOKENS = 24
LOOKUP = "prompt_lookup[draft_tokens=3]"


@pytest.fixture(scope="module")
def target(run_folder: Path) -> Target:
    return Target.load(run_folder / "target", dtype="float32", device="cpu")


def answers_of(target: Target, label: str) -> Answers:
    """The answers of our own loop, with its steps."""
    method = build(label)
    method.prepare(target)

    def answer(prompt: Sequence[int], most: int, stops: Sequence[int]) -> list[Step]:
        generation = decode(method, target, DecodeRequest(prompt, most))
        steps = [Step(step.tokens, step.drafted, step.accepted) for step in generation.steps]
        return [Step(generation.token_ids[:1]), *steps]

    return answer


def settings_of(folder: Path, out: Path, *labels: str) -> RunSettings:
    settings = make_settings(folder, out)
    return replace(
        settings,
        methods=labels,
        answers=AnswerSettings(max_new_tokens=NEW_TOKENS),
        repeat=RepeatSettings(repeats=2, warm_up=1),
    )


def label_of(plain: FakeEngine, server: FakeEngine, *options: str) -> str:
    return f"openai[{','.join([f'base_url={server.url}', f'plain_url={plain.url}', 'dtype=float32', *options])}]"


def measure(folder: Path, out: Path, plain: FakeEngine, server: FakeEngine) -> RunFile:
    return measure_file(settings_of(folder, out, label_of(plain, server)))


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llama_cpp"])
def test_an_engine_with_the_targets_tokens_has_the_rows_of_our_own_loop(
    dialect: str, run_folder: Path, tmp_path: Path, target: Target
) -> None:
    ours = measure_file(settings_of(run_folder, tmp_path / "ours.jsonl", LOOKUP))
    with (
        FakeEngine(dialect, answers_of(target, "autoregressive")) as plain,
        FakeEngine(dialect, answers_of(target, LOOKUP)) as server,
    ):
        file = measure(run_folder, tmp_path / "engine.jsonl", plain, server)
    names = {"autoregressive": file.run.baseline, file_label(ours): file_label(file)}
    theirs = {(row.label, row.prompt_id, row.turn, row.repeat): row for row in measured(file)}
    assert len(theirs) == len(measured(ours)) == 16
    drafted = accepted = 0
    for own in measured(ours):
        row = theirs[names[own.label], own.prompt_id, own.turn, own.repeat]
        assert (row.token_ids, row.text, row.stop_reason) == (own.token_ids, own.text, own.stop_reason)
        assert row.verdict == own.verdict and row.error is None
        assert row.fidelity["scored_tokens"] == row.fidelity["target_agreed_tokens"] == len(row.token_ids)
        drafted, accepted = drafted + sum(own.drafted), accepted + sum(own.accepted)
        if dialect == "vllm" or own.label == "autoregressive":
            assert (row.committed, row.drafted, row.accepted) == (own.committed, own.drafted, own.accepted)
            assert row.totals is None and len(row.step_s) == len(own.step_s)
        elif any(own.drafted):
            assert row.totals is not None and not row.step_s
            steps = len(own.committed) if dialect == "sglang" else None
            assert row.totals.new_tokens == len(own.token_ids) == sum(row.arrived_tokens)
            assert (row.totals.steps, row.totals.drafted, row.totals.accepted) == (
                *(steps, sum(own.drafted), sum(own.accepted)),
            )
    assert drafted > accepted > 0
    (group,) = compare([file])
    (our_group,) = compare([ours])
    engine, method = figures(group), figures(our_group)
    assert engine.lossless and method.lossless
    assert engine.estimate(ACCEPTANCE_RATE).value == method.estimate(ACCEPTANCE_RATE).value == accepted / drafted
    if dialect == "llama_cpp":
        assert engine.estimate(BLOCK_EFFICIENCY).value is None
    else:
        assert engine.estimate(BLOCK_EFFICIENCY).value == method.estimate(BLOCK_EFFICIENCY).value
    assert engine.estimate(TARGET_AGREEMENT).value == 1.0
    assert engine.estimate(SPEEDUP).value and engine.estimate(TPOT).value


def file_label(file: RunFile) -> str:
    return file.run.methods[1].label


def figures(group: Group) -> MethodFigures:
    return group.pooled.methods[1]


def test_a_file_holds_the_facts_of_engines_and_is_resumed(run_folder: Path, tmp_path: Path) -> None:
    server = program(tmp_path, "llama_cpp")
    label = f"llama_cpp[ngram=3,server={server}]"
    settings = settings_of(run_folder, tmp_path / "out.jsonl", label)
    whole = measure_file(settings)
    infos = [method.engine for method in whole.run.methods]
    assert whole.run.baseline == f"llama_cpp[server={server.name}]"
    assert [str(tmp_path) in f"{each.label} {each.options}" for each in whole.run.methods] == [False, False]
    assert [method.exactness for method in whole.run.methods] == ["exact_greedy"] * 2
    for info in infos:
        assert info is not None and (info.name, info.version, info.run) == ("llama.cpp", VERSION, "started")
        assert info.steps_from == "counts" and str(tmp_path) not in " ".join(info.command)
        assert info.command[info.command.index("-c") + 1] == str(whole.run.target.context_tokens) == "128"
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "out.jsonl").write_bytes(b"".join(lines[:-3]))
    again = measure_file(replace(settings, resume=True))
    assert len(measured(again)) == len(measured(whole)) == 16
    assert [row.token_ids for row in measured(again)] == [row.token_ids for row in measured(whole)]
    assert wait_for(lambda: running(tmp_path) == [])
    agreed = [row.fidelity["target_agreed_tokens"] / row.fidelity["scored_tokens"] for row in measured(whole)]
    assert max(agreed) < 0.5, "the fake has no model, and the target sees it"
    assert whole.run.executor == f"llama.cpp {VERSION}"
    assert {row.verdict for row in measured(whole) if row.label != whole.run.baseline} == {"identical"}


def test_an_engine_is_started_with_the_context_that_the_run_needs(run_folder: Path, tmp_path: Path) -> None:
    """Not with the target's own: a server reserves memory for all of it. The longest prompt has 50 tokens here, with
    24 for an earlier answer."""
    settings = settings_of(run_folder, tmp_path / "out.jsonl", "llama_cpp[ngram=3,server=sh]")
    checked = check(settings, lambda notice: None)
    for own_context_tokens, started_with in ((100_000, 256), (200, 200)):  # 50 + 24 + 128, rounded up
        checked.tokenizer.context_tokens = own_context_tokens
        assert _deployment(checked, lambda: 0.0, print).context_tokens == started_with


@pytest.fixture
def unknown_folder(run_folder: Path, tmp_path: Path) -> Path:
    """The prompts, and a target of a family that benchctl does not run: it keeps a state of convolutions."""
    folder = tmp_path / "unknown"
    shutil.copytree(run_folder, folder)
    sizes: dict[str, Any] = {
        "layer_types": ["conv", "full_attention"],
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "max_position_embeddings": 128,
    }
    Lfm2Config(vocab_size=320, eos_token_id=2, **sizes).save_pretrained(folder / "target")
    return folder


def test_an_engine_is_measured_on_a_target_that_benchctl_cannot_run(unknown_folder: Path, tmp_path: Path) -> None:
    """It was refused: so engines could not be measured on the families of their users, nor on FP8 checkpoints."""

    def differing(prompt: Sequence[int], most: int, stops: Sequence[int]) -> list[Step]:
        *steps, last = counting(prompt, most, stops)
        return [*steps, Step((last.tokens[0] + 1,))] if len(prompt) % 2 else [*steps, last]

    notices: list[str] = []
    with FakeEngine("vllm", counting) as plain, FakeEngine("vllm", differing) as server:
        settings = settings_of(unknown_folder, tmp_path / "out.jsonl", label_of(plain, server))
        checked = check(settings, notices.append)
        assert not checked.has_target and any("'lfm2'" in text for text in notices)
        run(checked, lambda event: None)
    file = read(tmp_path / "out.jsonl")
    info = file.run.target
    assert (info.family, info.layers, info.vocabulary, info.parameters) == ("lfm2", 2, 320, 0)
    assert info.context_tokens == 128 and info.stop_ids == (2,) and len(info.weights_sha256) == 64
    assert {method.exactness for method in file.run.methods} == {"lossy"}
    rows = measured(file)
    assert len(rows) == 16 and all(row.error is None and row.fidelity == {} for row in rows)
    own = [row for row in rows if row.label == file_label(file)]
    expected = [("lossy", NEW_TOKENS - 1) if row.prompt_tokens % 2 else ("identical", None) for row in own]
    assert [(row.verdict, row.first_divergence) for row in own] == expected
    assert {verdict for verdict, _ in expected} == {"lossy", "identical"}
    (group,) = compare([file])
    assert figures(group).estimate(TARGET_AGREEMENT).value is None
    assert 0 < (figures(group).estimate(TOKEN_AGREEMENT).value or 0) < 1 and figures(group).estimate(SPEEDUP).value


def test_equal_answers_of_an_engine_do_not_show_that_they_are_the_targets(unknown_folder: Path, tmp_path: Path) -> None:
    """Without a target nothing says so: agreement was 1 where every answer was the baseline's."""
    with FakeEngine("vllm", counting) as plain, FakeEngine("vllm", counting) as server:
        file = measure(unknown_folder, tmp_path / "out.jsonl", plain, server)
    (group,) = compare([file])
    assert figures(group).estimate(TARGET_AGREEMENT).value is None
    assert figures(group).estimate(TOKEN_AGREEMENT).value == 1 and not figures(group).lossless


def test_a_server_of_text_alone_is_measured_for_its_speed(run_folder: Path, tmp_path: Path, no_weights: None) -> None:
    """Hosted APIs and many local servers send no ids; their speed could not be measured either."""
    with FakeEngine("text", counting) as plain, FakeEngine("text", speculating) as server:
        settings = settings_of(run_folder, tmp_path / "out.jsonl", label_of(plain, server, "ids=none"))
        file = measure_file(settings)
        assert len(plain.asked) == len(server.asked) == 1 + 1 + 8, "a probe, warm-up and answers: none is asked twice"
    prompts = {body["prompt"] for body in server.asked[1:]}
    assert all(isinstance(prompt, str) for prompt in prompts) and any("red ball" in prompt for prompt in prompts)
    text = "".join(f" {token}" for token in range(5, 5 + NEW_TOKENS))
    for row in measured(file):
        assert (row.text, row.token_ids, row.verdict, row.fidelity) == (text, (), None, {})
        assert row.totals is not None and row.totals.new_tokens == NEW_TOKENS
        assert row.ttft_s and row.totals.wall_s and row.ttft_s <= row.totals.wall_s
    assert {method.exactness for method in file.run.methods} == {"lossy"}
    (group,) = compare([file])
    own = figures(group)
    assert own.estimate(SPEEDUP).value and own.estimate(TTFT).value and not own.is_compared and not own.lossless
    assert own.estimate(TARGET_AGREEMENT).value is None and own.estimate(TOKEN_AGREEMENT).value is None
    assert "not compared" in summarise(group).headline


def test_methods_of_our_own_loop_need_a_target_that_benchctl_can_run(unknown_folder: Path, tmp_path: Path) -> None:
    with refused("recurrent_state"):
        check(settings_of(unknown_folder, tmp_path / "out.jsonl", "prompt_lookup"), lambda notice: None)


def test_an_estimate_names_the_engines_that_it_does_not_count(run_folder: Path, tmp_path: Path) -> None:
    """It had the memory of benchctl's own target alone, and the time of its own loop."""
    settings = settings_of(run_folder, tmp_path / "out.jsonl", "llama_cpp[ngram=3,server=sh]")
    words = ["run", "--estimate", "--json", "--model", str(run_folder / "target"), "--limit", "1", "--bench"]
    words += [str(run_folder / "three.jsonl"), "--method", *settings.methods]
    result = cli(*words)
    assert result.exit_code == 0, result.output
    estimated = json.loads(result.stdout)
    assert estimated["engines_not_counted"] == ["llama_cpp[server=sh]", "llama_cpp[ngram=3,server=sh]"]
    assert estimated["seconds"] is None and estimated["memory_bytes"]["cpu"]["parts"]["target"] > 0
    assert "2 engines" in cli(*(word for word in words if word != "--json")).stdout


def test_an_engine_that_dies_fails_its_rows_and_leaves_nothing_running(run_folder: Path, tmp_path: Path) -> None:
    label = f"llama_cpp[ngram=3,server={program(tmp_path, 'llama_cpp', 'dying', 'parent')}]"
    notices: list[str] = []

    def report(event: Notice | Progress) -> None:
        if isinstance(event, Notice):
            notices.append(event.text)

    rows = measure_file(settings_of(run_folder, tmp_path / "out.jsonl", label), report).rows
    errors = [row.error.partition(":")[0] for row in rows if row.error]
    assert len(errors) == len(rows) and {"engine_died"} < {*errors} <= {"engine_died", "answer_cut", "ValueError"}
    shown = [text for text in notices if "engine_died" in text and "out of luck" in text and "code 7" in text]
    assert len(shown) == 2, "the first error of each label, with the last words of its server"
    assert wait_for(lambda: running(tmp_path) == [])


def test_an_engine_that_does_not_start_ends_the_run_and_those_that_did(run_folder: Path, tmp_path: Path) -> None:
    good, bad = program(tmp_path, "llama_cpp"), program(tmp_path, "llama_cpp", "crashing")
    settings = settings_of(run_folder, tmp_path / "out.jsonl", f"llama_cpp[ngram=3,server={good}]")
    checked = check(settings, lambda notice: None)
    broken = LlamaCpp(ngram=3, server=str(bad))
    checked = replace(checked, choices=(checked.choices[0], replace(checked.choices[1], method=broken)))
    with refused("engine_died"):
        run(checked, lambda event: None)
    assert wait_for(lambda: running(tmp_path) == [])


@pytest.mark.parametrize(
    ("labels", "changed", "id"),
    [
        (("vllm", "two_model"), {}, "methods_and_engines"),
        (("all", "vllm"), {}, "methods_and_engines"),
        (("vllm", "sglang"), {}, "several_baselines"),
        (("llama_cpp[limit_s=1]", "llama_cpp"), {}, "several_baselines"),
        (("llama_cpp[server=/a/x,ngram=1]", "llama_cpp[server=/b/x,ngram=1]"), {}, "several_baselines"),
        (("llama_cpp[ngram=1,draft=a.gguf]",), {}, "bad_option_value"),
        (("openai[base_url=x]",), {}, "bad_base_url"),
        (("vllm[tokens=1]",), {}, "unknown_option"),
        (("vllm",), {"answers": AnswerSettings(temperature=0.5)}, "not_for_engines"),
        (("vllm",), {"repeat": RepeatSettings(replay=True)}, "not_for_engines"),
        (("vllm",), {"repeat": RepeatSettings(profile=True)}, "not_for_engines"),
        (("vllm",), {"batch_size": 2}, "not_for_engines"),
        (("vllm",), {"models": ModelSettings(weights="float16")}, "not_for_engines"),
        (("openvino[weights=folder]",), {"models": ModelSettings(weights="float16")}, "not_for_engines"),
    ],
)
def test_what_engines_cannot_do_is_refused_before_anything_starts(
    labels: tuple[str, ...], changed: dict[str, Any], id: str, run_folder: Path, tmp_path: Path, no_weights: None
) -> None:
    settings = replace(settings_of(run_folder, tmp_path / "out.jsonl", *labels), **changed)
    with refused(id):
        check(settings, lambda notice: None)


def test_only_a_label_of_other_weights_may_have_another_number_format() -> None:
    """A quantised file was refused as another engine, since its weights are below float32."""
    facts = EngineInfo(
        name="llama.cpp", version="1", run="started", dtype="float32", prefix_cache="off", steps_from="counts"
    )
    below = replace(facts, dtype="below float32")
    plain, quantised = Choice("llama_cpp", LlamaCpp(), engine=facts), LlamaCpp(quantised="q4.gguf")
    _check_same_engine([plain, Choice("quantised", quantised, engine=below)])
    for method, engine in (
        (LlamaCpp(ngram=3), below),
        (quantised, replace(below, version="2")),
        (quantised, replace(below, name="vLLM")),
    ):
        with refused("another_engine"):
            _check_same_engine([plain, Choice("other", method, engine=engine)])


def test_an_engine_is_no_other_process_on_the_gpu_and_has_none_of_our_memory(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every round of an engine on a GPU was marked as disturbed, by the engine itself."""
    shown = {"foreign_processes": 1.0, "sm_clock_mhz": 1980.0}
    monkeypatch.setattr(runs, "bandwidth_mb_s", lambda device, threads: None)
    monkeypatch.setattr(runs, "make_meter", lambda device, **_: Meter(device, [lambda: lambda: shown]))
    label = f"llama_cpp[ngram=3,server={program(tmp_path, 'llama_cpp')}]"
    file = measure_file(replace(settings_of(run_folder, tmp_path / "out.jsonl", label), watch=True))
    assert {row.invalid for row in file.rows} == {""}
    assert {tuple(row.conditions.items()) for row in file.rows} == {(("sm_clock_mhz", 1980.0),)}
    assert {(row.peak_memory_bytes, row.reserved_memory_bytes) for row in file.rows} == {(None, None)}


def test_marks_of_engines_become_warnings(run_folder: Path, tmp_path: Path, target: Target) -> None:
    with (
        FakeEngine("vllm", answers_of(target, "autoregressive"), "silent") as plain,
        FakeEngine("vllm", answers_of(target, LOOKUP), "silent", "false_counts") as server,
    ):
        file = measure(run_folder, tmp_path / "out.jsonl", plain, server)
    (group,) = compare([file])
    found = {warning.id: warning.values for warning in warnings(group)}
    assert found["prefix_cache_unproved"]["engine"] == "vLLM"
    assert found["counts_wrong"] == {"label": file_label(file), "answers": 8, "generations": 8}
    assert figures(group).estimate(ACCEPTANCE_RATE).value is None
    assert figures(group).estimate(SPEEDUP).value


def test_other_tokens_than_the_baselines_are_lossy_unless_the_target_nearly_ties(
    run_folder: Path, tmp_path: Path, target: Target
) -> None:
    """The engine errs in the last token of each answer: in float32 that breaks its claim; elsewhere it has none."""
    right = answers_of(target, "autoregressive")

    def wrong(prompt: Sequence[int], most: int, stops: Sequence[int]) -> list[Step]:
        *steps, last = right(prompt, most, stops)
        return [*steps, Step(((last.tokens[0] + 7) % target.vocabulary,))]

    with FakeEngine("vllm", right) as plain, FakeEngine("vllm", wrong) as server:
        file = measure(run_folder, tmp_path / "out.jsonl", plain, server)
        other = label_of(plain, server).replace("float32", "bfloat16")
        unclaimed = measure_file(settings_of(run_folder, tmp_path / "other.jsonl", other))
    verdicts = [row.verdict for row in measured(file) if row.label == file_label(file)]
    assert verdicts == ["lossy"] * 8
    (group,), (other_group,) = compare([file]), compare([unclaimed])
    assert figures(group).refused == "claim_broken" and not figures(group).lossless
    assert figures(other_group).refused == "" and figures(other_group).exactness == "lossy"


@pytest.mark.slow
def test_control_c_of_a_run_ends_its_engines(run_folder: Path, tmp_path: Path) -> None:
    server = program(tmp_path, "llama_cpp", "slow", "parent")
    options = (
        f"--model {run_folder}/target --bench {run_folder}/three.jsonl --max-new-tokens 24 --out {tmp_path}/a.jsonl"
    )
    command = [sys.executable, "-m", "benchctl", "run", *options.split()]
    process = subprocess.Popen([*command, "--method", f"llama_cpp[ngram=3,server={server}]"], stderr=subprocess.DEVNULL)
    with process:
        assert wait_for(lambda: len(running(tmp_path)) == 4, 120)
        assert wait_for((tmp_path / "a.jsonl").exists, 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert wait_for(lambda: running(tmp_path) == [])
