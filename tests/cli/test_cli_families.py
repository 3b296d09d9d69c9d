"""Targets with learned positions or parallel MLPs through the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from command import ok
from fixtures_run import invoke_run
from tiny import tiny_folder
from transformers import AutoModelForCausalLM

from benchctl.decoding.model.target import Target
from benchctl.records.writer import read

LABELS = ("autoregressive", "prompt_lookup", "draft_tree", "early_exit[mode=draft,threshold=0.0,exits=1]")
NEW_TOKENS = 12


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_a_run_measures_the_answers_of_transformers(family: str, here: Path) -> None:
    tiny_folder(here / family, family, max_position_embeddings=256)
    asked = [word for label in LABELS[1:] for word in ("--method", label)]
    lengths = ("--max-new-tokens", NEW_TOKENS, "--repeats", 1)
    ok(invoke_run("--model", family, *asked, *lengths))
    rows = [row for row in read(here / "out.jsonl").rows if row.repeat >= 0]
    assert [row.error for row in rows] == [None] * len(rows) and {row.label for row in rows} == {*LABELS}
    assert {row.verdict for row in rows if row.label != LABELS[0]} == {"identical"}
    prompt = Target.load(here / family).tokenizer.encode_chat([{"role": "user", "content": "Say something."}])
    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(here / family).eval()
    answer = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)[0, len(prompt) :]
    (plain,) = (row for row in rows if (row.label, row.prompt_id) == (LABELS[0], "short"))
    assert list(plain.token_ids) == answer.tolist()
