"""What a training record is, and how one is made of the fields of a line; says exactly which line is broken."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchctl.errors import InvalidData

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
    """The record that these fields hold; `source` counts where they name none. Raises InvalidData naming `where`."""
    if not isinstance(fields, Mapping):
        raise InvalidData("bad_record", f"{where}: a record must be a JSON object, not {type(fields).__name__}")
    source = _text(fields, "source", where) if "source" in fields else source
    if "messages" in fields:
        return Record(source, _messages(fields["messages"], where))
    if "instruction" in fields or "output" in fields:
        return Record.chat(source, _prompt(fields, where), _text(fields, "output", where))
    if "text" in fields:
        return Record.plain(source, _text(fields, "text", where))
    raise InvalidData("bad_record", f"{where}: needs {FIELDS}; found {sorted(fields)}")


def _messages(value: Any, where: str) -> tuple[Message, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise InvalidData(
            "bad_record", f'{where}: field "messages" must be a list of objects with "role" and "content"'
        )
    messages = tuple(_message(entry, f"{where}: message {number}") for number, entry in enumerate(value, start=1))
    if messages[-1].role != "assistant":
        raise InvalidData(
            "last_message_not_answer",
            f"{where}: the last message is the {messages[-1].role}'s; it must be the assistant's answer",
        )
    turns = messages[1:] if messages[0].role == "system" else messages
    for number, message in enumerate(turns):
        if message.role != ("user", "assistant")[number % 2]:
            place = number + 1 + len(messages) - len(turns)
            raise InvalidData(
                "wrong_turns",
                f"{where}: message {place} is the {message.role}'s; after a system message, if any, user and assistant "
                "must take turns, the user first",
            )
    return messages


def _message(entry: Any, where: str) -> Message:
    if not isinstance(entry, Mapping):
        raise InvalidData(
            "bad_record", f'{where}: must be an object with "role" and "content", not {type(entry).__name__}'
        )
    role = _text(entry, "role", where)
    if role not in ROLES:
        raise InvalidData("unknown_role", f'{where}: unknown role "{role}"; use one of: {", ".join(ROLES)}')
    return Message(role, _text(entry, "content", where))


def _prompt(fields: Mapping[str, Any], where: str) -> str:
    instruction = _text(fields, "instruction", where)
    if not fields.get("input"):
        return instruction
    return f"{instruction}\n\n{_text(fields, 'input', where)}"


def _text(fields: Mapping[str, Any], name: str, where: str) -> str:
    if name not in fields:
        raise InvalidData("bad_record", f'{where}: field "{name}" is missing')
    value = fields[name]
    if not isinstance(value, str):
        raise InvalidData("bad_record", f'{where}: field "{name}" must be text, not {type(value).__name__}')
    if not value.strip():
        raise InvalidData("bad_record", f'{where}: field "{name}" is empty')
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidData(
            "bad_record",
            f'{where}: field "{name}" holds half of a surrogate pair, which is not valid text; correct its escapes',
        )
    return value.strip()
