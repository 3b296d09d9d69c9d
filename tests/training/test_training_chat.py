"""Chats become the ids that the target sees at inference, whatever its tokenizer and its template."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.training.data import chats as chat_module
from benchctl.training.data.chats import ChatFormat, Message, Record
from benchctl.training.data.packing import Document
from reference.bpe import chat_format, joints_of, save_tokenizer, train_tokenizer

SYSTEM, HI, HELLO, BYE, GONE = (
    Message("system", "Be kind."),
    Message("user", "Hi"),
    Message("assistant", "the cat"),
    Message("user", "Bye"),
    Message("assistant", "the dog"),
)
TURN = "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
THOUGHT = "{% if loop.last and message['role'] == 'assistant' %}{{ 'No thought. ' }}{% endif %}"
FORGETFUL = "{{ '<|' + message['role'] + '|>' }}" + THOUGHT + "{{ message['content'] + '<|end|>' }}"
OPEN_TURN = "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
THINK = "{% if add_generation_prompt %}{{ 'Think!' }}{% endif %}"
REFUSAL = "{{ raise_exception('No system') }}"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["the cat sat on the mat", "the dog sat on the cat"] * 5, vocabulary=300)


@pytest.fixture(scope="module")
def chat(tokenizer: Tokenizer) -> ChatFormat:
    return chat_format(tokenizer)


@pytest.fixture(scope="module")
def embedded(root: Path) -> Path:
    return root / "benchctl" / "assets" / "models" / "ref-dense"


@pytest.fixture(scope="module")
def stories(shared: Path) -> Path:
    """A published model with the tokenizer of Llama 2 and no chat template."""
    folder = shared / "models" / "stories260K"
    if not folder.is_dir():
        pytest.skip("no ../shared/models/stories260K here")
    return folder


def format_of(tokenizer: Tokenizer, each: str, after: str = "") -> ChatFormat:
    """A format whose template writes `each` for a message and `after` at the end."""
    return chat_format(tokenizer, "{% for message in messages %}" + each + "{% endfor %}" + OPEN_TURN + after)


def texts(chat: Document, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Head and answer of every turn, special tokens included."""
    decoded = [(turn.head.tolist(), turn.answer.tolist()) for turn in chat.turns]
    return [
        (tokenizer.decode(head, skip_special_tokens=False), tokenizer.decode(answer, skip_special_tokens=False))
        for head, answer in decoded
    ]


def test_a_chat_of_the_reference_models_has_these_ids(chat: ChatFormat) -> None:
    (document,) = chat.tokenize([Record.chat("s", "Hi", "the cat")])
    (turn,) = document.turns
    assert turn.head.tolist() == [0, 2, 204, 45, 78, 5, 204, 3, 204]  # <|bos|><|user|>\nHi<|end|>\n<|assistant|>\n
    assert turn.answer.tolist() == [264, 269, 5]  # "the", " cat", <|end|>
    assert turn.head.dtype == np.uint16


def test_plain_text_stands_between_the_first_and_the_last_token(chat: ChatFormat) -> None:
    (document,) = chat.tokenize([Record.plain("s", "the cat")])
    assert document.text.tolist() == [0, 264, 269, 5]
    assert document.turns == ()


def test_the_turns_of_the_reference_template_meet_at_these_ids(chat: ChatFormat) -> None:
    joints = joints_of(chat, "Hi")
    assert joints.opening.tolist() == [0]  # <|bos|>
    assert joints.opening_with_system.tolist() == [0, 4, 204, 45, 78, 5, 204]  # <|bos|><|system|>\nHi<|end|>\n
    assert joints.after.tolist() == [204]  # the line break after <|end|>


def test_a_long_chat_has_a_head_and_an_answer_for_every_turn(chat: ChatFormat, tokenizer: Tokenizer) -> None:
    (document,) = chat.tokenize([Record("s", (SYSTEM, HI, HELLO, BYE, GONE))])
    opening = "<|bos|><|system|>\nBe kind.<|end|>\n"
    assert texts(document, tokenizer) == [
        (f"{opening}<|user|>\nHi<|end|>\n<|assistant|>\n", "the cat<|end|>"),
        ("\n<|user|>\nBye<|end|>\n<|assistant|>\n", "the dog<|end|>"),
    ]


def test_a_format_is_that_of_its_folder(tokenizer: Tokenizer, chat: ChatFormat, tmp_path: Path, embedded: Path) -> None:
    save_tokenizer(tokenizer, tmp_path, positions=64)
    (tmp_path / "config.json").write_bytes((embedded / "config.json").read_bytes())
    loaded = ChatFormat.load(tmp_path)
    records = [Record("s", (SYSTEM, HI, HELLO, BYE, GONE)), Record.plain("s", "the cat")]
    assert str(loaded.tokenize(records)) == str(chat.tokenize(records))
    assert loaded.token_bytes().equal(chat.token_bytes())
    assert (loaded.vocabulary, loaded.pad_id) == (chat.vocabulary, chat.pad_id) == (277, 1)


PROMPTS = [
    (HI,),
    (SYSTEM, HI),
    (HI, HELLO, BYE),
    (Message("user", "  Grüße,\n\n  世界 <|end|> 🙂"),),
    (Message("user", "1234 * 5 = ?\n"),),
]


def as_fields(prompt: tuple[Message, ...]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in prompt]


@pytest.mark.parametrize("model", ["embedded", "stories"])
def test_heads_are_the_ids_that_the_target_is_given(model: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(model)
    chat, target = ChatFormat.load(folder), load_tokenizer(folder)
    at_inference = [target.encode_chat(as_fields(prompt)) for prompt in PROMPTS]
    assert [head.tolist() for head in chat.heads(PROMPTS)] == at_inference
    documents = chat.tokenize([Record("s", (*prompt, HELLO)) for prompt in PROMPTS])
    for document, ids, prompt in zip(documents, at_inference, PROMPTS, strict=True):
        assert len(prompt) > 2 or document.turns[0].head.tolist() == ids


def test_an_answer_without_a_chat_template_follows_a_blank_line_and_ends(stories: Path) -> None:
    """Encoded alone, "the cat" would begin with a space that the target would have to write after the line break."""
    (document,) = ChatFormat.load(stories).tokenize([Record("s", (HI, HELLO, BYE, GONE))])
    tokenizer = AutoTokenizer.from_pretrained(stories)
    ids = [int(token) for turn in document.turns for part in (turn.head, turn.answer) for token in part]
    assert ids == [*tokenizer.encode("Hi\n\nthe cat\n\nBye\n\nthe dog"), tokenizer.eos_token_id]


@pytest.mark.parametrize("text", ["the cat", "Grüße, 世界 🙂", "1 + 1\n\n\ntwo"])
def test_the_bytes_of_the_tokens_add_up_to_the_text(embedded: Path, stories: Path, text: str) -> None:
    for folder, space in ((embedded, 0), (stories, 1)):
        sizes = ChatFormat.load(folder).token_bytes()
        ids = AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=False)
        assert int(sizes[ids].sum()) == len(text.encode()) + space, folder
    assert sizes[[0, 1, 2]].tolist() == [0, 0, 0]


def test_what_a_template_writes_after_the_stop_token_is_no_part_of_the_answer(tokenizer: Tokenizer) -> None:
    """Phi-3 ends every conversation that asks for nothing with a second token of its own."""
    chat = format_of(tokenizer, TURN, "{% if not add_generation_prompt %}{{ '\\n<|pad|>' }}{% endif %}")
    (document,) = chat.tokenize([Record("s", (HI, HELLO, BYE, GONE))])
    assert texts(document, tokenizer) == [
        ("<|user|>Hi<|end|><|assistant|>", "the cat<|end|>"),
        ("<|user|>Bye<|end|><|assistant|>", "the dog<|end|>"),
    ]


def test_a_template_without_a_stop_token_gets_one_at_the_end(tokenizer: Tokenizer) -> None:
    chat = format_of(tokenizer, "{{ '<|' + message['role'] + '|>' + message['content'] }}")
    (document,) = chat.tokenize([Record("s", (HI, HELLO, BYE, GONE))])
    assert [answer for _, answer in texts(document, tokenizer)] == ["the cat", "the dog<|end|>"]


def test_a_template_that_forgets_what_was_thought_before_serves_chats_of_one_answer(tokenizer: Tokenizer) -> None:
    """Qwen3 writes an empty thought before the last answer, and takes it away once another question follows."""
    (document,) = format_of(tokenizer, FORGETFUL).tokenize([Record("s", (HI, HELLO))])
    assert texts(document, tokenizer) == [("<|user|>Hi<|end|><|assistant|>", "No thought. the cat<|end|>")]


@pytest.mark.parametrize(
    ("each", "after", "chat", "id", "facts"),
    [
        (TURN, THINK, (HI, HELLO), "unusable_chat_template", ("message 2",)),
        (FORGETFUL, "", (HI, HELLO, BYE, GONE), "unusable_chat_template", ("message 4",)),
        (REFUSAL, "", (HI, HELLO), "refused_by_chat_template", ("No system", "user: 'Hi'")),
    ],
)
def test_a_template_that_rewrites_what_it_wrote_or_refuses_a_chat_is_an_error(
    tokenizer: Tokenizer, each: str, after: str, chat: tuple[Message, ...], id: str, facts: tuple[str, ...]
) -> None:
    with refused(id, *facts):
        format_of(tokenizer, each, after).tokenize([Record("s", chat)])


def test_a_template_whose_turns_do_not_join_cannot_have_the_reference_recipe(tokenizer: Tokenizer) -> None:
    chat = chat_format(tokenizer, "{{ messages | length }}{{ messages[-1]['content'] }}")
    with refused("unusable_chat_template", "python -m reference target"):
        joints_of(chat, "Hi")


def test_records_encoded_in_blocks_stay_in_order(chat: ChatFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record.chat("s", "Hi", "the cat"), Record.plain("s", "the dog"), Record.chat("s", "Bye", "the cat")]
    at_once = chat.tokenize(records)
    monkeypatch.setattr(chat_module, "BLOCK_CHARS", 10)
    assert str(chat.tokenize(records)) == str(at_once)
    assert chat.tokenize([]) == []
