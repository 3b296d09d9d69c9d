"""The reference tokenizer: what goes in comes out, and its folder reads as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from reference.bpe import read_tokenizer, save_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["the cat sat on the mat", "the dog sat on the cat"] * 5, vocabulary=300)


@pytest.mark.parametrize(
    "text",
    ["  two  spaces\n\n\ttab ", "Grüße, 世界 🙂 e\u0301", "if x:\n    return 10 ** 25\n", "\x00\x7f\u200b", "<|end| >"],
)
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_special_tokens_come_first_and_are_one_token_each_as_digits_are(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|bos|><|pad|><|user|><|assistant|><|system|><|end|>").ids == [0, 1, 2, 3, 4, 5]
    assert tokenizer.encode("1234").tokens == ["1", "2", "3", "4"]


def test_the_template_trims_contents_and_asks_for_an_answer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path, positions=64)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    turns = (("system", "Be kind."), ("user", " Hi "), ("assistant", "Hello\nyou"), ("user", "Bye"))
    messages = [{"role": role, "content": content} for role, content in turns]
    expected = (
        "<|bos|><|system|>\nBe kind.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello\nyou<|end|>\n"
        "<|user|>\nBye<|end|>\n<|assistant|>\n"
    )
    assert saved.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == expected
    ids = saved.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == tokenizer.encode(expected).ids
    with pytest.raises(Exception, match="unknown role tool"):
        saved.apply_chat_template([{"role": "tool", "content": "Hi"}], tokenize=False)


def test_transformers_reads_the_folder(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path, positions=64)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    assert (saved.bos_token, saved.eos_token, saved.pad_token) == ("<|bos|>", "<|end|>", "<|pad|>")
    assert saved("the cat").input_ids == tokenizer.encode("the cat").ids
    assert saved.decode([2, *saved("the cat").input_ids, 5], skip_special_tokens=True) == "the cat"
    assert read_tokenizer(tmp_path).to_str() == tokenizer.to_str()


def test_a_folder_without_tokenizer_is_an_error(tmp_path: Path) -> None:
    with refused("no_tokenizer", str(tmp_path / "tokenizer.json")):
        read_tokenizer(tmp_path)
