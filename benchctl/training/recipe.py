"""From data files to everything a run of the reference recipe needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from benchctl.training.corpus import Record, data_files, data_hash, is_held_out, read_records
from benchctl.training.packing import Batch, PackedCorpus, Piece, batch_of, chunks, conversation, fill_rows, tokenize
from benchctl.training.schedule import Stage
from benchctl.training.sources import LATE, MAIN, weight
from benchctl.training.synthetic import story_records, suite_records, synthetic_records
from benchctl.training.tokenizer import BOS, PAD, SPECIALS, token_id, train_tokenizer
from benchctl.training.trainer import Data

STAGES = (Stage(0.6, 256, 8), Stage(0.88, 512, 4), Stage(1.0, 1024, 2))
STAGE_WEIGHTS = (MAIN, LATE, LATE)
TASKS, SYNTHETIC_CHATS = 40_000, 1500
HELD_OUT_ROWS = 64
HELD_OUT_ROW_TOKENS = 512
TOKENIZER_CHARS = 30_000_000


@dataclass(frozen=True)
class Corpus:
    """Training records, held-out records per kind, and the hash of every file they came from."""

    train: list[Record]
    held_out: dict[str, list[Record]]
    hashes: dict[str, str]


def read_corpus(paths: Sequence[Path]) -> Corpus:
    """Reads every file; chats of files named *val* and one text in a hundred are held out. Raises CorpusError."""
    files = data_files(paths)
    train: list[Record] = []
    chats: list[Record] = []
    texts: list[Record] = []
    for path in files:
        held = "val" in path.name.split(".")[0]
        for record in read_records(path):
            part = chats if held else texts if is_held_out(record) else train
            if weight(record.source, MAIN) + weight(record.source, LATE) > 0:
                part.append(record)
    train += story_records(train) + synthetic_records(TASKS, SYNTHETIC_CHATS)
    parts = (("instruct", chats), ("text", texts), ("tasks", suite_records()))
    held_out = {name: records for name, records in parts if records}
    return Corpus(train, held_out, data_hash(files))


def tokenizer_for(corpus: Corpus, vocabulary: int) -> Tokenizer:
    """A tokenizer trained on the records in proportion to their weights."""
    random = np.random.default_rng(0)
    texts = [
        text
        for record in corpus.train
        if random.random() < weight(record.source, MAIN)
        for text in (record.prompt or "", record.text)
    ]
    return train_tokenizer(texts, vocabulary)


def corpus_data(corpus: Corpus, tokenizer: Tokenizer, stages: Sequence[Stage] = STAGES, seed: int = 0) -> Data:
    """Packed rows for every stage and the held-out batches."""
    documents = tokenize(corpus.train, tokenizer)
    packed = [
        PackedCorpus(documents, tokenizer, stage.row_tokens, seed, index, STAGE_WEIGHTS[min(index, 2)])
        for index, stage in enumerate(stages)
    ]
    held_out = {name: held_out_batches(records, tokenizer) for name, records in corpus.held_out.items()}
    return Data(packed, held_out, token_bytes(tokenizer))


def held_out_batches(records: Sequence[Record], tokenizer: Tokenizer) -> list[Batch]:
    """A fixed sample of the held-out records as batches of 8 rows."""
    bos = np.asarray([token_id(tokenizer, BOS)], dtype=np.uint16)
    pieces: list[Piece] = []
    for document in tokenize(records, tokenizer):
        chat = len(document.head) > 0
        pieces += [conversation(bos, [document])] if chat else chunks(document, bos, HELD_OUT_ROW_TOKENS)
    pieces = [piece for piece in pieces if len(piece.tokens) <= HELD_OUT_ROW_TOKENS]
    order = np.random.default_rng(0).permutation(len(pieces))
    rows = fill_rows([pieces[i] for i in order], HELD_OUT_ROW_TOKENS, token_id(tokenizer, PAD))[:HELD_OUT_ROWS]
    return [batch_of(rows[start : start + 8]) for start in range(0, len(rows), 8)]


def token_bytes(tokenizer: Tokenizer) -> torch.Tensor:
    """Bytes of every token [vocabulary]; special tokens stand for none."""
    vocabulary = tokenizer.get_vocab()
    sizes = torch.zeros(len(vocabulary), dtype=torch.int64)
    for token, index in vocabulary.items():
        sizes[index] = 0 if token in SPECIALS else len(token)  # the byte alphabet has one character per byte
    return sizes
