"""Training for a target with an encoder: its batches, its own answers, what is refused, and DEED in its own setting."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import refusals
import torch
from fixtures_training import BATCHES, CHATS, COLORS, COMMON, done, refused, write_data
from plain_t5 import LAYERS, START, PlainT5, Weights, spoken, tiny_t5
from safetensors.torch import load_file
from tiny_encoder import END, letters, random_folder, reversing_folder, write_reversals
from untrained import facts_of, untrained

from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import talk
from benchctl.decoding.modules.folders import save_modules
from benchctl.decoding.modules.trainable import Trainable
from benchctl.registry import build
from benchctl.training.data.chats import Message, Record
from benchctl.training.data.packing import FULL, Batch, Document, Turn, batch_of, cut_pieces, fill_rows
from benchctl.training.modules import frozen as encoder_batches
from benchctl.training.modules.frozen import batch_maker, chat_of, find_target
from benchctl.training.modules.own_text import Answering, answer, prompt_room

CPU = torch.device("cpu")
# Prompt and answer of each document; the first row holds two of them.
ROWS = (([7, 3, 19, 3, 11, 8, 2, 19, 1], [6, 9, 9, 14, 1], [4], [12, 8, 1]), ([20, 6, 1], [*range(2, 22), 5, 1]))
ROW_TOKENS = 24


def ids(*tokens: int) -> np.ndarray:
    return np.asarray(tokens, dtype=np.uint16)


def batch() -> Batch:
    rows = []
    for parts in ROWS:
        turns = [Turn(ids(*prompt), ids(*said)) for prompt, said in zip(parts[::2], parts[1::2], strict=True)]
        pieces = cut_pieces([Document("unit", (turn,), apart=True) for turn in turns], ROW_TOKENS, 0).pieces
        rows += fill_rows(pieces, ROW_TOKENS)
    assert len(rows) == len(ROWS)
    return batch_of(rows, ROW_TOKENS, pad_id=0)


def documents() -> Iterator[tuple[int, slice, list[int], list[int]]]:
    """Row and place of every document, its prompt, and the decoder's text."""
    for row, parts in enumerate(ROWS):
        start = 0
        for prompt, said in zip(parts[::2], parts[1::2], strict=True):
            yield row, slice(start, start + 1 + len(said)), prompt, [START, *said]
            start += 1 + len(said)


def test_each_answer_is_placed_apart_from_its_prompt() -> None:
    """A prompt that is not shorter than a row is left out with its answer, as at decoding; an answer is cut."""
    turns = (Turn(ids(5, 6), ids(7, 1)), Turn(ids(5, 6, 7, 1), ids(9, 9, 9, 9, 1)), Turn(ids(*range(5)), ids(3)))
    cut = cut_pieces([Document("unit", turns, apart=True), Document("unit", apart=True)], 5, prompt_weight=50)
    assert (cut.dropped_answers, cut.long_prompts) == (0, 1)
    (first, second) = cut.pieces
    assert (first.tokens.tolist(), first.weights.tolist()) == ([0, 7, 1], [0, FULL, FULL])
    assert (second.tokens.tolist(), second.weights.tolist()) == ([0, 9, 9, 9, 9], [0, *[FULL] * 4])
    made = batch_of([[first, first], [second]], 6, pad_id=2)
    assert made.tokens.tolist() == [[0, 7, 1, 0, 7, 1], [0, 9, 9, 9, 9, 2]]
    assert made.documents.tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, -1]]
    assert made.prompts is not None
    assert made.prompts.tolist() == [[5, 6, -1, -1], [5, 6, -1, -1], [5, 6, 7, 1]]


@pytest.mark.parametrize("at_once", [16384, 20])
@pytest.mark.parametrize(("kind", "tied"), [("relu", True), ("gated-gelu", False)])
def test_states_are_those_of_each_pair_alone(
    kind: str, tied: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, as transformers gives them and as decoding computes them, however many prompts are read at once."""
    monkeypatch.setattr(encoder_batches, "TOKENS_AT_ONCE", at_once)
    model = tiny_t5(kind, tie_word_embeddings=tied)
    target_batch, target = batch_maker(model, CPU)(batch()), Target(model, None)
    assert len(target_batch.states) == LAYERS + 1
    for row, place, prompt, text in documents():
        assert target_batch.tokens[row, place].tolist() == text
        settings = {"decoder_input_ids": torch.tensor([text]), "output_hidden_states": True, "use_cache": False}
        theirs = model(input_ids=torch.tensor([prompt]), **settings)
        cache, layout = target.new_cache(len(text)), target.layout(0, range(len(text)))
        cache.encoded, rows = target.read(prompt), target.embed(text, range(len(text)))
        for layer, state in enumerate(target_batch.states):
            if layer < LAYERS:  # transformers' last one is normed already
                close(state[row, place], theirs.decoder_hidden_states[layer][0])
            close(state[row, place], rows)
            rows = target.run(rows, cache, layer, layer + 1, layout) if layer < LAYERS else rows
        close(target_batch.head(target_batch.final)[row, place], theirs.logits[0])
        close(target_batch.head(target_batch.norm(target_batch.states[-1]))[row, place], target.head(rows))
    assert not any(state.requires_grad for state in (*target_batch.states, target_batch.final))


@pytest.mark.parametrize("at_once", [16384, 100])
def test_one_long_answer_among_short_ones_does_not_pad_them_all(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All answers of a batch were padded to its longest: 2,021 tokens became 541 x 401 positions."""
    monkeypatch.setattr(encoder_batches, "TOKENS_AT_ONCE", at_once)
    turns = [Turn(ids(*range(2, 4 + number % 9)), ids(*range(3, 4 + number % 3), 1)) for number in range(60)]
    turns[40] = Turn(ids(7, 1), ids(*[9] * 90, 1))
    documents = [Document("unit", (turn,), apart=True) for turn in turns]
    made = batch_of(fill_rows(cut_pieces(documents, 96, 0).pieces, 96), 96, pad_id=0)
    maker, passed = encoder_batches.EncoderBatches(tiny_t5(), CPU), list[tuple[int, int]]()
    one_pass = maker._pass

    def spied(prompts: torch.Tensor, texts: torch.Tensor) -> list[torch.Tensor]:
        passed.append((prompts.numel(), texts.numel()))
        return one_pass(prompts, texts)

    monkeypatch.setattr(maker, "_pass", spied)
    maker(made)
    real = int((made.documents >= 0).sum())
    assert real > 250 and sum(texts for _, texts in passed) < 2 * real
    assert all(max(part) <= at_once for part in passed)


def close(left: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chat", [False, True])
def test_prompts_are_those_of_decoding_at_every_turn(chat: bool, tmp_path: Path) -> None:
    """The encoder reads the whole conversation up to an answer; the decoder writes the answer's text and its end."""
    files = find_target(str(random_folder(tmp_path, chat=chat)), encoders=True)
    asked, said = ("Who is Lily?", "And Tom?"), ("A little girl.", "Her friend.")
    pairs = zip(asked, said, strict=True)
    record = Record("unit", tuple(Message(*part) for one, two in pairs for part in (("user", one), ("assistant", two))))
    (text, document) = chat_of(files).tokenize([Record.plain("unit", "Once."), record])
    assert not text.turns and len(document.turns) == 2
    for number, turn in enumerate(document.turns):
        history = talk(asked[: number + 1], said[:number])
        assert turn.head.tolist() == files.tokenizer.encode_chat(history)
        assert files.tokenizer.decode_text(turn.answer.tolist()) == said[number]
        assert turn.answer[-1] == 2 and len(turn.answer) > 1


def test_a_batch_is_answered_as_each_prompt_alone() -> None:
    """Prompts of different lengths, some of which end early and leave the batch."""
    model = tiny_t5("gated-gelu")
    prompts = [[7, 3, 19, 3, 11, 8, 2, 19, 1], [4], [20, 6, 1], [9, 9, 1]]
    alone = [PlainT5(model).answer(prompt, 10) for prompt in prompts]
    stop = alone[0][2]
    expected = [said[: said.index(stop) + 1] if stop in said else said for said in alone]
    assert len({len(said) for said in expected}) > 1
    assert answer(model, prompts, frozenset([stop]), Answering(new_tokens=10)) == expected


def test_prompts_and_answers_of_an_encoder_each_have_the_context_to_themselves(tmp_path: Path) -> None:
    files = find_target(str(random_folder(tmp_path)), encoders=True)
    assert [prompt_room(files, new_tokens) for new_tokens in (8, 511, 512)] == [511, 511, 0]


@pytest.fixture(scope="module")
def weightless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a T5 whose weights are not there: who reads them fails in another way."""
    folder = tmp_path_factory.mktemp("weightless")
    write_data(folder / "data")
    (random_folder(folder / "t5") / "model.safetensors").unlink()
    return folder


def not_trained(folder: Path, out: Path, label: str, id: str, data: Path | None = None) -> str:
    """The message of the error by which `benchctl train` refuses to train for the T5 of a folder."""
    words = ("--model", folder / "t5", "--data", data or folder / "data", "--out", out / "out", "--steps", 1)
    return refused("train", label, *words, *BATCHES, *COMMON, id=id)


@pytest.mark.parametrize(
    "words",
    [
        *(("train", part, *BATCHES) for part in ("m2r2", "medusa", "skip_decode", "mixture_of_depths", "draft")),
        ("reference", "moe"),
        ("reference", "target"),
    ],
    ids=lambda words: words[1],
)
def test_what_knows_no_encoders_is_refused_early(words: tuple[object, ...], weightless: Path, tmp_path: Path) -> None:
    model = "--init-from" if words[1] == "target" else "--model"
    files = (model, weightless / "t5", "--data", weightless / "data", "--out", tmp_path / "out")
    shown = refused(*words, *files, "--steps", 1, *COMMON, id="encoder_not_supported")
    assert "t5" in shown and "auto_exit, deed, early_exit" in shown


@pytest.mark.parametrize(
    ("label", "facts"),
    [
        ("early_exit[head=trained,exits=40]", ("exit 40", "4 layers")),
        ("deed[exits=2+4]", ("exit 4", "4 layers")),
    ],
)
def test_options_that_do_not_fit_are_refused_early(
    label: str, facts: tuple[str, ...], weightless: Path, tmp_path: Path
) -> None:
    """They were refused after the weights had been read, and by then prompts may have been answered."""
    shown = not_trained(weightless, tmp_path, label, "label_cannot_run")
    assert all(fact in shown for fact in (label, "t5", *facts)), shown


def test_a_second_stage_on_modules_of_a_smaller_target_is_refused_early(weightless: Path, tmp_path: Path) -> None:
    label = "early_exit[confidence=classifier,exits=1,head=trained]"
    method, other = build(label), Target(tiny_t5(vocabulary=320, num_decoder_layers=3), None)
    assert isinstance(method, Trainable)
    save_modules(tmp_path / "exits", untrained(method, other), facts_of(label, method, other))
    second = label.replace("]", f",modules={tmp_path / 'exits'}]")
    shown = not_trained(weightless, tmp_path, second, "modules_of_other_target")
    assert "tiny (3 layers of 32, vocabulary 320)" in shown and "4 layers of 32, vocabulary 320" in shown


def test_plain_texts_have_no_prompt_that_an_encoder_could_read(weightless: Path, tmp_path: Path) -> None:
    for name in ("train", "val"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": "Once upon a time."}))
    assert "training data" in not_trained(weightless, tmp_path, "deed", "chats_missing", tmp_path)
    (tmp_path / "train.jsonl").write_text(json.dumps(CHATS[0]))
    assert "held-out data" in not_trained(weightless, tmp_path, "deed", "chats_missing", tmp_path)


@pytest.mark.parametrize("label", ["deed", "early_exit[head=trained,exits=1+3]"])
def test_modules_learn_from_what_the_target_answers_itself(label: str, tmp_path: Path) -> None:
    """From the command line; plain texts of the data are left out, and that is shown."""
    write_data(tmp_path / "data")
    random_folder(tmp_path / "t5")
    words = ("--model", tmp_path / "t5", "--data", tmp_path / "data", "--out", tmp_path / "modules", "--steps", 2)
    own = ("--self-distil", 6, "--answer-tokens", 6)
    shown = " ".join(done("train", label, *words, *own, *BATCHES, *COMMON).split())
    assert re.search(r"\b36 .*\b15 .*\bt5\b", shown)
    facts = json.loads((tmp_path / "modules" / "modules.json").read_text())
    assert facts["target"]["weights_sha256"] == Target.load(tmp_path / "t5").weights_sha256
    (answers,) = (tmp_path / "modules" / "own_text").glob("*.jsonl")
    target, pairs = Target.load(tmp_path / "t5"), [json.loads(line) for line in answers.read_text().splitlines()]
    asked = {color: target.tokenizer.encode_chat([{"role": "user", "content": f"Who is {color}?"}]) for color in COLORS}
    assert pairs and all(pair["prompt"] in asked.values() for pair in pairs)
    for pair in pairs:
        said = decode(build("autoregressive"), target, DecodeRequest(pair["prompt"], 6))
        assert list(said.token_ids) == pair["answer"]
    weights = load_file(tmp_path / "modules" / "modules.safetensors")
    modules = {name: weight.double() for name, weight in weights.items()}
    seen = [pair for pair in pairs if pair["prompt"] in (asked["white"], asked["black"])]
    trained, bare = shares_of_exit(1, modules, seen)
    assert facts["yardsticks"]["exit_1_top1"] == pytest.approx(trained)
    assert facts["yardsticks"]["exit_1_bare_top1"] == pytest.approx(bare)


def shares_of_exit(layer: int, modules: Weights, pairs: list[dict[str, list[int]]]) -> tuple[float, float]:
    """How often an exit of the random target says what its last layer says in answers to prompts; and the bare layer.

    By a plain decoder in float64.
    """
    model = tiny_t5(vocabulary=320, eos_token_id=2)
    plain, agree, bare = PlainT5(model), list[bool](), list[bool]()
    for pair in pairs:
        states = plain.states(pair["prompt"], [START, *pair["answer"][:-1]])
        last = plain.logits(states[-1]).argmax(-1)
        agree += (spoken(model, modules, layer, states[layer]).argmax(-1) == last).tolist()
        bare += (plain.logits(states[layer]).argmax(-1) == last).tolist()
    return sum(agree) / len(agree), sum(bare) / len(bare)


@pytest.mark.parametrize(("row_tokens", "advised"), [(16, True), (24, False)])
def test_longer_rows_are_advised_only_where_the_context_has_room(
    row_tokens: int, advised: bool, tmp_path: Path
) -> None:
    random_folder(tmp_path / "t5", n_positions=24)
    chats = [{"instruction": "red" if number else "red " * 40, "output": "dog"} for number in range(3)]
    for name in ("train", "val"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps(chat) for chat in chats))
    files = ("--data", tmp_path / "train.jsonl", "--data", tmp_path / "val.jsonl", "--out", tmp_path / "out")
    rows = ("--row-tokens", row_tokens, "--micro-rows", 1, "--batch-tokens", row_tokens)
    words = ("--model", tmp_path / "t5", *files, "--steps", 1, "--self-distil", 0, *rows, *COMMON)
    shown = " ".join(done("train", "deed", *words).split())
    keep = f"; rows of more than {row_tokens} tokens keep them"
    assert f"1 answers have a prompt that does not fit into a row and are left out{keep if advised else '.'}" in shown
    assert (keep in shown) == advised
    assert json.loads((tmp_path / "out" / "training.json").read_text())["outcome"]["tokens_are"] == "decoder tokens"


def test_a_threshold_is_calibrated_on_a_target_with_an_encoder(tmp_path: Path) -> None:
    asked = [{"source": "unit", "instruction": f"Say {word}.", "output": "Yes."} for word in ("red", "blue")]
    (write_data(tmp_path / "data") / "val.jsonl").write_text("\n".join(map(json.dumps, asked)))
    random_folder(tmp_path / "t5")
    words = ("--model", tmp_path / "t5", "--data", tmp_path / "data", "--out", tmp_path / "out")
    how = ("--calibrate", "0.5,0.5", "--calibrate-prompts", 2, "--answer-tokens", 4, *COMMON)
    done("train", "early_exit[exits=2+3]", *words, *how)
    assert json.loads((tmp_path / "out" / "calibration.json").read_text())["prompts"] == 2


def test_a_method_that_asks_for_layers_of_such_a_target_batch_is_told_why_there_are_none() -> None:
    target_batch = batch_maker(tiny_t5(), CPU)(batch())
    with refusals.refused("encoder_not_supported", "supports_encoder_decoder"):
        target_batch.layer(0)


PROMPTS = [[*text, END] for text in letters(24, seed=3)]  # none of those that anything learnt from


@dataclass(frozen=True)
class Made:
    """Places: of the target, of modules that were trained for it, and of modules as training finds them."""

    target: Path
    trained: Path
    bare: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("reversing")
    places = Made(reversing_folder(folder / "t5"), folder / "trained", folder / "bare")
    write_reversals(folder / "data", train=600, held_out=40)
    words = ("--model", places.target, "--data", folder / "data", "--out", places.trained, "--steps", 100)
    rows = ("--row-tokens", 64, "--micro-rows", 4, "--batch-tokens", 256, "--rate", 2e-2)
    done("train", "deed", *words, *rows, *COMMON)
    target, method = Target.load(places.target), build("deed")
    assert isinstance(method, Trainable)
    module = method.build(target.info, target.lm_head.weight)
    save_modules(places.bare, module, facts_of("deed", method, target))
    return places


def answers(label: str, target: Target) -> list[Generation]:
    method = build(label)
    method.prepare(target)
    return [decode(method, target, DecodeRequest(prompt, 12)) for prompt in PROMPTS]


@pytest.mark.slow
def test_the_target_turns_letters_round(made: Made) -> None:
    """Else what follows would be about noise."""
    said = [list(generation.token_ids) for generation in answers("autoregressive", Target.load(made.target))]
    right = sum(tokens == [*reversed(prompt[:-1]), END] for tokens, prompt in zip(said, PROMPTS, strict=True))
    assert right >= 0.8 * len(PROMPTS)


@pytest.mark.slow
def test_trained_exits_leave_earlier_and_say_more_of_what_the_target_says(made: Made) -> None:
    target = Target.load(made.target)
    whole = answers("autoregressive", target)
    layers, agreed = dict[str, float](), dict[str, float]()
    for name, folder in (("trained", made.trained), ("bare", made.bare)):
        left = answers(f"deed[mode=exit,threshold=0.8,modules={folder}]", target)
        layers[name] = sum(sum(one.layers) for one in left) / sum(len(one.layers) for one in left)
        agreed[name] = sum(one.token_ids == other.token_ids for one, other in zip(left, whole, strict=True))
    assert layers["trained"] < layers["bare"] - 0.15
    assert agreed["trained"] >= 0.8 * len(PROMPTS)
