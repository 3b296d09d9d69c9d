"""OpenVINO GenAI on a tiny GGUF file gives the target's own tokens, and its chunks are its steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_run import make_settings, measure_file, measured, write_prompts
from ggufs import bpe, tiny, write_gguf

from benchctl.errors import UserError
from benchctl.measuring.settings import AnswerSettings, ModelSettings, PromptSettings
from benchctl.registry import build_engine, parse_label

PROMPTS = [
    {"id": str(number), "prompt": text} for number, text in enumerate(("été été été", "x ** 2 x ** 2", "12,345"))
]


@pytest.mark.slow
def test_openvino_answers_as_our_own_loop_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino_genai", reason="openvino is not installed here")
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    tokenizer = bpe("gpt-2")
    write_gguf(
        tmp_path / "tiny.gguf", tiny("llama", tokenizer.get_vocab_size()), "llama", tokenizer, "gpt-2", kind="F16"
    )
    settings = replace(
        make_settings(tmp_path, tmp_path / "out.jsonl"),
        prompts=PromptSettings(benches=(str(write_prompts(tmp_path / "prompts.jsonl", PROMPTS)),)),
        models=ModelSettings(str(tmp_path / "tiny.gguf"), device="cpu"),
        answers=AnswerSettings(max_new_tokens=40),
    )
    engine = measure_file(replace(settings, methods=("openvino[lookup=2]",)))
    ours = measure_file(replace(settings, methods=("autoregressive",), out=tmp_path / "ours.jsonl"))
    answers = {row.prompt_id: row.token_ids for row in measured(ours)}
    rows = measured(engine)
    assert len(rows) == 12 and not any(row.error for row in rows)
    for row in rows:
        assert row.token_ids == answers[row.prompt_id]
        assert row.fidelity["target_agreed_tokens"] == row.fidelity["scored_tokens"] == len(row.token_ids)
        if row.label == "openvino":
            assert row.committed == (1,) * (len(row.token_ids) - 1) and row.verdict is None
        else:
            assert row.verdict == "identical" and row.totals is not None
            assert row.totals.steps == len(row.arrived_tokens) - 1
    drafting = [row.totals.steps or 0 for row in rows if row.totals]
    assert 0 < sum(drafting) < sum(len(row.token_ids) - 1 for row in rows if row.totals), "some drafts were accepted"
    assert (info := engine.run.methods[1].engine) and (info.run, info.dtype) == ("in_process", "float32")


def test_a_folder_of_transformers_is_refused_before_anything_is_loaded() -> None:
    pytest.importorskip("openvino_genai", reason="openvino is not installed here")
    with pytest.raises(UserError) as error:
        build_engine(parse_label("openvino")).check("folder")
    assert error.value.id == "needs_gguf"
