"""Training records, and the target's tokenizer that turns them into tokens as the target will see them.

What is said to the model (the head) and its answer are encoded apart, so that the ids of a head are those that
`TargetTokenizer.encode_chat` gives for the same messages. Errors in a record name the file and the line.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from benchctl.decoding.model.tokenizer import (
    chat_text,
    from_pretrained,
    load_tokenizer,
    token_texts,
    tokenizer_text,
    undated,
)
from benchctl.errors import UserError
from benchctl.training.data.packing import Document, Tokens, Turn, token_dtype

HELD_OUT_OF = 100  # where no held-out file is given, one record in so many is kept for the held-out loss
ROLES = ("system", "user", "assistant")
FIELDS = '"messages", or "instruction" and "output" (with an "input" or without), or "text"'


@dataclass(frozen=True)
class Message:
    """One turn of a chat; `role` is one of ROLES."""

    role: str
    content: str


@dataclass(frozen=True)
class Record:
    """One document: a chat that ends with the assistant's answer, or plain text (then without messages)."""

    source: str
    messages: tuple[Message, ...] = ()
    text: str = ""

    @classmethod
    def chat(cls, source: str, prompt: str, answer: str) -> Record:
        """A question and its answer."""
        return cls(source, (Message("user", prompt), Message("assistant", answer)))

    @classmethod
    def plain(cls, source: str, text: str) -> Record:
        return cls(source, text=text)

    @property
    def prompt(self) -> tuple[Message, ...]:
        """What stands before the last answer; empty for plain text."""
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        """The last answer, or the plain text."""
        return self.messages[-1].content if self.messages else self.text


def is_held_out(record: Record) -> bool:
    """Whether a record is the one in a hundred that is held out; decided by its content, so it never moves."""
    said = [part for message in record.messages for part in (message.role, message.content)]
    digest = hashlib.sha256("\n".join([*said, record.text] if said else [record.text]).encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_OF == 0


def record_of(fields: Any, where: str, source: str) -> Record:
    """The record that these fields hold; `source` counts where they name none. Raises UserError naming `where`."""
    if not isinstance(fields, Mapping):
        raise UserError("bad_record", f"{where}: a record must be a JSON object, not {type(fields).__name__}")
    source = _text(fields, "source", where) if "source" in fields else source
    if "messages" in fields:
        return Record(source, _messages(fields["messages"], where))
    if "instruction" in fields or "output" in fields:
        prompt = _text(fields, "instruction", where)
        if fields.get("input"):
            prompt += f"\n\n{_text(fields, 'input', where)}"
        return Record.chat(source, prompt, _text(fields, "output", where))
    if "text" in fields:
        return Record.plain(source, _text(fields, "text", where))
    raise UserError("bad_record", f"{where}: needs {FIELDS}; found {sorted(fields)}")


def _messages(value: Any, where: str) -> tuple[Message, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise UserError("bad_record", f'{where}: field "messages" must be a list of objects with "role" and "content"')
    messages = tuple(_message(entry, f"{where}: message {number}") for number, entry in enumerate(value, start=1))
    if messages[-1].role != "assistant":
        raise UserError(
            "last_message_not_answer",
            f"{where}: the last message is the {messages[-1].role}'s; it must be the assistant's answer",
        )
    turns = messages[1:] if messages[0].role == "system" else messages
    for number, message in enumerate(turns):
        if message.role != ("user", "assistant")[number % 2]:
            place = number + 1 + len(messages) - len(turns)
            raise UserError(
                "wrong_turns",
                f"{where}: message {place} is the {message.role}'s; after a system message, if any, user and assistant "
                "must take turns, the user first",
            )
    return messages


def _message(entry: Any, where: str) -> Message:
    if not isinstance(entry, Mapping):
        raise UserError(
            "bad_record", f'{where}: must be an object with "role" and "content", not {type(entry).__name__}'
        )
    role = _text(entry, "role", where)
    if role not in ROLES:
        raise UserError("unknown_role", f'{where}: unknown role "{role}"; use one of: {", ".join(ROLES)}')
    return Message(role, _text(entry, "content", where))


def _text(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if name not in fields:
        problem = "is missing"
    elif not isinstance(value, str):
        problem = f"must be text, not {type(value).__name__}"
    elif not value.strip():
        problem = "is empty"
    elif any("\ud800" <= character <= "\udfff" for character in value):
        problem = "contains half of a surrogate pair, which is not valid text; correct its escapes"
    else:
        return value.strip()
    raise UserError("bad_record", f'{where}: field "{name}" {problem}')


BLOCK_CHARS = 2_000_000  # encoded at once: enough to use every core, little enough for the memory of encoding


class ChatFormat:
    """Records to tokens for one tokenizer. `stop_ids` end an answer, as the tokenizer's own end of text does."""

    apart = False  # whether an encoder reads the heads

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_ids: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        tokenizer.model_max_length = sys.maxsize  # rows are cut by the packer; the library's warning would mislead
        self.vocabulary = max(len(tokenizer), *(index + 1 for index in tokenizer.get_vocab().values()))
        self._dtype = token_dtype(self.vocabulary)
        ends = [index for index in (tokenizer.eos_token_id, *sorted(stop_ids)) if index is not None]
        self.bos = self._ids([] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id])
        self.end = self._ids(ends[:1])
        pads = (tokenizer.pad_token_id, *ends, 0)
        self.pad_id = int(next(index for index in pads if index is not None))
        added = tokenizer.added_tokens_decoder
        self._stops = [added[index].content for index in dict.fromkeys(ends) if index in added]

    @classmethod
    def load(cls, path: str | Path) -> ChatFormat:
        """The format of a model folder or hub id. Raises UserError when there is none."""
        return cls(from_pretrained(AutoTokenizer, path), load_tokenizer(path).stop_ids)

    @cached_property
    def sha256(self) -> str:
        """Hash of all that decides how records become ids: the tokenizer and its chat template."""
        template = undated(str(self._tokenizer.chat_template))
        return hashlib.sha256(f"{tokenizer_text(self._tokenizer)}{template}".encode()).hexdigest()

    def tokenize(self, records: Iterable[Record]) -> list[Document]:
        """A document per record. Raises UserError where the chat template refuses a chat."""
        return [document for block in _blocks(records) for document in self._documents(block)]

    def heads(self, prompts: Iterable[Sequence[Message]]) -> list[Tokens]:
        """The ids of conversations that ask for an answer, as they are at inference."""
        return self._encode_heads([self.render(prompt, ask=True) for prompt in prompts])

    def answered(self, source: str, head: Tokens, answer: Tokens) -> Document:
        """A document of one prompt, as `heads` gives it, and its answer."""
        return Document(source, (Turn(head, answer),), apart=self.apart)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of an answer, without special tokens."""
        return str(self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=True))

    def token_bytes(self) -> torch.Tensor:
        """Bytes of text that every token stands for, int64 [vocabulary]; 0 for special tokens and for unused ids."""
        added = self._tokenizer.added_tokens_decoder
        special = set(self._tokenizer.all_special_ids) | {index for index, token in added.items() if token.special}
        sizes = torch.zeros(self.vocabulary, dtype=torch.int64)
        for index, text in token_texts(self._tokenizer).items():
            sizes[index] = 0 if index in special else len(text)
        return sizes

    def _documents(self, records: Sequence[Record]) -> Iterator[Document]:
        spans = [self._spans(record) if record.messages else [record.text] for record in records]
        heads = iter(self._encode_heads([span[0] for span in spans if len(span) > 1]))
        answers = iter(self._encode_continued([text for span in spans for text in span[1:]]))
        texts = iter(self.encode([span[0] for span in spans if len(span) == 1]))
        for record, span in zip(records, spans, strict=True):
            if not record.messages:
                yield Document(record.source, text=np.concatenate([self.bos, next(texts), self.end]))
                continue
            parts = [next(heads), *islice(answers, len(span) - 1)]
            if not span[-1].endswith(tuple(self._stops)):  # the template leaves it to us to say that the answer ends
                parts[-1] = np.concatenate([parts[-1], self.end])
            turns = zip(parts[::2], parts[1::2], strict=True)
            yield Document(record.source, tuple(Turn(head, answer) for head, answer in turns))

    def _spans(self, record: Record) -> list[str]:
        """Head, answer, head, answer ... of a chat: what the template makes of it, up to the last answer's stop."""
        done = ""
        spans: list[str] = []
        for count, message in enumerate(record.messages):
            if message.role != "assistant":
                continue
            head = self.render(record.messages[:count], ask=True)
            whole = self.render(record.messages[: count + 1], ask=False)
            if not (head.startswith(done) and whole.startswith(head)):
                raise UserError(
                    "unusable_chat_template",
                    f"the chat template of the target writes what stands before message {count + 1} of a chat in "
                    "another way than it does without that message, so the answer cannot be separated from it. Give "
                    "chats of one question and one answer, or a tokenizer with another chat template. The chat begins "
                    f"with {record.messages[0].content[:60]!r}",
                )
            answer = self.through_stop(whole.removeprefix(head))
            spans += [head.removeprefix(done), answer]
            done = head + answer
        return spans

    def through_stop(self, text: str) -> str:
        """`text` up to its first stop token; what a template writes after that is no part of the answer."""
        ends = [text.index(stop) + len(stop) for stop in self._stops if stop in text]
        return text[: min(ends)] if ends else text

    def render(self, messages: Sequence[Message], ask: bool) -> str:
        """The text of a conversation, with the request for an answer if `ask`; see TargetTokenizer.encode_chat."""
        if not self._tokenizer.chat_template:
            return "\n\n".join(message.content for message in messages)
        fields = [{"role": message.role, "content": message.content} for message in messages]
        return chat_text(self._tokenizer, fields, ask)

    def _encode_heads(self, texts: Sequence[str]) -> list[Tokens]:
        return self.encode(texts, special=not self._tokenizer.chat_template)

    def _encode_continued(self, texts: Sequence[str]) -> list[Tokens]:
        """Ids of texts that follow another text.

        Some tokenizers put a space before whatever they encode. There a line break goes first and its ids are taken
        away again, so that the space is not one that the target would have to write.
        """
        alone, line_break, after = (ids.tolist() for ids in self.encode(["a", "\n", "\na"]))
        if alone == after[len(line_break) :]:
            return self.encode(texts)
        return [ids[len(line_break) :] for ids in self.encode([f"\n{text}" for text in texts])]

    def encode(self, texts: Sequence[str], special: bool = False) -> list[Tokens]:
        """The ids of each text; `special` adds the tokenizer's own special tokens."""
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts), add_special_tokens=special, return_attention_mask=False, return_token_type_ids=False
        )
        return [self._ids(ids) for ids in encoded["input_ids"]]

    def _ids(self, ids: Sequence[int]) -> Tokens:
        return np.asarray(ids, dtype=self._dtype)


def _blocks(records: Iterable[Record]) -> Iterator[list[Record]]:
    block: list[Record] = []
    chars = 0
    for record in records:
        block.append(record)
        chars += len(record.text) + sum(len(message.content) for message in record.messages)
        if chars >= BLOCK_CHARS:
            yield block
            block, chars = [], 0
    yield block


class EncoderChat(ChatFormat):
    """As decoding has it: the encoder is given the conversation so far, the decoder writes an answer and its end.

    So a chat of several answers is read once for each. Plain text has no prompt, and nothing is made of it.
    """

    apart = True

    def _documents(self, records: Sequence[Record]) -> Iterator[Document]:
        asked = [(record.messages, place) for record in records for place in _answers(record)]
        heads = self.heads([messages[:place] for messages, place in asked])
        answers = self.encode([messages[place].content for messages, place in asked])
        turns = (
            Turn(*both) for both in zip(heads, [np.concatenate([each, self.end]) for each in answers], strict=True)
        )
        for record in records:
            yield Document(record.source, tuple(islice(turns, len(_answers(record)))), apart=True)


def _answers(record: Record) -> list[int]:
    """Which of its messages are answers."""
    return [place for place, message in enumerate(record.messages) if message.role == "assistant"]
