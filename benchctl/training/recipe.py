"""From data to everything a run needs: the recipe of the reference models, and lessons for any target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tokenizers import Tokenizer

from benchctl.errors import UserError
from benchctl.training.data.chat import ChatFormat, Joints
from benchctl.training.data.corpus import Message, Record, is_held_out
from benchctl.training.data.packing import (
    FULL,
    Batch,
    CutPieces,
    Document,
    PackedCorpus,
    Piece,
    batch_of,
    chunks,
    conversation,
    cut_pieces,
    fill_rows,
)
from benchctl.training.data.reading import read_parts
from benchctl.training.mix import PROMPT_WEIGHT, Mix, joined_turns
from benchctl.training.schedule import Stage
from benchctl.training.settings import Data
from benchctl.training.sources import LATE, MAIN, rule_for, shorten, weight
from benchctl.training.synthetic import story_records, suite_records, synthetic_records
from benchctl.training.tokenizer import train_tokenizer

STAGES = (Stage(0.6, 256, 8), Stage(0.88, 512, 4), Stage(1.0, 1024, 2))
STAGE_WEIGHTS = (MAIN, LATE, LATE)
TASKS, SYNTHETIC_CHATS = 40_000, 1500
SYSTEM_PROMPT = "You are a helpful assistant."
HELD_OUT_ROWS = 64
HELD_OUT = Stage(1.0, 512, 8)
ENOUGH_RECORDS = 500  # of so many, one in a hundred finds at least one but for one data set in 150


@dataclass(frozen=True)
class Corpus:
    """Training records, held-out records per kind, and the hash of every file they came from.

    `weighed`: sources.py says how often a source is read and where its answers are cut; else all is read once, whole.
    """

    train: list[Record]
    held_out: dict[str, list[Record]]
    hashes: dict[str, str]
    weighed: bool = False


def read_corpus(sources: Sequence[str]) -> Corpus:
    """Reads files, folders and data sets of the hub.

    Held out is what stands in files named *val*; of chats, and of texts, that have no such file it is one record in a
    hundred. Raises UserError when there is nothing to train on or nothing to hold out.
    """
    train: list[Record] = []
    given: list[Record] = []
    hashes: dict[str, str] = {}
    for part in read_parts(sources):
        (given if part.held_out else train).extend(part.records)
        hashes[part.name if part.name not in hashes else f"{part.name} ({len(hashes) + 1})"] = part.sha256
    kinds = {kind for kind in (True, False) if not any(bool(record.messages) == kind for record in given)}
    moved = [bool(record.messages) in kinds and is_held_out(record) for record in train]
    held_out = given + [record for record, out in zip(train, moved, strict=True) if out]
    train = [record for record, out in zip(train, moved, strict=True) if not out]
    if not train:
        raise UserError("all of the data has a name with val or test and is held out; give files to train on")
    if not held_out:
        raise UserError(
            f"{len(train)} records are too few to hold out one in a hundred; give {ENOUGH_RECORDS} or more, or put "
            "some of them into a file whose name ends in _val"
        )
    return Corpus(train, _by_kind(held_out), hashes)


def reference_corpus(sources: Sequence[str]) -> Corpus:
    """The corpus of the reference models: what `sources` hold but for what weighs nothing, and what rules make."""
    corpus = read_corpus(sources)
    train = _weighty(corpus.train)
    train += story_records(train) + synthetic_records(TASKS, SYNTHETIC_CHATS)
    held_out = {name: kept for name, records in corpus.held_out.items() if (kept := _weighty(records))}
    return Corpus(train, {**held_out, "tasks": suite_records()}, corpus.hashes, weighed=True)


def tokenizer_for(corpus: Corpus, vocabulary: int) -> Tokenizer:
    """A tokenizer trained on the records, in proportion to their weights where these count."""
    random = np.random.default_rng(0)
    texts = [
        text
        for record in corpus.train
        if not corpus.weighed or random.random() < weight(record.source, MAIN)
        for text in (*(message.content for message in record.prompt), record.answer)
    ]
    return train_tokenizer(texts, vocabulary)


def corpus_data(
    corpus: Corpus,
    chat: ChatFormat,
    stages: Sequence[Stage] = STAGES,
    seed: int = 0,
    prompt_weight: int = PROMPT_WEIGHT,
) -> Data:
    """The data of the reference recipe, packed as Mix does; prompts weigh `prompt_weight` percent.

    Raises UserError for a template whose turns do not join, and where a stage or a held-out set has nothing to read.
    """
    joints = chat.joints(SYSTEM_PROMPT)
    documents = chat.tokenize(_as_read(corpus, corpus.train))
    columns = [STAGE_WEIGHTS[min(index, 2)] if corpus.weighed else None for index in range(len(stages))]
    mixes = [
        Mix(documents, joints, stage.row_tokens, column, prompt_weight)
        for stage, column in zip(stages, columns, strict=True)
    ]
    *_, dropped = [mix.dropped_answers() for mix in mixes]  # rows grow: what the last stage drops, none reads
    packed = [
        PackedCorpus(mix.pieces, mix.row_tokens, chat.pad_id, seed, stage=index) for index, mix in enumerate(mixes)
    ]
    packed[-1].dropped_answers = dropped
    pieces = {
        name: _held_out_pieces(chat.tokenize(_as_read(corpus, records)), joints, prompt_weight)
        for name, records in corpus.held_out.items()
    }
    held_out = {name: held_out_batches(_fitting(name, found), HELD_OUT, chat.pad_id) for name, found in pieces.items()}
    long = sum(len(piece.tokens) > HELD_OUT.row_tokens for found in pieces.values() for piece in found)
    return Data(packed, held_out, chat.token_bytes(), long)


def lesson_data(
    corpus: Corpus, chat: ChatFormat, row_tokens: int, micro_rows: int, seed: int, prompt_weight: float
) -> Data:
    """Data for any target: every record is read once a pass, as it is, and prompts weigh `prompt_weight` (0 to 1).

    Raises UserError when rows of `row_tokens` tokens hold no answer at all.
    """
    rows = lesson_rows(chat.tokenize(corpus.train), chat, row_tokens, seed, prompt_weight)
    held_out = {
        name: lesson_batches(chat.tokenize(records), chat, Stage(1.0, row_tokens, micro_rows), prompt_weight)
        for name, records in corpus.held_out.items()
    }
    return Data([rows], held_out, chat.token_bytes())


def lesson_rows(
    documents: Sequence[Document], chat: ChatFormat, row_tokens: int, seed: int, prompt_weight: float, stage: int = 0
) -> PackedCorpus:
    """Every document once a pass; a chat is cut at the end of a row, see PackedCorpus for what is left out then."""
    cut = _cut(documents, row_tokens, prompt_weight)
    left_out = (cut.dropped_answers, cut.long_prompts)
    return PackedCorpus(lambda random: cut.pieces, row_tokens, chat.pad_id, seed, stage, *left_out)


def lesson_batches(documents: Sequence[Document], chat: ChatFormat, stage: Stage, prompt_weight: float) -> list[Batch]:
    """Held-out batches of documents as `lesson_rows` cuts them."""
    return held_out_batches(_cut(documents, stage.row_tokens, prompt_weight).pieces, stage, chat.pad_id)


def held_out_batches(pieces: Sequence[Piece], stage: Stage, pad_id: int) -> list[Batch]:
    """A fixed sample of the pieces, HELD_OUT_ROWS rows at most, as batches of the stage's rows."""
    order = np.random.default_rng(0).permutation(len(pieces))
    rows = fill_rows([pieces[index] for index in order], stage.row_tokens, pad_id)[:HELD_OUT_ROWS]
    return [batch_of(rows[start : start + stage.micro_rows]) for start in range(0, len(rows), stage.micro_rows)]


def _cut(documents: Sequence[Document], row_tokens: int, prompt_weight: float) -> CutPieces:
    if not 0 <= prompt_weight <= 1:
        raise UserError(f"the weight of prompts is {prompt_weight:g}; give one from 0 to 1")
    cut = cut_pieces(documents, row_tokens, round(FULL * prompt_weight))
    if not cut.pieces:
        raise UserError(
            f"every prompt is longer than a row of {row_tokens} tokens; give longer rows or shorter prompts"
        )
    return cut


def _held_out_pieces(documents: Sequence[Document], joints: Joints, prompt_weight: int) -> list[Piece]:
    """Texts in chunks that fit a held-out row, and whole chats, however long."""
    pieces: list[Piece] = []
    for document in documents:
        if document.turns:
            pieces.append(conversation(joined_turns([document], joints, joints.opening), prompt_weight))
        else:
            pieces += chunks(document.text, HELD_OUT.row_tokens)
    return pieces


def _fitting(name: str, pieces: Sequence[Piece]) -> list[Piece]:
    """Those no longer than a held-out row. Raises UserError when there are none."""
    found = [piece for piece in pieces if len(piece.tokens) <= HELD_OUT.row_tokens]
    if not found:
        raise UserError(
            f"every held-out chat of '{name}' is longer than {HELD_OUT.row_tokens} tokens, so nothing is left to "
            "measure; put some shorter ones into a file whose name ends in _val"
        )
    return found


def _as_read(corpus: Corpus, records: Sequence[Record]) -> Iterable[Record]:
    """The records as the corpus has them read."""
    return map(_shortened, records) if corpus.weighed else records


def _shortened(record: Record) -> Record:
    """The record with its answer cut to the length that its source is given."""
    if not record.messages:
        return record
    answer = shorten(record.answer, rule_for(record.source).answer_chars)
    return replace(record, messages=(*record.prompt, Message("assistant", answer)))


def _weighty(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if weight(record.source, MAIN) + weight(record.source, LATE) > 0]


def _by_kind(records: Sequence[Record]) -> dict[str, list[Record]]:
    kinds = {
        "instruct": [record for record in records if record.messages],
        "text": [record for record in records if not record.messages],
    }
    return {name: members for name, members in kinds.items() if members}
