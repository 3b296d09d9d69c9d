"""Turns records into rows of tokens of one length, each row beginning where a document begins.

A token also has a weight: 1 for text and answers, `PROMPT_WEIGHT` for what the user says, 0 for padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from benchctl.training.corpus import Record
from benchctl.training.sources import rule_for, shorten, weight
from benchctl.training.tokenizer import BOS, END, PAD, answer_turn, system_turn, token_id, user_turn

Tokens = npt.NDArray[np.uint16]
Weights = npt.NDArray[np.uint8]  # in percent

PROMPT_WEIGHT = 30
SECOND_TURN_SHARE = 0.15
SYSTEM_SHARE = 0.05
SYSTEM_PROMPT = "You are a helpful assistant."
OPEN_ROWS = 64


@dataclass(frozen=True)
class Document:
    """The tokens of one record: `head` is the user's turn (empty for plain text), `body` the answer or the text."""

    source: str
    head: Tokens
    body: Tokens


@dataclass(frozen=True)
class Batch:
    """All [rows, row_tokens]: tokens, the loss weight of each (float32), its document's number within the row (-1 for
    padding) and its position within that document."""

    tokens: torch.Tensor
    weights: torch.Tensor
    documents: torch.Tensor
    positions: torch.Tensor

    @property
    def mask(self) -> torch.Tensor:
        """What each token may see [rows, 1, row_tokens, row_tokens]: itself and what stands before it in its document."""
        same = self.documents[:, None, :, None] == self.documents[:, None, None, :]
        return same.tril()


@dataclass(frozen=True)
class Piece:
    """What is placed into a row as a whole."""

    tokens: Tokens
    weights: Weights


@dataclass(frozen=True)
class Row:
    """Pieces one after the other, padded; see Batch."""

    tokens: Tokens
    weights: Weights
    documents: npt.NDArray[np.int16]
    positions: npt.NDArray[np.int16]


def batch_of(rows: Sequence[Row]) -> Batch:
    """Rows of equal length as tensors."""
    weights = np.stack([row.weights for row in rows]).astype(np.float32) / 100
    tokens, documents, positions = (
        torch.from_numpy(np.stack(column).astype(np.int64))
        for column in zip(*((row.tokens, row.documents, row.positions) for row in rows), strict=True)
    )
    return Batch(tokens, torch.from_numpy(weights), documents, positions)


def tokenize(records: Iterable[Record], tokenizer: Tokenizer) -> list[Document]:
    """Encodes records as the chat template would render them."""
    kept = list(records)
    heads = tokenizer.encode_batch_fast([user_turn(r.prompt) if r.prompt is not None else "" for r in kept])
    bodies = tokenizer.encode_batch_fast([_body(record) for record in kept])
    return [
        Document(record.source, _ids(head.ids), _ids(body.ids))
        for record, head, body in zip(kept, heads, bodies, strict=True)
    ]


@dataclass
class PackedCorpus:
    """Rows of `row_tokens` tokens in an order fixed by the seed: pass after pass, each pass shuffled anew.

    `rows(start, count)` gives rows by their number since the beginning of the stage, so the position in the data
    is one integer. `stage` numbers the stage of the run, `weights` the column of weights in sources.py.
    """

    documents: Sequence[Document]
    tokenizer: Tokenizer
    row_tokens: int
    seed: int
    stage: int
    weights: int
    _epoch: int = field(default=-1, init=False)
    _first_row: int = field(default=0, init=False)
    _next_row: int = field(default=0, init=False)
    _rows: list[Row] = field(default_factory=list, init=False)

    def rows(self, start: int, count: int) -> Batch:
        """Rows start .. start + count - 1. Raises ValueError when no document has any weight."""
        return batch_of([self._row(number) for number in range(start, start + count)])

    def _row(self, number: int) -> Row:
        if number < self._first_row:
            self._epoch, self._first_row, self._next_row = -1, 0, 0
        while number >= self._next_row:
            self._epoch += 1
            self._rows = self._pack(self._epoch)
            self._first_row, self._next_row = self._next_row, self._next_row + len(self._rows)
        return self._rows[number - self._first_row]

    def _pack(self, epoch: int) -> list[Row]:
        random = np.random.default_rng([self.seed, self.stage, epoch])
        chosen = [
            document
            for document in self.documents
            for _ in range(_copies(weight(document.source, self.weights), random))
        ]
        if not chosen:
            raise ValueError("no document has a weight above 0 in this stage; see benchctl/training/sources.py")
        pieces = self._pieces(chosen, random)
        order = random.permutation(len(pieces))
        rows = fill_rows([pieces[index] for index in order], self.row_tokens, token_id(self.tokenizer, PAD))
        return [rows[index] for index in random.permutation(len(rows))]

    def _pieces(self, documents: Sequence[Document], random: np.random.Generator) -> list[Piece]:
        bos = _ids([token_id(self.tokenizer, BOS)])
        system = _ids(self.tokenizer.encode(system_turn(SYSTEM_PROMPT)).ids)
        texts = [document for document in documents if not len(document.head)]
        chats = [document for document in documents if len(document.head)]
        pieces = [chunk for document in texts for chunk in chunks(document, bos, self.row_tokens)]
        order = iter(random.permutation(len(chats)))
        for index in order:
            opening = np.concatenate([bos, system]) if random.random() < SYSTEM_SHARE else bos
            turns = [chats[index]]
            if random.random() < SECOND_TURN_SHARE:
                turns.extend(chats[more] for more in [next(order, None)] if more is not None)
            pieces.append(conversation(opening, turns))
        return [cut_to(piece, self.row_tokens) for piece in pieces if _answer_starts(piece) < self.row_tokens * 0.75]


def conversation(opening: Tokens, turns: Sequence[Document]) -> Piece:
    """One piece of a chat: opening, then head and body of every turn."""
    tokens, weights = [opening], [_constant(len(opening), PROMPT_WEIGHT)]
    for turn in turns:
        tokens += [turn.head, turn.body]
        weights += [_constant(len(turn.head), PROMPT_WEIGHT), _constant(len(turn.body), 100)]
    return Piece(np.concatenate(tokens), np.concatenate(weights))


def cut_to(piece: Piece, longest: int) -> Piece:
    """The first `longest` tokens of a piece."""
    return Piece(piece.tokens[:longest], piece.weights[:longest])


def chunks(document: Document, bos: Tokens, longest: int) -> list[Piece]:
    """Plain text with its `<|bos|>`, cut into pieces of at most `longest` tokens."""
    tokens = np.concatenate([bos, document.body])
    cut = [tokens[start : start + longest] for start in range(0, len(tokens), longest)]
    return [Piece(part, _constant(len(part), 100)) for part in cut]


def fill_rows(pieces: Iterable[Piece], row_tokens: int, pad: int) -> list[Row]:
    """Places pieces whole, each into the first open row with room; rows are padded to `row_tokens`.

    Pieces of 3, 3, 2 tokens in rows of 5 give the rows (3, 2) and (3).
    """
    open_rows: list[list[Piece]] = []
    room: list[int] = []
    closed: list[list[Piece]] = []
    for piece in pieces:
        size = len(piece.tokens)
        place = next((index for index, free in enumerate(room) if free >= size), None)
        if place is None:
            if len(room) == OPEN_ROWS:
                fullest = room.index(min(room))
                closed.append(open_rows.pop(fullest))
                room.pop(fullest)
            open_rows.append([])
            room.append(row_tokens)
            place = len(room) - 1
        open_rows[place].append(piece)
        room[place] -= size
    return [_padded(row, row_tokens, pad) for row in closed + open_rows]


def _padded(pieces: Sequence[Piece], row_tokens: int, pad: int) -> Row:
    tokens = np.full(row_tokens, pad, dtype=np.uint16)
    weights = np.zeros(row_tokens, dtype=np.uint8)
    documents = np.full(row_tokens, -1, dtype=np.int16)
    positions = np.zeros(row_tokens, dtype=np.int16)
    start = 0
    for number, piece in enumerate(pieces):
        stop = start + len(piece.tokens)
        tokens[start:stop], weights[start:stop] = piece.tokens, piece.weights
        documents[start:stop], positions[start:stop] = number, np.arange(stop - start)
        start = stop
    return Row(tokens, weights, documents, positions)


def _answer_starts(piece: Piece) -> int:
    return int(np.argmax(piece.weights == 100))


def _body(record: Record) -> str:
    if record.prompt is None:
        return f"{record.text}{END}"
    return answer_turn(shorten(record.text, rule_for(record.source).answer_chars))


def _copies(times: float, random: np.random.Generator) -> int:
    whole = int(times)
    return whole + int(random.random() < times - whole)


def _ids(ids: Sequence[int]) -> Tokens:
    return np.asarray(ids, dtype=np.uint16)


def _constant(count: int, percent: int) -> Weights:
    return np.full(count, percent, dtype=np.uint8)
