"""Folders written as GGUF files: read back, they are the same model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from ggufs import CONFIGS, bpe, tiny
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.errors import UserError
from benchctl.gguf import converted
from benchctl.gguf_export import _hash, check_exportable, exported


def folder_of(tmp_path: Path, family: str) -> Path:
    tokenizer, folder = bpe("qwen2" if family == "qwen2" else "gpt-2"), tmp_path / "source"
    model = tiny(family, tokenizer.get_vocab_size() + 3)  # rows of the embedding that no token has
    model.config.eos_token_id = 2
    model.save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)  # type: ignore[no-untyped-call]
    wrapped.save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("family", list(CONFIGS))
def test_weights_are_those_of_the_folder(tmp_path: Path, family: str) -> None:
    source = folder_of(tmp_path, family)
    lines = list[str]()
    file = exported(source, tmp_path, "F32", lines.append)
    back = converted(file, tmp_path / "cache")
    weights, read = load_file(source / "model.safetensors"), load_file(back / "model.safetensors")
    assert weights.keys() == read.keys() and all(torch.equal(weights[name], read[name]) for name in weights)
    there, here = Target.load(source), Target.load(back)
    assert torch.equal(there.next_logits([5, 9, 40]), here.next_logits([5, 9, 40]))
    assert there.stop_ids == here.stop_ids == {2}

    assert lines == [f"Writing {file}, once."]
    written = file.stat().st_mtime_ns
    assert exported(source, tmp_path, "F32", lines.append) == file
    assert file.stat().st_mtime_ns == written and len(lines) == 1
    assert not list(tmp_path.glob(".partial*"))


def test_f16_rounds_matrices_only(tmp_path: Path) -> None:
    source = folder_of(tmp_path, "llama")
    back = converted(exported(source, tmp_path, "F16", lambda line: None), tmp_path / "cache")
    weights, read = load_file(source / "model.safetensors"), load_file(back / "model.safetensors")
    for name, weight in weights.items():
        expected = weight.half() if weight.dim() > 1 else weight
        assert torch.equal(expected.float(), read[name].float()), name


def test_each_token_is_its_number(tmp_path: Path) -> None:
    """So no token is a part of a character, and none looks like an end."""
    tokenizer = load_tokenizer(
        converted(exported(folder_of(tmp_path, "llama"), tmp_path, "F16", print), tmp_path / "c")
    )
    assert [tokenizer.decode_text([number]) for number in (0, 1, 10, 200)] == ["0", "1", "10", "200"]


def test_other_files_of_the_folder_are_no_weights_of_the_model(tmp_path: Path) -> None:
    source = folder_of(tmp_path, "llama")
    before = exported(source, tmp_path, "F32", print)
    (source / "draft_vocabulary.safetensors").write_bytes(b"")
    assert exported(source, tmp_path, "F32", print) == before
    _hash.cache_clear()
    assert exported(source, tmp_path, "F32", print) == before
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(source)
        model.lm_head.weight[0, 0] += 1
        model.save_pretrained(source)
    _hash.cache_clear()
    assert exported(source, tmp_path, "F32", print) != before


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model_type": "gpt2"}, "only llama, qwen2, qwen3"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "scaled rotary positions"),
        ({"use_sliding_window": True}, "sliding windows"),
    ],
)
def test_models_that_gguf_cannot_hold_are_refused(tmp_path: Path, changed: dict[str, object], words: str) -> None:
    source = folder_of(tmp_path, "qwen2")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(UserError, match=words):
        check_exportable(source)
