"""Folders written as GGUF files: read back, they are the same model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from ggufs import CONFIGS, bpe, tiny
from refusals import refused
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.gguf import converted
from benchctl.gguf_export import _hash, _in_pairs, check_exportable, exported


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
    ("family", "changed", "id"),
    [
        ("qwen2", {"model_type": "bloom"}, "unknown_family"),
        ("qwen2", {"model_type": "mixtral"}, "not_exportable"),
        ("qwen2", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "changed_arithmetic"),
        ("qwen2", {"hidden_act": "gelu"}, "changed_arithmetic"),
        ("qwen2", {"use_sliding_window": True}, "changed_arithmetic"),
        ("qwen2", {"eos_token_id": [1, 2, 3, 4]}, "no_end_token"),
        ("llama", {"eos_token_id": None}, "no_end_token"),
    ],
)
def test_models_that_gguf_cannot_hold_are_refused(
    tmp_path: Path, family: str, changed: dict[str, object], id: str
) -> None:
    source = folder_of(tmp_path, family)
    (source / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | changed))
    with refused(id):
        check_exportable(source)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with refused("no_model_folder"):
        check_exportable(tmp_path)


def test_weights_of_another_model_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    source = folder_of(tmp_path, "llama")
    weights = load_file(source / "model.safetensors")
    removed = weights.pop("model.norm.weight")
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    with refused("weights_do_not_fit"):
        exported(source, tmp_path / "out", "F32", print)
    weights["model.norm.weight"] = removed
    weights["model.layers.0.self_attn.q_proj.weight"][0, 0] = 1e6  # too large for float16
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    _hash.cache_clear()
    with refused("too_large_for_float16"):
        exported(source, tmp_path / "out", "F16", print)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("ends", [[2], [2, 5], [7, 2, 5]])
def test_tokens_that_end_an_answer_are_those_of_the_target(tmp_path: Path, ends: list[int]) -> None:
    """The generation configuration goes first, as in our own loop."""
    from gguf import GGUFReader

    source = folder_of(tmp_path, "llama")
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    file = exported(source, tmp_path, "F16", print)
    reader = GGUFReader(file)
    names = ("eos", "eot", "eom")[: len(ends)]
    assert [reader.fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in names] == sorted(ends)
    assert Target.load(source).stop_ids == load_tokenizer(converted(file, tmp_path / "back")).stop_ids == {*ends}


def test_rows_of_queries_and_keys_are_interleaved() -> None:
    assert _in_pairs(np.arange(8), 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_frequency_table_of_an_older_checkpoint_is_left_out(tmp_path: Path) -> None:
    source = folder_of(tmp_path, "llama")
    weights = load_file(source / "model.safetensors")
    before = exported(source, tmp_path, "F32", print).read_bytes()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    _hash.cache_clear()
    assert exported(source, tmp_path / "other", "F32", print).read_bytes() == before
