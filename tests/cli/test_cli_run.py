"""`benchctl run` as a user meets it: what it prints where, and one clear message for everything that can be wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from click.testing import Result
from command import cli, ok
from fixtures_records import baseline_row, drafted_row, failed, write
from fixtures_run import invoke_run
from plain_t5 import tiny_t5
from tiny import FAMILIES, tiny_folder, tiny_target, tiny_tokenizer
from transformers import AutoModelForCausalLM
from untrained import facts_of, untrained

from benchctl.cli.run import _is_incomplete
from benchctl.decoding.loop import decode
from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.decoding.modules.folders import save_modules
from benchctl.methods.m2r2 import M2R2
from benchctl.methods.medusa import Medusa
from benchctl.records.schema import Row
from benchctl.records.writer import read


def refused(result: Result, code: int = 2) -> str:
    """The message of a refusal: this exit code, nothing on stdout, no traceback, and nothing measured."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "Error: " in result.stderr
    return " ".join(result.stderr.partition("Error: ")[2].split())


def test_a_run_ends_with_the_table_and_the_files_name(here: Path) -> None:
    result = ok(invoke_run("--method", "two_model", "--method", "prompt_lookup"))
    assert all(label in result.stdout for label in ("autoregressive", "two_model", "prompt_lookup", "speed-up"))
    assert result.stdout.splitlines()[-1] == "Results: out.jsonl"
    assert len(read(here / "out.jsonl").rows) == (4 * 2 + 1) * 3
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_table_has_the_width_of_the_terminal(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It always had 80 columns."""
    monkeypatch.setenv("COLUMNS", "50")
    *table, more, results = invoke_run("--method", "prompt_lookup").stdout.splitlines()
    assert 40 < max(map(len, table)) <= 50 and "--full" in more and results == "Results: out.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", sorted({*FAMILIES} - {"t5", "gpt2", "gpt_neox", "gpt_oss", "qwen2_moe", "qwen3_moe", "llama"})
)
def test_a_run_on_a_family_gives_the_answers_of_transformers(family: str, here: Path) -> None:
    folder = tiny_folder(here / family, family, layers=4)
    methods = ("--method", "prompt_lookup", "--method", "skip_layers", "--method", "early_exit[mode=draft]")
    ok(invoke_run("--model", folder, *methods, "--repeats", "1", "--max-new-tokens", "16"))
    rows = [row for row in read(here / "out.jsonl").rows if row.repeat == 0]
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = load_tokenizer(folder)
    assert len({row.label for row in rows}) == 4
    for row in rows:
        if row.prompt_id == "short":
            ids = torch.tensor([tokenizer.encode_chat([{"role": "user", "content": "Say something."}])])
            theirs = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :].tolist()
            assert list(row.token_ids) == theirs, row.label


@pytest.mark.slow
def test_a_sweep_measures_every_combination(here: Path) -> None:
    """Alone it does not bring in the methods that run by default; beside labels it adds to them."""
    sweep = ("--sweep", "two_model[draft_tokens=2|3,confidence=0|0.5]")
    ok(invoke_run(*sweep, "--repeats", "1"))
    labels = [method.label for method in read(here / "out.jsonl").run.methods]
    options = ("draft_tokens=2,confidence=0.0", "draft_tokens=2", "draft_tokens=3,confidence=0.0", "draft_tokens=3")
    assert labels == ["autoregressive", *(f"two_model[{each}]" for each in options)]
    ok(invoke_run(*sweep, "--method", "prompt_lookup", "--repeats", "1", "--out", "both.jsonl"))
    assert len(read(here / "both.jsonl").run.methods) == 6


@pytest.fixture
def unread(here: Path) -> Path:
    """Folders of models whose weights are not there, or are none, and of modules that were made for another one."""
    for name in ("absent", "broken"):
        shutil.copytree(here / "target", here / name)
        (here / name / "model.safetensors").unlink()
    (here / "broken" / "model.safetensors").write_bytes(b"no weights")
    tiny_t5(vocabulary=320).config.save_pretrained(here / "encoding")
    tiny_tokenizer(chat=False).save_pretrained(here / "encoding")
    larger = tiny_target("llama", layers=4)
    for folder, name, method in (("made", "m2r2", M2R2(gates="3")), ("heads", "medusa", Medusa(heads=2))):
        save_modules(here / folder, untrained(method, larger), facts_of(name, method, larger))
    return here


@pytest.mark.parametrize(
    ("model", "label", "message"),
    [
        ("absent", "early_exit[exits=40]", "exit 40 is not below the target's 3 layers"),
        ("absent", "lookahead[window=4000]", "4001 tokens ahead"),
        ("absent", "skip_decode[adapters=none,min_layers=99]", "min_layers 99"),
        ("absent", "m2r2[gates=3,modules=made]", "gate 3"),
        ("absent", "expert_offload", "mixture of experts"),
        ("encoding", "lookahead", "has an encoder"),
        ("encoding", "early_exit[exits=5]", "exit 5 is not below the target's 4 layers"),
    ],
)
def test_options_that_do_not_fit_the_target_are_refused_before_its_weights_are_read(
    unread: Path, model: str, label: str, message: str
) -> None:
    """By its configuration: reading weights may take minutes."""
    printed = refused(invoke_run("--method", label, "--model", model, "--draft-model", ""))
    assert printed.startswith(label.partition("[")[0]) and message in printed
    assert not (unread / "out.jsonl").exists()


def test_modules_for_a_target_of_other_sizes_are_refused_before_weights_are_read(unread: Path) -> None:
    printed = refused(invoke_run("--method", "medusa[heads=2,modules=heads]", "--model", "absent"))
    assert "4 layers of 32" in printed and "3 layers of 32" in printed


def test_modules_for_other_options_are_refused_before_weights_are_read(unread: Path) -> None:
    target = tiny_target("llama", vocab_size=320)
    save_modules(unread / "gate1", untrained(M2R2(gates="1"), target), facts_of("m2r2", M2R2(gates="1"), target))
    printed = refused(invoke_run("--method", "m2r2[gates=2,modules=gate1]", "--model", "absent"))
    assert "other shapes" in printed and "trained with gates=1; give that" in printed


@pytest.mark.parametrize("model", ["absent", "broken"])
def test_what_all_brings_in_does_not_keep_weights_from_being_read(unread: Path, model: str) -> None:
    printed = refused(invoke_run("--method", "all", "--model", model))
    assert "cannot load" in printed and "cannot run" not in printed


def test_away_from_a_terminal_there_is_a_line_at_the_start_and_one_at_the_end(here: Path) -> None:
    """And with --json nothing else on stdout. What transformers draws while it loads is its own."""
    result = invoke_run("--method", "prompt_lookup", "--json")
    assert json.loads(result.stdout)
    lines = result.stderr.splitlines()
    start, end, more, results = [line for line in lines if line and not line.startswith("Loading weights")]
    assert all(fact in start for fact in ("3 of three (file)", "target, float32, cpu, 1 thread"))
    assert start.endswith("autoregressive, prompt_lookup. -> out.jsonl")
    assert end.startswith("16 generations ")
    assert more == "more: benchctl compare out.jsonl --full" and results == "Results: out.jsonl"


def test_every_option_and_the_command_line_reach_the_record(here: Path) -> None:
    words = "--method two_model --limit 1 --temperature 0.5 --top-p 0.9 --top-k 7 --seed 3 --repeats 1 --dtype float64"
    ok(invoke_run(*words.split(), "--max-new-tokens", "3", "--threads", "2", "--warm-up", "0"))
    file = read(here / "out.jsonl")
    run = file.run
    assert run.command[:3] == ("benchctl", "run", "--no-watch") and run.command[-1] == "0"
    assert (run.temperature, run.top_p, run.top_k, run.seed) == (0.5, 0.9, 7, 3)
    assert (run.repeats, run.dtype, run.max_new_tokens, run.threads) == (1, "float64", 3, 2)
    assert [(row.label, row.verdict) for row in file.rows] == [("autoregressive", None), ("two_model", "sampled")]


@pytest.mark.slow
def test_a_run_without_labels_and_out_runs_every_method_that_can_into_a_file_in_results(here: Path) -> None:
    usual = "run --model target --bench three.jsonl --device cpu --max-new-tokens 3 --repeats 1"
    result = ok(cli(*usual.split()))
    (results,) = (here / "results").glob("three-*.jsonl")
    assert result.stdout.splitlines()[-1] == f"Results: results/{results.name}"
    assert "two_model cannot run here" in result.stderr and "--draft-model" in result.stderr
    labels = {row.label for row in read(results).rows}
    assert {"autoregressive", "prompt_lookup", "early_exit"} <= labels and "two_model" not in labels


@pytest.mark.usefixtures("here")
def test_an_interrupted_run_prints_the_command_that_continues_with_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("benchctl.measuring.run.run", interrupt)
    words = "run --method two_model --model target --draft-model draft --bench three.jsonl --device cpu"
    result = cli(*words.split())
    assert result.exit_code == 130
    assert f"benchctl {words} --out results/three-two_model-" in result.stderr and "--resume" in result.stderr


@pytest.mark.usefixtures("here", "no_weights")
class TestRefusals:
    """Each before any weights are loaded."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--method two_modell", "Did you mean 'two_model'?"),
            ("--method two_model[drafts=3]", "draft_vocabulary=stored, draft_tokens=6"),
            ("--method two_model[draft_tokens=0]", "draft_tokens is 0; it must be at least 1"),
            ("--bench kola", 'unknown suite "kola"'),
            ("--bench nowhere.jsonl", "nowhere.jsonl"),
            ("--model nowhere", "'nowhere'"),
            ("--draft-model nowhere", "'nowhere'"),
            ("--max-new-tokens 0", "'--max-new-tokens'"),
            ("--limit 0", "'--limit'"),
            ("--repeats 0", "'--repeats'"),
            ("--threads 0", "'--threads'"),
            ("--temperature nan", "'--temperature'"),
            ("--top-p 0", "'--top-p'"),
            ("--top-k -1", "'--top-k'"),
            ("--dtype float8", "'--dtype'"),
            (f"--out {'x' * 300}.jsonl", "--out"),
            ("--out target", "--out"),
            ("--device cuda", "--device cpu"),
            ("--model nobody/no-such-model", "network"),
            ("--fast", "--fast"),
            ("--replay --temperature 0.5", "--replay forces a greedy text"),
            ("--context 127", "--context 127 leaves no room for a prompt: the target takes 128 tokens"),
            ("--context 100", "of 128 tokens, of which --context leaves 28"),
            ("--context -1", "'--context'"),
            ("--sessions 0", "'--sessions'"),
            ("--batch-size 4 --method two_model", "a number of tokens of its own"),
            ("--batch-size 4 --method early_exit[threshold=0.5]", "a layer of its own"),
            ("--batch-size 4 --method expert_offload", "experts of its own"),
        ],
    )
    def test_a_wrong_argument(self, arguments: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        assert message in refused(invoke_run(*arguments.split()))

    @pytest.mark.parametrize(
        ("words", "advice"), [("two_model", "--draft-model"), ("prompt_lookup --resume", "--out FILE")]
    )
    def test_what_lacks_its_draft_model_or_its_file(self, words: str, advice: str) -> None:
        usual = "run --model target --bench three.jsonl --method"
        assert advice in refused(cli(*usual.split(), *words.split()))

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("--bench bad.jsonl", "bad.jsonl:2"),
            ("--out bad.jsonl/out.jsonl", "--out"),
            ("--model empty", "cannot load"),
        ],
    )
    def test_files_and_folders_that_cannot_be_used(self, here: Path, words: str, message: str) -> None:
        """A path below an ordinary file: permissions would not stop the root user."""
        (here / "empty").mkdir()
        (here / "bad.jsonl").write_text('{"prompt": "Hi"}\n{"prompt": \n')
        assert message in refused(invoke_run(*words.split()))

    def test_an_existing_file_is_never_written_over(self, here: Path) -> None:
        """Nor by --resume where it is no results file."""
        (here / "out.jsonl").write_text("dear\n")
        message = refused(invoke_run())
        assert "--resume" in message and "--out" in message
        assert "out.jsonl:1" in refused(invoke_run("--resume"), code=3)
        assert (here / "out.jsonl").read_text() == "dear\n"


def test_resuming_with_other_settings_is_refused_and_keeps_every_row(here: Path) -> None:
    assert invoke_run("--method", "prompt_lookup").exit_code == 0
    before = (here / "out.jsonl").read_bytes()
    for change in (["--seed", "9"], ["--method", "two_model"], ["--limit", "1"], ["--model", "draft"]):
        message = refused(invoke_run("--method", "prompt_lookup", "--resume", *change))
        assert "cannot be resumed" in message and "differs" in message, change
    assert (here / "out.jsonl").read_bytes() == before


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("out of luck")


def test_failed_generations_are_counted_and_when_all_fail_so_does_the_command(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --resume it did not: nothing was left to measure."""
    monkeypatch.setattr("benchctl.measuring.measure.decode", fail)
    result = invoke_run("--method", "prompt_lookup")
    assert result.exit_code == 1
    assert "16 FAILED" in result.stderr
    assert result.stderr.count("RuntimeError: out of luck") == 2  # the first error of each label
    errors = {row.error for row in read(here / "out.jsonl").rows if row.turn == 0}
    assert errors == {"RuntimeError: out of luck"}
    again = invoke_run("--method", "prompt_lookup", "--resume")
    assert (again.exit_code, again.stdout.splitlines()[-1]) == (1, "Results: out.jsonl")


def test_a_resumed_run_whose_last_generation_fails_succeeds(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was the only one that this process measured, so the exit code was 1."""
    words = ("--method", "prompt_lookup", "--repeats", "1")
    ok(invoke_run(*words))
    lines = (here / "out.jsonl").read_bytes().splitlines(keepends=True)
    (here / "out.jsonl").write_bytes(b"".join(lines[:-1]))
    monkeypatch.setattr("benchctl.measuring.measure.decode", fail)
    ok(invoke_run(*words, "--resume"))
    errors = [row.error for row in read(here / "out.jsonl").rows if row.repeat >= 0 and row.error]
    assert errors == ["RuntimeError: out of luck"]


LACKING = failed(baseline_row("p1"), "out_of_memory: no room")


@pytest.mark.parametrize(
    ("rows", "incomplete"),
    [
        ([failed(baseline_row())], True),
        ([baseline_row(), failed(baseline_row("p1"))], False),
        ([baseline_row(), failed(drafted_row())], True),
        ([baseline_row(), drafted_row(), failed(drafted_row("p1"))], False),
        ([baseline_row(), drafted_row(), failed(drafted_row("p1"), "engine_died: killed")], True),
        ([baseline_row(), LACKING], True),
        ([baseline_row(), LACKING, replace(baseline_row("p1"), repeat=1)], True),
        ([baseline_row(), LACKING, replace(baseline_row("p1"), repeat=2)], False),  # repeat 0, measured again
        ([baseline_row(), LACKING, replace(LACKING, repeat=2)], True),
        ([baseline_row(), replace(LACKING, repeat=-1)], False),  # warm-up
    ],
)
def test_a_run_is_incomplete_by_all_that_its_file_has(rows: Sequence[Row], incomplete: bool, tmp_path: Path) -> None:
    assert _is_incomplete(read(write(tmp_path / "run.jsonl", rows))) == incomplete


def test_an_interrupted_run_keeps_what_was_measured(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def interrupt(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return decode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("benchctl.measuring.measure.decode", interrupt)
    result = invoke_run("--method", "prompt_lookup")
    assert result.exit_code == 130
    assert "--resume" in result.stderr
    assert len(read(here / "out.jsonl").rows) == 5
