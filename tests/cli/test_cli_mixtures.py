"""Mixtures of experts of today through the command line: what `run` measures, and what it estimates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from command import ok
from fixtures_run import invoke_run
from tiny import tiny_folder, tiny_model

from benchctl.decoding.model.target import Target, outline
from benchctl.measuring.clock import Clock
from benchctl.measuring.duration import calibrate
from benchctl.records.writer import read

NEW_TOKENS = 12
LABELS = ("prompt_lookup", "two_model", "draft_tree", "expert_offload[prefetch=next_gate]")


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["qwen3_moe_dense_first_window", "qwen2_moe", "gpt_oss"])
def test_a_run_has_the_tokens_of_transformers(variant: str, here: Path) -> None:
    target = Target.load(tiny_folder(here / "mixture", variant))
    asked = [word for label in LABELS for word in ("--method", label)]
    ok(invoke_run("--model", "mixture", *asked, "--estimate"))
    ok(invoke_run("--model", "mixture", *asked, "--max-new-tokens", NEW_TOKENS, "--repeats", 1))
    rows = [row for row in read(here / "out.jsonl").rows if row.repeat >= 0]
    assert len(rows) == 4 * (1 + len(LABELS)) and {(row.error, row.verdict) for row in rows[1:]} <= {
        (None, "identical"),
        (None, None),
    }
    loader: Any = transformers.AutoModelForCausalLM
    model = loader.from_pretrained(here / "mixture", dtype=torch.float32).eval()
    prompt = target.tokenizer.encode_chat([{"role": "user", "content": "Say something."}])
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "use_cache": False}
    expected = model.generate(torch.tensor([prompt]), **settings)[0, len(prompt) :].tolist()
    answers = [list(row.token_ids) for row in rows if row.prompt_id == "short"]
    assert answers == [expected] * (1 + len(LABELS))


@pytest.mark.parametrize("variant", ["qwen3_moe_every_second", "qwen2_moe", "gpt_oss"])
def test_layers_of_these_shapes_can_be_timed(variant: str) -> None:
    target = outline(tiny_model(variant).config)
    step_s, row_s = calibrate(target, "plain", "cpu", Clock("cpu"))
    assert step_s > row_s > 0
