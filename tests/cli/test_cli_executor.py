"""A model that our own layers do not know, through the command line: who runs it is printed, recorded and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command import cli, ok
from fixtures_run import invoke_run
from tiny import tiny_tokenizer
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig

from benchctl.records.writer import read

SIZES: dict[str, Any] = {
    **{"vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.5},
}


def random_folder(folder: Path, kind: str, seed: int = 0) -> Any:
    """A random model of this type with a tokenizer; returns the model."""
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**SIZES))  # type: ignore[no-untyped-call]
    model.generation_config = GenerationConfig(eos_token_id=2)  # type: ignore[no-untyped-call]
    model.eval().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return model


@pytest.mark.slow
def test_a_model_that_only_transformers_knows_is_measured(here: Path) -> None:
    model = random_folder(here / "other", "stablelm")
    methods = ("prompt_lookup", "two_model[confidence=0.0]", "draft_tree", "suffix", "early_exit[threshold=0.5]")
    asked = [word for label in methods[:-1] for word in ("--method", label)]
    result = ok(invoke_run("--model", "other", *asked, "--method", "all", "--repeats", 1))
    assert "stablelm" in result.stderr and "transformers" in result.stderr
    assert "run by transformers" in result.stdout
    file = read(here / "out.jsonl")
    assert (file.run.executor, file.run.attention) == ("transformers", "sdpa")
    assert file.run.draft is not None and file.run.draft.family == "llama"
    left_out = {method.name for method in file.run.methods if method.unsupported}
    assert {"early_exit", "m2r2", "eagle", "skip_layers"} <= left_out
    assert not {"lookahead", "token_recycling", "combine"} & left_out
    rows = [row for row in file.rows if row.repeat >= 0]
    assert {row.error for row in rows} == {None} and {row.verdict for row in rows} <= {"identical", None}
    assert {layers for row in rows for layers in row.layers} == {2}
    (plain,) = (row for row in rows if (row.label, row.prompt_id) == ("autoregressive", "short"))
    tokenizer = tiny_tokenizer()
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Say something."}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=5, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert list(plain.token_ids) == out.tolist()


@pytest.mark.parametrize(
    ("kind", "words", "error"),
    [
        ("stablelm", "--method prompt_lookup --executor static", "--executor transformers"),
        ("stablelm", "--method early_exit[threshold=0.5]", "as a whole"),
        ("stablelm", "--method prompt_lookup --weights float16", "--weights cannot be used"),
        ("stablelm", "--batch-size 2 --method autoregressive", "--batch-size cannot be used"),
        ("mamba2", "--method prompt_lookup", "recurrent state"),
    ],
)
def test_what_transformers_cannot_run_is_refused_before_weights_are_read(
    here: Path, kind: str, words: str, error: str
) -> None:
    CONFIG_MAPPING[kind](**{**SIZES, "num_heads": 8, "head_dim": 8}).save_pretrained(here / "other")
    tiny_tokenizer().save_pretrained(here / "other")
    result = invoke_run("--model", "other", *words.split())
    assert result.exit_code == 2 and error in " ".join(result.stderr.split())


@pytest.mark.slow
def test_a_tree_is_refused_where_a_model_runs_none(here: Path) -> None:
    random_folder(here / "other", "bloom")
    result = invoke_run("--model", "other", "--method", "draft_tree")
    assert result.exit_code == 2 and "branches" in result.stderr


@pytest.mark.slow
def test_figures_of_two_executors_are_not_compared(here: Path) -> None:
    common = ("--method", "prompt_lookup", "--repeats", 1)
    ok(invoke_run(*common))
    ok(invoke_run(*common, "--executor", "transformers", "--out", "whole.jsonl"))
    one, other = (read(here / name) for name in ("out.jsonl", "whole.jsonl"))
    answers = [[row.token_ids for row in file.rows if row.label == "prompt_lookup"] for file in (one, other)]
    assert answers[0] == answers[1] and one.run.target == other.run.target
    result = cli("compare", "out.jsonl", "whole.jsonl")
    assert result.exit_code == 2
    assert "executor is transformers" in " ".join(result.stdout.split())


@pytest.mark.slow
def test_an_estimate_knows_the_memory_and_not_the_time(here: Path) -> None:
    model = random_folder(here / "other", "stablelm")
    result = ok(invoke_run("--model", "other", "--method", "prompt_lookup", "--estimate"))
    assert "time: unknown" in result.stdout
    result = ok(invoke_run("--model", "other", "--method", "prompt_lookup", "--estimate", "--json"))
    found = json.loads(result.stdout)
    held = sum(weight.numel() for weight in model.parameters()) * 4
    assert found["memory_bytes"]["cpu"]["parts"]["target"] == held and found["seconds"] is None
