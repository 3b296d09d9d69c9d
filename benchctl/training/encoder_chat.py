"""Records to tokens where an encoder reads the prompt: each answer of a chat with all that stands before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from benchctl.training.chat import ChatFormat
from benchctl.training.corpus import Record
from benchctl.training.packing import Document, Tokens, Turn


class EncoderChat(ChatFormat):
    """As decoding has it: the encoder is given the conversation so far, the decoder writes an answer and its end.

    So a chat of several answers is read once for each. Plain text has no prompt, and nothing is made of it.
    """

    def answered(self, source: str, head: Tokens, answer: Tokens) -> Document:
        return Document(source, (Turn(head, answer),), apart=True)

    def _documents(self, records: Sequence[Record]) -> Iterator[Document]:
        asked = [(record.messages, place) for record in records for place in _answers(record)]
        heads = self.heads([messages[:place] for messages, place in asked])
        answers = self._encode([messages[place].content for messages, place in asked])
        turns = (
            Turn(*both) for both in zip(heads, [np.concatenate([each, self.end]) for each in answers], strict=True)
        )
        for record in records:
            yield Document(record.source, tuple(islice(turns, len(_answers(record)))), apart=True)


def _answers(record: Record) -> list[int]:
    """Which of its messages are answers."""
    return [place for place, message in enumerate(record.messages) if message.role == "assistant"]
