"""Rows: whole documents that do not see one another, weights per token, an order that depends on the seed alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from refusals import refused
from tiny import tiny_model
from tokenizers import Tokenizer

from benchctl.training.data.chats import ChatFormat, Message, Record
from benchctl.training.data.packing import (
    Batch,
    Document,
    PackedCorpus,
    Piece,
    Tokens,
    Turn,
    batch_of,
    chunks,
    conversation,
    cut_pieces,
    fill_rows,
)
from benchctl.training.data.reading import Corpus
from benchctl.training.modules.objective import logits_of
from benchctl.training.modules.training_text import data_of
from benchctl.training.optim import Stage
from reference.bpe import BOS, END, PAD, Joints, chat_format, joints_of, token_id, train_tokenizer
from reference.mix import Mix, joined_turns
from reference.recipe import SYSTEM_PROMPT, ReferenceRecipe, corpus_data
from reference.sources import LATE, MAIN

PADDING = 9
STAGE_OF_64 = (Stage(1.0, 64, 1),)
ANIMALS = ("dog", "cat", "bird", "fish", "horse", "cow")
CHATS = [
    Record.chat("unit", f"Who is {color}?", f"The {animal} is {color}, and the {animal} sleeps in the {color} house.")
    for color in ("red", "green", "blue", "white", "black")
    for animal in ANIMALS
]
TEXTS = [
    Record.plain("unit", f"Once the {a} met the {b}. The {b} and the {a} went home.") for a in ANIMALS for b in ANIMALS
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([record.answer for record in CHATS + TEXTS], vocabulary=320)


@pytest.fixture(scope="module")
def chat(tokenizer: Tokenizer) -> ChatFormat:
    return chat_format(tokenizer)


def mixed(chat: ChatFormat, records: list[Record], row_tokens: int = 64, weights: int | None = MAIN) -> PackedCorpus:
    mix = Mix(chat.tokenize(records), joints_of(chat, SYSTEM_PROMPT), row_tokens, weights)
    return PackedCorpus(mix.pieces, row_tokens, chat.pad_id, seed=0)


def read_once(chat: ChatFormat, records: list[Record], row_tokens: int) -> PackedCorpus:
    (rows,) = data_of(chat.tokenize(records), {}, chat, Stage(1.0, row_tokens, 1), 0, prompt_weight=0).stages
    assert isinstance(rows, PackedCorpus)
    return rows


def ids(*tokens: int) -> Tokens:
    return np.asarray(tokens, dtype=np.uint16)


def piece(*tokens: int) -> Piece:
    return Piece(ids(*tokens), np.full(len(tokens), 100, dtype=np.uint8))


def packed_row(documents: Sequence[Sequence[int]], row_tokens: int) -> Batch:
    return batch_of([[piece(*tokens) for tokens in documents]], row_tokens, pad_id=0)


def test_pieces_are_placed_whole_into_the_first_row_with_room() -> None:
    batch = batch_of(fill_rows([piece(1, 1, 1), piece(2, 2, 2), piece(3, 3)], 5), 5, PADDING)
    assert batch.tokens.tolist() == [[1, 1, 1, 3, 3], [2, 2, 2, PADDING, PADDING]]
    assert batch.weights[1].tolist() == [1, 1, 1, 0, 0]


def test_a_batch_numbers_the_documents_of_a_row_and_the_tokens_of_each() -> None:
    batch = packed_row([(1, 1, 1), (3, 3)], 6)
    assert batch.documents.tolist() == [[0, 0, 0, 1, 1, -1]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0]]
    assert batch.weights.tolist() == [[1, 1, 1, 1, 1, 0]]
    assert batch.mask[0, 0, 4].tolist() == [False, False, False, True, True, False]


def test_a_packed_row_gives_each_document_the_logits_it_has_alone() -> None:
    model, documents = tiny_model("llama", layers=2, dtype=torch.float64), [(3, 5, 7, 9, 11), (2, 4), (6, 8, 10)]
    with torch.no_grad():
        together = logits_of(model, packed_row(documents, 12))[0]
        alone = [model(torch.tensor([tokens])).logits[0] for tokens in documents]
    torch.testing.assert_close(together[:10], torch.cat(alone), rtol=1e-10, atol=1e-10)


def test_a_batch_moves_to_a_device_as_a_whole() -> None:
    moved = packed_row([(1, 2)], 3).to("meta")
    assert {part.device.type for part in (moved.tokens, moved.weights, moved.documents, moved.positions)} == {"meta"}


def test_long_text_is_cut_into_chunks() -> None:
    assert [part.tokens.tolist() for part in chunks(ids(0, 1, 2, 3, 4, 5), longest=4)] == [[0, 1, 2, 3], [4, 5]]


def test_what_is_said_to_the_model_weighs_less_than_the_answer() -> None:
    chat = conversation([Turn(ids(0, 3, 4), ids(5, 6)), Turn(ids(7), ids(8))], prompt_weight=30)
    assert chat.tokens.tolist() == [0, 3, 4, 5, 6, 7, 8]
    assert chat.weights.tolist() == [30, 30, 30, 100, 100, 30, 100]


def test_chats_put_together_share_one_opening_and_end_as_before_another_turn() -> None:
    joints = Joints(opening=ids(0), opening_with_system=ids(0, 9), after=ids(1))
    first = Document("unit", (Turn(ids(0, 3), ids(5)), Turn(ids(4), ids(6))))
    turns = joined_turns([first, Document("unit", (Turn(ids(0, 7), ids(8)),))], joints, joints.opening_with_system)
    assert conversation(turns, 30).tokens.tolist() == [0, 9, 3, 5, 4, 6, 1, 7, 8, 1]


def test_a_chat_is_cut_at_its_end_and_answers_beyond_it_are_counted() -> None:
    chat = Document("unit", (Turn(ids(1, 2), ids(3, 4)), Turn(ids(5, 6), ids(7))))
    cut = cut_pieces([chat], longest=3, prompt_weight=0)
    assert [part.tokens.tolist() for part in cut.pieces] == [[1, 2, 3]]
    assert [part.weights.tolist() for part in cut.pieces] == [[0, 0, 100]]
    assert cut.dropped_answers == 1


def test_a_chat_of_which_no_answer_is_left_is_left_out() -> None:
    long, short = (Document("unit", (Turn(ids(*range(size)), ids(9)),)) for size in (4, 3))
    cut = cut_pieces([long, short], longest=4, prompt_weight=50)
    assert [part.tokens.tolist() for part in cut.pieces] == [[0, 1, 2, 9]]
    assert cut.dropped_answers == 1


def test_the_recipe_draws_these_rows(chat: ChatFormat, tokenizer: Tokenizer) -> None:
    """Written down from the program that trained the published reference models: another draw is another recipe."""
    batch = mixed(chat, CHATS + TEXTS, row_tokens=128).rows(0, 40)
    rows = [tokenizer.decode(tokens.tolist(), skip_special_tokens=False).replace(PAD, "") for tokens in batch.tokens]
    assert rows[0] == (
        "<|bos|>Once the cow met the cow. The cow and the cow went home.<|end|>"
        "<|bos|><|user|>\nWho is blue?<|end|>\n<|assistant|>\n"
        "The cat is blue, and the cat sleeps in the blue house.<|end|>\n"
        "<|bos|>Once the horse met the bird. The bird and the horse went home.<|end|>"
        "<|bos|>Once the bird met the cow. The cow and the bird went home.<|end|>"
        "<|bos|>Once the cat met the cow. The cow and the cat went home.<|end|>"
        "<|bos|>Once the cow met the fish. The fish and the cow went home.<|end|>"
    )
    assert rows[1] == (
        "<|bos|><|user|>\nWho is black?<|end|>\n<|assistant|>\n"
        "The cat is black, and the cat sleeps in the black house.<|end|>\n"
        "<|user|>\nWho is black?<|end|>\n<|assistant|>\n"
        "The fish is black, and the fish sleeps in the black house.<|end|>\n"
        "<|bos|><|user|>\nWho is white?<|end|>\n<|assistant|>\n"
        "The dog is white, and the dog sleeps in the white house.<|end|>\n"
        "<|bos|>Once the fish met the fish. The fish and the fish went home.<|end|>"
    )
    opening = f"<|bos|><|system|>\n{SYSTEM_PROMPT}<|end|>\n<|user|>\n"
    assert sum(row.count(opening) for row in rows) == sum(row.count("<|system|>") for row in rows) == 3


@pytest.mark.parametrize(("weights", "times"), [(MAIN, (5, 0, 1)), (None, (1, 1, 1))])
def test_one_pass_holds_every_text_as_often_as_its_weight_in_the_reference_mix(
    chat: ChatFormat, weights: int | None, times: tuple[int, ...]
) -> None:
    """Without it every source is read once. Chats of somebody's own had the source tldr, and one in 16 was read."""
    sources = ("llms_from_scratch", "tinyshakespeare", "unit")
    rows = mixed(chat, [Record.plain(source, source) for source in sources], weights=weights)
    batch, seen = rows.rows(0, rows.rows_per_pass()), Counter[str]()
    for tokens, documents in zip(batch.tokens, batch.documents, strict=True):
        seen.update(chat.text_of(tokens[documents == number].tolist()) for number in range(int(documents.max()) + 1))
    assert tuple(seen[source] for source in sources) == times and seen.total() == sum(times)


def test_sources_weigh_and_answers_are_cut_for_the_reference_corpus_only(chat: ChatFormat) -> None:
    long = " ".join(["The dog sleeps."] * 60)  # 959 characters; stories are cut at 700
    records = [Record.chat("stories", "Hi", long), Record.plain("tinyshakespeare", "never")]
    for recipe, sources, stops in ((ReferenceRecipe(), 1, 43), (None, 2, 60)):
        corpus = Corpus(records, {"instruct": records[:1]}, {}, recipe)
        rows = corpus_data(corpus, chat, (Stage(1.0, 512, 1),)).stages[0].rows(0, 1)
        texts = [chat.text_of(rows.tokens[0][rows.documents[0] == number].tolist()) for number in range(2)]
        assert max(text.count("sleeps.") for text in texts) == stops
        assert ("never" in texts) == (sources == 2)


def test_prompts_of_the_recipe_may_count_for_nothing(chat: ChatFormat) -> None:
    for percent in (0, 30):
        data = corpus_data(Corpus(CHATS, {"instruct": CHATS}, {}), chat, STAGE_OF_64, prompt_weight=percent)
        for batch in (data.stages[0].rows(0, 8), *data.held_out["instruct"]):
            assert {round(weight, 3) for weight in batch.weights.flatten().tolist()} == {0.0, percent / 100, 1.0}


def test_answers_that_no_stage_has_room_for_are_counted_and_chats_too_long_to_measure(chat: ChatFormat) -> None:
    """The second answer of one chat, and both of another whose prompt takes three quarters of a row; a third has room
    for both."""
    long = " ".join(["the dog"] * 400)
    turns = (Message("user", "Hi"), Message("assistant", long), Message("user", "Hi"), Message("assistant", "no"))
    short = (*turns[:1], turns[3], *turns[2:])
    records = [Record("unit", said) for said in (turns, (Message("user", long), *turns[1:]), short)] + CHATS[:3]
    data = corpus_data(Corpus(records, {"instruct": records}, {}), chat, (Stage(0.5, 32, 1), Stage(1.0, 64, 1)))
    assert [rows.dropped_answers for rows in data.stages if isinstance(rows, PackedCorpus)] == [0, 3]
    assert data.long_held_out == 2


@pytest.mark.parametrize(
    ("held_out", "row_tokens", "facts"),
    [
        ("Hi", 8, ("three quarters", "8 tokens")),
        ("the dog " * 600, 64, ("'instruct'", "512 tokens", "_val")),
    ],
)
def test_a_recipe_with_nothing_to_read_fails(
    chat: ChatFormat, held_out: str, row_tokens: int, facts: tuple[str, ...]
) -> None:
    """A stage that no chat fitted looked for its next row for ever."""
    corpus = Corpus(CHATS, {"instruct": [Record.chat("unit", held_out, "Yes")]}, {})
    with refused("rows_too_short", *facts):
        corpus_data(corpus, chat, (Stage(0.5, 64, 1), Stage(1.0, row_tokens, 1)))


def test_rows_of_nothing_are_an_error() -> None:
    with refused("rows_too_short", "8 tokens"):
        PackedCorpus(lambda random: [], 8, PADDING, seed=0).rows(0, 1)


def test_a_stage_without_weight_is_an_error(chat: ChatFormat) -> None:
    with refused("no_weight", "reference/sources.py"):
        mixed(chat, [Record.plain("wikitext2_test", "left out")], weights=LATE).rows(0, 1)


def test_rows_depend_on_their_number_alone(chat: ChatFormat) -> None:
    """A resumed run asks for row 40 first, an uninterrupted one for all before it."""
    whole = mixed(chat, CHATS).rows(0, 60)
    late = mixed(chat, CHATS)
    assert torch.equal(late.rows(40, 20).tokens, whole.tokens[40:])
    assert torch.equal(late.rows(0, 5).tokens, whole.tokens[:5])
    assert not torch.equal(whole.tokens[:10], mixed(chat, TEXTS).rows(0, 10).tokens)


def test_the_next_pass_has_the_same_documents_in_another_order(chat: ChatFormat) -> None:
    rows = read_once(chat, CHATS, row_tokens=64)
    count = rows.rows_per_pass()
    first, second = rows.rows(0, count), rows.rows(count, count)
    assert not torch.equal(first.tokens, second.tokens)
    assert Counter(first.tokens.flatten().tolist()) == Counter(second.tokens.flatten().tolist())


def test_too_long_a_prompt_is_left_out_and_too_long_an_answer_is_cut(chat: ChatFormat, tokenizer: Tokenizer) -> None:
    long = " ".join(["the dog"] * 60)
    records = [Record.chat("unit", "Hi", long), Record.chat("unit", long, "Hi")]
    rows = mixed(chat, records, row_tokens=32)
    batch = rows.rows(0, 1)
    assert rows.rows_per_pass() == 1  # which the answer fills
    assert batch.weights[0, -1] == 1
    assert token_id(tokenizer, END) in batch.tokens[0, :10].tolist()


def test_target_batches_weigh_answers_alone_and_teach_to_stop(chat: ChatFormat, tokenizer: Tokenizer) -> None:
    data = data_of(chat.tokenize(CHATS), {"instruct": chat.tokenize(CHATS[:3])}, chat, Stage(1.0, 64, 2), 0, 0.0)
    batch = data.stages[0].rows(0, 4)
    learnt = batch.tokens[batch.weights == 1].tolist()
    answers = sum(int(documents.max()) + 1 for documents in batch.documents)
    assert set(batch.weights.flatten().tolist()) == {0, 1}
    assert learnt.count(token_id(tokenizer, END)) == answers
    assert tokenizer.decode(learnt).startswith("The ")
    assert sum(int((part.tokens == token_id(tokenizer, BOS)).sum()) for part in data.held_out["instruct"]) == 3


def test_rows_too_short_for_every_prompt_are_refused(chat: ChatFormat) -> None:
    with refused("rows_too_short", "4 tokens"):
        data_of(chat.tokenize(CHATS), {}, chat, Stage(1.0, 4, 1), 0, 0.0)
