"""The draft model: where it begins, what counts as agreement, and a run from the command line to decoding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures_training import BATCHES, COMMON, done, refused, with_target
from refusals import error_of
from tiny import VARIANTS, tiny_model
from transformers import AutoModelForCausalLM

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.trainable import Tally
from benchctl.methods.autoregressive import Autoregressive
from benchctl.methods.two_model import TwoModel
from benchctl.training.data.chats import ChatFormat
from benchctl.training.data.packing import Document, Tokens, Turn
from benchctl.training.data.reading import read_corpus
from benchctl.training.draft_model import accepted, drafting, kept_layers
from benchctl.training.models import build_from_target


@pytest.mark.parametrize("family", VARIANTS)
def test_a_model_of_all_layers_of_a_target_is_the_target(family: str) -> None:
    model = tiny_model(family, dtype=torch.float32)
    copied = build_from_target(model, range(3)).eval()  # type: ignore[no-untyped-call]
    tokens = torch.arange(3, 40)[None]
    assert torch.allclose(copied(tokens).logits, model(tokens).logits, atol=1e-4)


def test_a_draft_model_has_the_layers_asked_for(tmp_path: Path) -> None:
    model = tiny_model("qwen2_window")
    copied = build_from_target(model, [0, 2])
    assert copied.config.layer_types == [model.config.layer_types[layer] for layer in (0, 2)]
    assert torch.equal(copied.model.layers[1].mlp.up_proj.weight, model.model.layers[2].mlp.up_proj.weight)
    assert all(parameter.requires_grad for parameter in copied.parameters())


@pytest.mark.parametrize("variant", ["qwen3_moe_dense_first_window", "qwen3_moe_every_second"])
def test_a_layer_of_experts_stays_one_at_another_index(variant: str) -> None:
    """mlp_only_layers and decoder_sparse_step count layers of the target; the draft model's layer 0 is its layer 1."""
    model = tiny_model(variant, layers=4)
    copied = build_from_target(model, [1, 2])
    for index, layer in enumerate((1, 2)):
        assert type(copied.model.layers[index].mlp) is type(model.model.layers[layer].mlp)


def test_it_begins_with_the_first_layers_and_the_last() -> None:
    assert (kept_layers(1, 4), kept_layers(3, 12), kept_layers(4, 4)) == ([3], [0, 1, 11], [0, 1, 2, 3])


def test_acceptance_counts_drafts_one_after_the_other() -> None:
    agreed = [True, True, False, True, True]
    assert accepted(agreed, 2) == Tally(4, 4)
    assert accepted(agreed, 3) == Tally(4, 5)
    assert accepted([False, False], 4) == Tally(0, 3)


def test_a_model_agrees_with_its_own_greedy_text() -> None:
    """Six tokens: the prefill gives the first and the target's bonus the last, so a draft of four is all there is."""
    model = tiny_model("llama", dtype=torch.float32)
    text = ids([1, 5, 9, *said(model, [1, 5, 9], 6)])
    shown = drafting(model, [Document("own", (Turn(text[:3], text[3:]),))])
    assert shown == {"greedy_agreement": Tally(6, 6), "acceptance_4": Tally(4, 4)}
    text[5] = (text[5] + 1) % 90
    assert drafting(model, [Document("own", (Turn(text[:3], text[3:]),))])["greedy_agreement"].right < 6


@pytest.mark.slow
def test_acceptance_is_that_of_drafting_step_by_step() -> None:
    """A draft model of other weights, which says some of the target's tokens: both decode one token after the other."""
    target = tiny_model("llama", dtype=torch.float64)
    draft = build_from_target(target, [0, 2]).double().eval()  # type: ignore[no-untyped-call]
    documents = [Document("own", (Turn(ids(ask), ids(said(target, ask, 24))),)) for ask in ((1, 5), (1, 40, 7))]
    accepted_tokens = drafted_tokens = 0
    for turn in (document.turns[0] for document in documents):
        text, place = [*turn.head.tolist(), *turn.answer.tolist()], len(turn.head) + 1  # the prefill gives the first
        while place < len(text):
            tokens = said(draft, text[:place], min(4, len(text) - place))
            kept = next((n for n, token in enumerate(tokens) if token != text[place + n]), len(tokens))
            accepted_tokens += kept
            drafted_tokens += len(tokens)
            place += kept + 1
    assert 0 < accepted_tokens < drafted_tokens
    assert drafting(draft, documents)["acceptance_4"] == Tally(accepted_tokens, drafted_tokens)


def said(model: torch.nn.Module, text: Sequence[int], count: int) -> list[int]:
    """What a model says next, greedily."""
    tokens = list(text)
    for _ in range(count):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(text) :]


def ids(tokens: Sequence[int]) -> Tokens:
    return np.asarray(tokens, dtype=np.uint16)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a target of random weights, and a draft model distilled from it."""
    folder = tmp_path_factory.mktemp("draft")
    with_target(folder)
    done(*words(folder), "--out", folder / "draft", "--steps", 3)
    return folder


def words(folder: Path) -> list[object]:
    own = ("--self-distil", 6, "--answer-tokens", 6)
    return ["train", "draft", "--model", folder / "target", "--data", folder / "data", *own, *BATCHES, *COMMON]


def test_it_decodes_with_the_target_and_its_record_has_acceptance_on_unseen_prompts(trained: Path) -> None:
    loaded, target = Target.load(trained / "draft"), Target.load(trained / "target")
    assert (loaded.layers, target.layers) == (2, 3)
    assert loaded.tokenizer.same_vocabulary(target.tokenizer)
    held_out = json.loads((trained / "draft" / "training.json").read_text())["outcome"]["held_out"]
    draft = AutoModelForCausalLM.from_pretrained(trained / "draft", dtype=torch.float32)
    (answers,) = (trained / "draft" / "own_text").glob("*.jsonl")
    known = {tuple(pair["prompt"]): pair["answer"] for pair in map(json.loads, answers.read_text().splitlines())}
    prompts = dict.fromkeys(record.prompt for record in read_corpus([str(trained / "data")]).held_out["instruct"])
    heads = ChatFormat.load(trained / "target").heads(prompts)
    documents = [Document("own", (Turn(head, ids(known[tuple(head.tolist())])),)) for head in heads]
    measured = {name: tally.share for name, tally in drafting(draft, documents).items()}
    assert held_out["instruct, drafting"] == pytest.approx(measured)
    assert "agreement" in held_out["instruct"]


def test_held_out_figures_are_those_of_the_saved_weights(trained: Path, tmp_path: Path) -> None:
    """They were measured before the weights were rounded to bfloat16. At a rate of 0 a run measures what it reads."""
    started = ("--init-from", trained / "draft", "--rate", 0, "--steps", 1)
    done(*words(trained), "--out", tmp_path / "still", *started)
    recorded, read = (
        json.loads((folder / "training.json").read_text())["outcome"]["held_out"]["instruct"]
        for folder in (trained / "draft", tmp_path / "still")
    )
    assert recorded == pytest.approx(read)


def test_answers_survive_a_run_that_ended_early(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers lie in their own folder: a second draft model of the same target waits for none of them.

    That one begins from scratch in a folder of this very name, which was taken for one that the run reads.
    """
    monkeypatch.chdir(tmp_path)
    done(*words(trained), "--out", tmp_path / "first", "--steps", 1, "--cache", tmp_path / "answers")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "answers").iterdir()}
    scratch = ("--init-from", "scratch", "--hidden", 16)
    done(*words(trained), "--out", "scratch", "--steps", 1, "--cache", tmp_path / "answers", *scratch)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "answers").iterdir()} == before
    assert json.loads((tmp_path / "scratch" / "config.json").read_text())["hidden_size"] == 16


def test_a_draft_model_trained_with_exits_says_so_and_leaves_by_them(trained: Path, tmp_path: Path) -> None:
    arguments = ("--steps", 2, "--exits", 1, "--cache", trained / "draft" / "own_text")
    assert "two_model[draft_exits=1]" in done(*words(trained), "--out", tmp_path / "sorted", *arguments)
    draft, target = Target.load(tmp_path / "sorted"), Target.load(trained / "target")
    method = TwoModel(draft_exits="1", exit_confidence=0.0)
    method.use_draft_model(draft)
    method.prepare(target)
    got = decode(method, target, DecodeRequest([5, 6, 7], 12))
    plain = decode(Autoregressive(), target, DecodeRequest([5, 6, 7], 12))
    assert got.token_ids == plain.token_ids and any(step.drafted for step in got.steps)
    held_out = json.loads((tmp_path / "sorted" / "training.json").read_text())["outcome"]["held_out"]
    assert {"agreement", "exit_1_agreement"} <= held_out["instruct"].keys()
    other = TwoModel(draft_exits="1")
    other.use_draft_model(Target.load(trained / "draft"))
    assert error_of(lambda: other.prepare(target)) == "exits_not_trained"


@pytest.mark.parametrize(
    ("arguments", "id", "facts"),
    [
        (("--init-from", "target", "--hidden", 16), "shapes_do_not_fit", ("target", "--init-from scratch")),
        (("--layers", 4), "too_many_layers", ("3 layers", "--layers")),
        (("--exits", 2), "bad_exits", ("--exits", "layer 2")),
        (("--exits", "1+x"), "bad_exits", ("--exits", "'1+x'")),
        (("--init-from", "ref-dense"), "other_vocabulary", ("ref-dense", "target", "--init-from")),
        (("--minutes", 1), "no_training_length", ("--minutes", "--steps", "--epochs")),
    ],
)
def test_a_start_that_is_not_allowed_is_refused(
    trained: Path, tmp_path: Path, arguments: tuple[object, ...], id: str, facts: tuple[str, ...]
) -> None:
    shown = refused(*words(trained), "--out", tmp_path / "out", "--steps", 1, *arguments, id=id)
    assert all(fact in shown for fact in facts), shown
