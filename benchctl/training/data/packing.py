"""Packs documents into rows of one length; no document of a row sees another, so a row is worth its documents alone.

A token also has a weight: 1 for text and answers, less for what is said to the model, 0 for padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from benchctl.errors import UserError

Tokens = npt.NDArray[np.unsignedinteger]
Weights = npt.NDArray[np.uint8]  # in percent

FULL = 100
PROMPT_WEIGHT = 30  # of what is said to the model, unless only answers are to be learned
OPEN_ROWS = 64
NO_TOKENS: Tokens = np.zeros(0, dtype=np.uint16)


@dataclass(frozen=True)
class Turn:
    """`head`: what the model is given before the answer; `answer`: what it is to write, its stop token included."""

    head: Tokens
    answer: Tokens


@dataclass(frozen=True)
class Document:
    """The tokens of one record: the turns of a chat, the whole of it in order, or else (without turns) plain text.

    `apart`: an encoder reads the heads, so each is the whole prompt of its answer, and the decoder's text the answer.
    """

    source: str
    turns: tuple[Turn, ...] = ()
    text: Tokens = field(default_factory=lambda: NO_TOKENS)
    apart: bool = False


@dataclass(frozen=True)
class Batch:
    """All [rows, row_tokens]: tokens, the loss weight of each (float32), its document's number within the row (-1 for
    padding) and its position within that document.

    `prompts` [documents, longest]: where an encoder reads them, those of all documents, row by row; -1 for padding.
    """

    tokens: torch.Tensor
    weights: torch.Tensor
    documents: torch.Tensor
    positions: torch.Tensor
    prompts: torch.Tensor | None = None

    @property
    def mask(self) -> torch.Tensor:
        """What a token may see [rows, 1, row_tokens, row_tokens]: itself and what stands before it in its document."""
        same = self.documents[:, None, :, None] == self.documents[:, None, None, :]
        return same.tril()

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device`; a GPU goes on with what it is doing meanwhile."""
        return Batch(
            **{name: part.to(device, non_blocking=True) for name, part in vars(self).items() if part is not None}
        )


@dataclass(frozen=True)
class Piece:
    """What is placed into a row as a whole; `prompt` is what an encoder reads for it, None where there is none."""

    tokens: Tokens
    weights: Weights
    prompt: Tokens | None = None


Row = Sequence[Piece]  # one after the other


@dataclass(frozen=True)
class CutPieces:
    """The pieces of documents that were cut to a length, and how many answers were left out because none of it fits.

    `long_prompts`: how many were because of a prompt, for an encoder, that does not fit.
    """

    pieces: list[Piece]
    dropped_answers: int = 0
    long_prompts: int = 0


def token_dtype(vocabulary: int) -> type[np.unsignedinteger]:
    """The smallest type that holds every id below `vocabulary`."""
    return np.uint16 if vocabulary <= 2**16 else np.uint32


def batch_of(rows: Sequence[Row], row_tokens: int, pad_id: int) -> Batch:
    """Rows as tensors, padded to `row_tokens`."""
    tokens = np.full((len(rows), row_tokens), pad_id, dtype=np.int64)
    weights = np.zeros(tokens.shape, dtype=np.float32)
    documents, positions = np.full_like(tokens, -1), np.zeros_like(tokens)
    for line, row in enumerate(rows):
        end = 0
        for number, piece in enumerate(row):
            place = np.s_[line, end : end + len(piece.tokens)]
            tokens[place], documents[place], positions[place] = piece.tokens, number, np.arange(len(piece.tokens))
            weights[place] = piece.weights.astype(np.float32) / FULL
            end += len(piece.tokens)
    prompts = [piece.prompt for row in rows for piece in row if piece.prompt is not None]
    return Batch(
        torch.from_numpy(tokens),
        torch.from_numpy(weights),
        torch.from_numpy(documents),
        torch.from_numpy(positions),
        side_by_side(prompts) if prompts else None,
    )


def side_by_side(prompts: Sequence[Tokens | Sequence[int]]) -> torch.Tensor:
    """[prompts, longest], -1 after the end of each."""
    wide = np.full((len(prompts), max(map(len, prompts))), -1, dtype=np.int64)
    for line, prompt in zip(wide, prompts, strict=True):
        line[: len(prompt)] = np.asarray(prompt)
    return torch.from_numpy(wide)


@dataclass
class PackedCorpus:
    """Rows of `row_tokens` tokens in an order fixed by the seed: pass after pass, each pass shuffled again.

    `pieces` gives the pieces of one pass, drawn with that pass's generator. `rows(start, count)` gives rows by their
    number since the beginning of the stage, so the position in the data is one integer. `stage` numbers the stage of
    the run. `dropped_answers` were too far from the beginning of their chat to fit into a row; the prompts of
    `long_prompts` answers do not.
    """

    pieces: Callable[[np.random.Generator], Sequence[Piece]]
    row_tokens: int
    pad_id: int
    seed: int
    stage: int = 0
    dropped_answers: int = 0
    long_prompts: int = 0
    _epoch: int = field(default=-1, init=False)
    _first_row: int = field(default=0, init=False)
    _rows: list[Row] = field(default_factory=list, init=False)

    def rows(self, start: int, count: int) -> Batch:
        """Rows start .. start + count - 1. Raises UserError when there is nothing to pack."""
        return batch_of([self._row(number) for number in range(start, start + count)], self.row_tokens, self.pad_id)

    def rows_per_pass(self) -> int:
        """Rows of the first pass; where documents are drawn by weight, other passes have a few more or less."""
        self._row(0)
        return len(self._rows)

    def _row(self, number: int) -> Row:
        if number < self._first_row:
            self._epoch, self._first_row, self._rows = -1, 0, []
        while number >= self._first_row + len(self._rows):
            self._epoch, self._first_row = self._epoch + 1, self._first_row + len(self._rows)
            self._rows = self._pack(self._epoch)
        return self._rows[number - self._first_row]

    def _pack(self, epoch: int) -> list[Row]:
        random = np.random.default_rng([self.seed, self.stage, epoch])
        pieces = self.pieces(random)
        rows = fill_rows([pieces[index] for index in random.permutation(len(pieces))], self.row_tokens)
        if not rows:
            raise UserError(
                "rows_too_short", f"nothing to read fits into rows of {self.row_tokens} tokens; give shorter prompts"
            )
        return [rows[index] for index in random.permutation(len(rows))]


def cut_pieces(documents: Iterable[Document], longest: int, prompt_weight: int) -> CutPieces:
    """Every document as pieces of at most `longest` tokens: text in chunks, a chat up to where it is cut.

    A chat of which no answer is left is left out. `prompt_weight` is in percent. Where an encoder reads the prompts,
    each answer is a piece of its own, and its prompt is shorter than `longest`, as at decoding than the context.
    """
    pieces: list[Piece] = []
    dropped = long_prompts = 0
    for document in documents:
        if not document.turns:
            pieces += chunks(document.text, longest)
        elif document.apart:
            fitting = [turn for turn in document.turns if len(turn.head) < longest]
            long_prompts += len(document.turns) - len(fitting)
            pieces += [cut_to(apart(turn), longest) for turn in fitting]
        else:
            starts = answer_starts(document.turns)
            dropped += sum(start >= longest for start in starts)
            if starts[0] < longest:
                pieces.append(cut_to(conversation(document.turns, prompt_weight), longest))
    return CutPieces(pieces, dropped, long_prompts)


def answer_starts(turns: Sequence[Turn]) -> list[int]:
    """Where the answer of each turn begins: heads of 2 and 1 tokens, the first answer of 3 tokens, give 2 and 6."""
    starts, end = [], 0
    for turn in turns:
        starts.append(end + len(turn.head))
        end = starts[-1] + len(turn.answer)
    return starts


def conversation(turns: Sequence[Turn], prompt_weight: int) -> Piece:
    """One piece of a chat: head and answer of every turn, the heads at `prompt_weight` percent."""
    parts = [part for turn in turns for part in (turn.head, turn.answer)]
    weights = [constant(len(part), FULL if number % 2 else prompt_weight) for number, part in enumerate(parts)]
    return Piece(np.concatenate(parts), np.concatenate(weights))


def apart(turn: Turn) -> Piece:
    """The answer to a prompt that an encoder reads, after a place for the decoder's start token.

    The place holds 0; the model that reads it knows which token it is.
    """
    tokens = np.concatenate([np.zeros(1, dtype=turn.answer.dtype), turn.answer])
    return Piece(tokens, np.concatenate([constant(1, 0), constant(len(turn.answer), FULL)]), turn.head)


def cut_to(piece: Piece, longest: int) -> Piece:
    """The first `longest` tokens of a piece."""
    return Piece(piece.tokens[:longest], piece.weights[:longest], piece.prompt)


def chunks(text: Tokens, longest: int) -> list[Piece]:
    """Plain text, cut into pieces of at most `longest` tokens."""
    cut = [text[start : start + longest] for start in range(0, len(text), longest)]
    return [Piece(part, constant(len(part), FULL)) for part in cut]


def constant(count: int, percent: int) -> Weights:
    """`count` equal weights."""
    return np.full(count, percent, dtype=np.uint8)


def fill_rows(pieces: Iterable[Piece], row_tokens: int) -> list[Row]:
    """Places pieces whole, each into the first open row of `row_tokens` tokens with room.

    Pieces of 3, 3, 2 tokens in rows of 5 give the rows (3, 2) and (3).
    """
    open_rows: list[list[Piece]] = []
    room: list[int] = []
    closed: list[list[Piece]] = []
    for piece in pieces:
        size = len(piece.tokens)
        place = next((index for index, free in enumerate(room) if free >= size), len(room))
        if place == len(room):
            if len(room) == OPEN_ROWS:
                fullest = room.index(min(room))
                closed.append(open_rows.pop(fullest))
                room.pop(fullest)
                place -= 1
            open_rows.append([])
            room.append(row_tokens)
        open_rows[place].append(piece)
        room[place] -= size
    return [*closed, *open_rows]
