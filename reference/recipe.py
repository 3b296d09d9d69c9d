"""From data files to the training rows of the embedded models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from tokenizers import Tokenizer

from benchctl.errors import UserError
from benchctl.training.data.chats import ChatFormat, Message, Record
from benchctl.training.data.packing import PROMPT_WEIGHT, Document, PackedCorpus, Piece, chunks, conversation
from benchctl.training.data.reading import Corpus, read_corpus
from benchctl.training.modules.training_text import held_out_batches
from benchctl.training.optim import Stage
from benchctl.training.trainer import Data
from reference.bpe import Joints, joints_of, train_tokenizer
from reference.mix import Mix, joined_turns
from reference.requests import user_requests
from reference.sources import LATE, MAIN, rule_for, shorten, weight
from reference.synthetic import story_records, suite_records, synthetic_records

STAGES = (Stage(0.6, 256, 8), Stage(0.88, 512, 4), Stage(1.0, 1024, 2))
STAGE_WEIGHTS = (MAIN, LATE, LATE)
TASKS, SYNTHETIC_CHATS = 40_000, 1500
SYSTEM_PROMPT = "You are a helpful assistant."
HELD_OUT = Stage(1.0, 512, 8)


def fitting(stages: tuple[Stage, ...], longest: int) -> tuple[Stage, ...]:
    """The same stages with rows of `longest` tokens at most, and so many more of them.

    fitting((Stage(1.0, 1024, 2),), 256) is (Stage(1.0, 256, 8),).
    """
    lengths = [min(stage.row_tokens, longest) for stage in stages]
    return tuple(
        Stage(stage.until, length, stage.row_tokens * stage.micro_rows // length)
        for stage, length in zip(stages, lengths, strict=True)
    )


class ReferenceRecipe:
    """Weights of sources.py and rule-made requests, as benchctl.training.data.reading.Recipe."""

    def weight(self, source: str) -> float:
        return weight(source, LATE)

    def requests(self, records: Sequence[Record], count: int, seed: int) -> list[tuple[Message, ...]]:
        return user_requests(records, count, seed)

    def card_columns(self, source: str) -> tuple[str, str]:
        rule = rule_for(source)
        return f"{rule.main:g} / {rule.late:g}", rule.licence


def reference_corpus(sources: Sequence[str]) -> Corpus:
    """The corpus of the embedded models: the records of `sources` that have a weight, and rule-made ones."""
    corpus = read_corpus(sources)
    train = _weighty(corpus.train)
    train += story_records(train) + synthetic_records(TASKS, SYNTHETIC_CHATS)
    held_out = {name: kept for name, records in corpus.held_out.items() if (kept := _weighty(records))}
    return Corpus(train, {**held_out, "tasks": suite_records()}, corpus.hashes, ReferenceRecipe())


def tokenizer_for(corpus: Corpus, vocabulary: int) -> Tokenizer:
    """A tokenizer trained on the records, in proportion to their weights where these count."""
    random = np.random.default_rng(0)
    texts = [
        text
        for record in corpus.train
        if not corpus.recipe or random.random() < weight(record.source, MAIN)
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
    joints = joints_of(chat, SYSTEM_PROMPT)
    documents = chat.tokenize(_as_read(corpus, corpus.train))
    columns = [STAGE_WEIGHTS[min(index, 2)] if corpus.recipe else None for index in range(len(stages))]
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
            "rows_too_short",
            f"every held-out chat of '{name}' is longer than {HELD_OUT.row_tokens} tokens, so nothing is left to "
            "measure; put some shorter ones into a file whose name ends in _val",
        )
    return found


def _as_read(corpus: Corpus, records: Sequence[Record]) -> Iterable[Record]:
    """The records as the corpus has them read."""
    return map(_shortened, records) if corpus.recipe else records


def _shortened(record: Record) -> Record:
    """The record with its answer cut to the length that its source is given."""
    if not record.messages:
        return record
    answer = shorten(record.answer, rule_for(record.source).answer_chars)
    return replace(record, messages=(*record.prompt, Message("assistant", answer)))


def _weighty(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if weight(record.source, MAIN) + weight(record.source, LATE) > 0]
