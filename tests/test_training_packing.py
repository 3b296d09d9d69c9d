"""Rows: whole documents, weights per token, an order that depends on nothing but the seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from fixtures_training import CHATS, TEXTS
from tokenizers import Tokenizer

from benchctl.training.corpus import Record
from benchctl.training.packing import Document, PackedCorpus, Piece, chunks, conversation, fill_rows, tokenize
from benchctl.training.sources import LATE, MAIN
from benchctl.training.tokenizer import BOS, END, PAD, token_id, train_tokenizer

PADDING = 9


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([record.text for record in CHATS + TEXTS], vocabulary=320)


def packed(tokenizer: Tokenizer, records: list[Record], row_tokens: int = 64, weights: int = MAIN) -> PackedCorpus:
    return PackedCorpus(tokenize(records, tokenizer), tokenizer, row_tokens, seed=0, stage=0, weights=weights)


def piece(*tokens: int) -> Piece:
    return Piece(np.asarray(tokens, dtype=np.uint16), np.full(len(tokens), 100, dtype=np.uint8))


def document(*tokens: int, head: tuple[int, ...] = ()) -> Document:
    return Document("unit", np.asarray(head, dtype=np.uint16), np.asarray(tokens, dtype=np.uint16))


def test_pieces_are_placed_whole_into_the_first_row_with_room() -> None:
    rows = fill_rows([piece(1, 1, 1), piece(2, 2, 2), piece(3, 3)], 5, PADDING)
    assert [row.tokens.tolist() for row in rows] == [[1, 1, 1, 3, 3], [2, 2, 2, PADDING, PADDING]]
    assert rows[1].weights.tolist() == [100, 100, 100, 0, 0]


def test_long_text_is_cut_and_only_its_beginning_has_a_bos() -> None:
    cut = chunks(document(1, 2, 3, 4, 5), np.asarray([0], dtype=np.uint16), longest=4)
    assert [part.tokens.tolist() for part in cut] == [[0, 1, 2, 3], [4, 5]]


def test_what_the_user_says_weighs_less_than_the_answer() -> None:
    turns = [document(5, 6, head=(3, 4)), document(8, head=(7,))]
    chat = conversation(np.asarray([0], dtype=np.uint16), turns)
    assert chat.tokens.tolist() == [0, 3, 4, 5, 6, 7, 8]
    assert chat.weights.tolist() == [30, 30, 30, 100, 100, 30, 100]


def test_rows_begin_where_a_document_begins_and_end_it_before_the_next(tokenizer: Tokenizer) -> None:
    bos, end, pad = (token_id(tokenizer, token) for token in (BOS, END, PAD))
    batch = packed(tokenizer, CHATS + TEXTS).rows(0, 20)
    for tokens, weights in zip(batch.tokens.tolist(), batch.weights.tolist(), strict=True):
        assert tokens[0] == bos
        for place in range(1, len(tokens)):
            if tokens[place] == bos:
                assert end in tokens[place - 2 : place]
        assert [weight == 0 for weight in weights] == [token == pad for token in tokens]


def test_one_pass_holds_every_text_as_often_as_its_weight(tokenizer: Tokenizer) -> None:
    records = [
        Record("llms_from_scratch", None, "five times"),
        Record("tinyshakespeare", None, "never"),
        Record("unit", None, "once"),
    ]
    rows = packed(tokenizer, records)
    rows.rows(0, 1)
    end = tokenizer.encode(END).ids[0]
    seen: Counter[str] = Counter()
    for row in rows._rows:
        ends = [place for place, token in enumerate(row.tokens.tolist()) if token == end]
        starts = [0, *(place + 1 for place in ends)]
        seen.update(tokenizer.decode(row.tokens[a:b].tolist()) for a, b in zip(starts, ends, strict=False))
    assert seen == {"five times": 5, "once": 1}


def test_a_stage_without_weight_is_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="no document has a weight"):
        packed(tokenizer, [Record("wikitext2_test", None, "left out")], weights=LATE).rows(0, 1)


def test_rows_depend_on_their_number_alone(tokenizer: Tokenizer) -> None:
    """A resumed run asks for row 40 first, an uninterrupted one for all before it."""
    whole = packed(tokenizer, CHATS).rows(0, 60)
    late = packed(tokenizer, CHATS)
    assert torch.equal(late.rows(40, 20).tokens, whole.tokens[40:])
    assert torch.equal(late.rows(0, 5).tokens, whole.tokens[:5])
    assert not torch.equal(whole.tokens[:10], packed(tokenizer, TEXTS).rows(0, 10).tokens)


def test_too_long_a_prompt_is_left_out_and_too_long_an_answer_is_cut(tokenizer: Tokenizer) -> None:
    long = " ".join(["the dog"] * 60)
    batch = packed(tokenizer, [Record("unit", "Hi", long), Record("unit", long, "Hi")], row_tokens=32).rows(0, 1)
    assert PADDING not in batch.tokens[0, -1:].tolist()
    assert batch.weights[0, -1] == 1
    assert token_id(tokenizer, END) in batch.tokens[0, :10].tolist()
