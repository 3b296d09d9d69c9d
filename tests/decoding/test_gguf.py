"""GGUF files: weights, tokenizers and errors, on files made here from models of known weights."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import ggufs
import pytest
import torch
from gguf import GGUFWriter
from ggufs import CONFIGS, SPLITS, TEXTS, bpe, tiny, write_gguf
from refusals import refused
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.gguf import convert, converted

EOS = "tokenizer.ggml.eos_token_id"


def plain_file(folder: Path, **changed: Any) -> Path:
    tokenizer, file = bpe("gpt-2"), folder / "a.gguf"
    write_gguf(file, tiny("llama", tokenizer.get_vocab_size()), "llama", tokenizer, "gpt-2", **changed)
    return file


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("family", list(CONFIGS))
def test_logits_are_those_of_the_weights_that_the_file_stands_for(tmp_path: Path, family: str, kind: str) -> None:
    split = "qwen2" if family == "qwen2" else "gpt-2"
    tokenizer = bpe(split)
    model = tiny(family, tokenizer.get_vocab_size())
    stands_for = write_gguf(tmp_path / "tiny.gguf", model, family, tokenizer, split, kind)
    model.load_state_dict(stands_for, strict=False)

    target = Target.load(converted(tmp_path / "tiny.gguf", tmp_path / "cache"))

    ids = tokenizer.encode(TEXTS[0]).ids
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(target.next_logits(ids), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "split"), [*(("llama", split) for split in SPLITS), ("qwen2", "qwen2"), ("qwen3", "qwen2")]
)
def test_text_is_split_as_by_the_original(tmp_path: Path, family: str, split: str) -> None:
    """Also where another tokenizer lies next to the file."""
    original = bpe(split)
    write_gguf(tmp_path / "a.gguf", tiny(family, original.get_vocab_size()), family, original, split)
    bpe("gpt-2" if split == "smollm" else "smollm").save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(converted(tmp_path / "a.gguf", tmp_path / "cache"))
    for text in TEXTS:
        assert tokenizer.encode_text(text) == original.encode(text).ids
        assert tokenizer.decode_text(tokenizer.encode_text(text)) == text
    chat = tokenizer.encode_chat([{"role": "user", "content": "12"}])
    assert chat == original.encode("<|im_start|>user\n12<|im_end|>\n").ids
    assert chat[0] == 1


@pytest.mark.parametrize(
    ("template", "unknown", "sources"),
    [
        (ggufs.TEMPLATE, None, {1: "GGUF", 2: "chat template", 0: "token name"}),
        (ggufs.TEMPLATE, 0, {1: "GGUF", 2: "chat template"}),
        ("", None, {1: "GGUF", 2: "token name", 0: "token name"}),
        (ggufs.TEMPLATE.replace("<|im_end|>", "<|im_start|>"), 0, {1: "GGUF", 2: "token name"}),
    ],
)
def test_answers_end_at_the_end_of_a_turn_that_the_file_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, unknown: int | None, sources: dict[int, str]
) -> None:
    """Files of chat models whose eos is the end of a text: llama.cpp ends answers also at <|im_end|> and the like.
    Here answers went on past the end of the turn. SmolLM2's unknown token has such a name, and ends no answer."""
    monkeypatch.setattr(GGUFWriter, "add_eos_token_id", lambda self, _: self.add_uint32(EOS, 1))
    monkeypatch.setattr(GGUFWriter, "add_chat_template", lambda self, _: write_rest(self))

    def write_rest(writer: GGUFWriter) -> None:
        if template:
            writer.add_string("tokenizer.chat_template", template)
        if unknown is not None:
            writer.add_unk_token_id(unknown)

    tokenizer = load_tokenizer(converted(plain_file(tmp_path), tmp_path / "cache"))
    assert tokenizer.stop_sources == sources
    assert tokenizer.stop_ids == sources.keys()
    assert tokenizer.missing_stop is None


def test_the_pre_tokenizers_differ() -> None:
    assert len({tuple(bpe(split).encode(" ".join(TEXTS)).ids) for split in SPLITS}) == len(SPLITS)


def test_a_piece_that_is_a_token_is_not_merged(tmp_path: Path) -> None:
    """As Llama 3 reads: no merge leads to the token, so only its own entry gives it."""
    facts = json.loads(bpe("llama-bpe").to_str())
    facts["model"]["vocab"]["zqz"] = len(facts["model"]["vocab"])
    original = Tokenizer.from_str(json.dumps(facts))
    write_gguf(tmp_path / "a.gguf", tiny("llama", original.get_vocab_size()), "llama", original, "llama-bpe")
    tokenizer = load_tokenizer(converted(tmp_path / "a.gguf", tmp_path / "cache"))
    assert tokenizer.encode_text("zqz") == original.encode("zqz").ids == [original.token_to_id("zqz")]


def test_a_sentencepiece_vocabulary_keeps_every_space(tmp_path: Path, shared: Path) -> None:
    folder = shared / "models" / "stories260K"
    if not folder.is_dir():
        pytest.skip("no stories260K here")
    original = Tokenizer.from_file(str(folder / "tokenizer.json"))
    facts = json.loads(original.to_str())["model"]
    tokens = sorted(facts["vocab"], key=facts["vocab"].__getitem__)
    rank = {"".join(pair): -float(number) for number, pair in enumerate(facts["merges"], 1)}  # first merges score best
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    file = tmp_path / "stories.gguf"
    write_gguf(file, model, "llama", original, "default", scores=[rank.get(t, 0.0) for t in tokens])
    tokenizer = load_tokenizer(converted(file, tmp_path / "cache"))
    for text in (TEXTS[0], TEXTS[2], "Once upon a time, there was\na dog."):
        assert tokenizer.encode_text(text) == original.encode(text, add_special_tokens=False).ids
    for text in TEXTS:  # that original makes one space of two, which Llama's does not
        assert tokenizer.decode_text(tokenizer.encode_text(text)) == text


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"architecture": "mamba"}, "unknown_family"),
        ({"scaling": True}, "unsupported_rope"),
        ({"keys": {"rope.scale_linear": 4.0}}, "unsupported_rope"),
        ({"keys": {"rope.dimension_count": 8}}, "unsupported_rope"),
        ({"keys": {"attention.sliding_window": 4}}, "unknown_family"),
        ({"keys": {"attention.scale": 0.5}}, "unknown_family"),
        ({"without": "model.layers.1.self_attn.q_proj.weight"}, "weights_do_not_fit"),
        ({"without": "model.norm.weight"}, "weights_do_not_fit"),
        ({"layers": 1}, "weights_do_not_fit"),
        ({"layers": 3}, "weights_do_not_fit"),
        ({"heads": 3}, "weights_do_not_fit"),
        ({"heads": 0}, "not_a_gguf_file"),
        ({"vocabulary": "bert"}, "unknown_tokenizer"),
        ({"scores": [0.0], "removes_spaces": True}, "unknown_tokenizer"),
    ],
)
def test_what_cannot_be_read_is_refused_before_weights_are(tmp_path: Path, changed: dict[str, Any], error: str) -> None:
    file = plain_file(tmp_path, **changed)
    with refused(error):
        converted(file, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_files_that_are_cut_off_or_something_else_are_refused(tmp_path: Path) -> None:
    whole = plain_file(tmp_path).read_bytes()
    for number, size in enumerate((0, 3, 40, 2000, len(whole) // 2, len(whole) - 100)):
        cut = tmp_path / f"cut-{number}.gguf"
        cut.write_bytes(whole[:size])
        with refused("not_a_gguf_file"):
            converted(cut, tmp_path / "cache")
    text = tmp_path / "text.gguf"
    text.write_text("not a model\n" * 1000)
    with refused("not_a_gguf_file"):
        converted(text, tmp_path / "cache")


def test_a_file_is_converted_once_and_altered_files_are_noticed(tmp_path: Path) -> None:
    file, notices = plain_file(tmp_path), list[str]()
    folder = converted(file, tmp_path / "cache", notices.append)
    assert len(notices) == 1
    converted.cache_clear()
    assert converted(file, tmp_path / "cache", notices.append) == folder
    assert len(notices) == 1
    earlier = folder.with_name(folder.name.replace("-v2", "-v1"))
    folder.rename(earlier)
    converted.cache_clear()
    assert converted(file, tmp_path / "cache", notices.append) == earlier, "one token ends its answers, as ever"
    earlier.rename(folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    copy = tmp_path / "b" / "a.gguf"  # another path, since a process checks a folder once
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    moved = tmp_path / "moved"
    (tmp_path / "cache").rename(moved)
    with refused("damaged_cache"):
        converted(copy, moved)


def test_a_model_that_was_converted_earlier_keeps_its_hash(tmp_path: Path) -> None:
    """Modules and results name the hash of a target's folder. A list of one token that ends answers, instead of its
    number, would make everything that was measured with smollm2 be of another target."""
    folder = converted(plain_file(tmp_path), tmp_path / "cache")
    written = (folder / "config.json").read_bytes()
    assert hashlib.sha256(written).hexdigest()[:16] == "029fbc991d7067b6", written.decode()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_is_an_error(tmp_path: Path) -> None:
    file = plain_file(tmp_path)
    (tmp_path / "cache").mkdir(mode=0o555)
    with refused("cache_not_writable"):
        converted(file, tmp_path / "cache")


def test_a_cache_that_cannot_be_a_folder_is_an_error(tmp_path: Path) -> None:
    file = plain_file(tmp_path)
    (tmp_path / "cache").write_text("a file")
    with refused("cache_not_writable"):
        converted(file, tmp_path / "cache")


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = plain_file(tmp_path)
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("benchctl.gguf.shutil.disk_usage", lambda folder: usage)
    with refused("disk_full"):
        converted(file, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_weights_are_written_one_by_one_with_the_bytes_of_safetensors_own_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights of a shard, up to 4 GB, were in memory; the hash of the bytes identifies models in kept results."""
    monkeypatch.setattr("benchctl.gguf._SHARD_BYTES", 60_000)
    file, tokenizer = tmp_path / "model.gguf", bpe("gpt-2")
    write_gguf(file, tiny("llama", tokenizer.get_vocab_size()), "llama", tokenizer, "gpt-2", "F16")
    convert(file, tmp_path / "out")
    shards = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(shards) > 1
    assert {weight.dtype for shard in shards for weight in load_file(shard).values()} == {torch.float16, torch.float32}
    for shard in shards:
        save_file(load_file(shard), tmp_path / "again", metadata={"format": "pt"})
        assert shard.read_bytes() == (tmp_path / "again").read_bytes()
