"""Modules of a method: the batches that they learn from, and a run from the command line to decoding."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import refusals
import torch
from fixtures_training import BATCHES, COMMON, done, refused, with_target
from safetensors.torch import load_file
from tiny import tiny_model
from torch import Tensor

from benchctl.conformance.method_under_test import untrained
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary, UsesDraftVocabulary
from benchctl.decoding.modules.folders import shares
from benchctl.decoding.modules.trainable import Tally, Trainable
from benchctl.methods.medusa import Medusa
from benchctl.registry import build
from benchctl.training.data.chats import Record
from benchctl.training.data.packing import Batch, Piece, batch_of, constant
from benchctl.training.data.reading import Corpus
from benchctl.training.jobs import JobContext
from benchctl.training.modules import frozen
from benchctl.training.modules.frozen import BatchMaker, ModuleObjective, chat_of, find_target, load_target
from benchctl.training.modules.job import trainable_names
from benchctl.training.modules.objective import draft_logits
from benchctl.training.modules.training_text import TrainingText
from benchctl.training.train_options import Provenance, TeacherOptions
from reference.recipe import ReferenceRecipe

CPU = torch.device("cpu")
FAMILIES = ("llama", "gemma", "olmoe", "qwen3", "gpt_neox", "phi", "gpt2", "opt")
# Two documents and padding in the first row, one document in the second.
SIZES = ((5, 6), (9,))
TOKENS = 12
OTHER_MODULES = (
    "early_exit[head=trained]",
    "early_exit[head=trained,confidence=classifier]",
    "medusa[head=shared]",
    "m2r2[features=last]",
    "m2r2[adapters=hybrid]",
    "eagle[version=1,objective=hass]",
    "pseudo[kind=transfer]",
    "pseudo[kind=streaming]",
    "sequential[kind=redrafter]",
    "dflash[markov=4]",
)


@pytest.fixture
def batch() -> Batch:
    random = np.random.default_rng(0)
    pieces = [
        [Piece(random.integers(3, 96, size, np.uint16), constant(size, 100)) for size in sizes] for sizes in SIZES
    ]
    return batch_of(pieces, TOKENS, pad_id=0)


def documents_of(batch: Batch) -> Iterator[tuple[int, Tensor]]:
    """Row and places of every document."""
    for row, documents in enumerate(batch.documents):
        for number in range(int(documents.max()) + 1):
            yield row, documents == number


def close(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *((family, {}) for family in (*FAMILIES, "granite", "smollm3", "olmo2")),
        *((family, {"sliding_window": TOKENS}) for family in ("olmo3", "gemma2", "gemma3_text")),
    ],
)
def test_states_are_those_of_each_document_run_alone(batch: Batch, family: str, settings: dict[str, Any]) -> None:
    """In float64. transformers' hidden_states end with the normed state, so the last residual is left to the norm."""
    model = tiny_model(family, dtype=torch.float64, **settings)
    target_batch = BatchMaker(model, CPU)(batch)
    assert len(target_batch.states) == model.config.num_hidden_layers + 1
    for row, place in documents_of(batch):
        alone = model(batch.tokens[row, place][None], output_hidden_states=True)
        for state, expected in zip(target_batch.states[:-1], alone.hidden_states[:-1], strict=True):
            assert close(state[row, place], expected[0])
        scale = 1 / getattr(model.config, "logits_scaling", 1)
        assert close(target_batch.final[row, place], alone.hidden_states[-1][0] * scale)
        assert close(target_batch.norm(target_batch.states[-1])[row, place], target_batch.final[row, place])
        assert close(target_batch.head(target_batch.final)[row, place], alone.logits[0])


@pytest.mark.parametrize("family", ["llama", "granite", "gemma2"])
def test_a_draft_model_that_is_asked_about_some_tokens_gives_their_logits(batch: Batch, family: str) -> None:
    """Its head was read without the factor and the bound of the logits."""
    model, ids = tiny_model(family, dtype=torch.float64), torch.tensor([5, 90, 7])
    (whole,), (some,) = draft_logits(model, batch, None), draft_logits(model, batch, ids)
    assert close(some, whole[..., ids])
    exit_logits, last = draft_logits(model, batch, None, (1,))
    assert close(last, whole) and not close(exit_logits, whole)


def test_target_batches_carry_no_gradient_but_norm_and_head_pass_it_on(batch: Batch) -> None:
    model = tiny_model("llama", dtype=torch.float64)
    target_batch = BatchMaker(model, CPU)(batch)
    assert not any(state.requires_grad for state in (*target_batch.states, target_batch.final))
    probe = target_batch.states[1].clone().requires_grad_(True)
    target_batch.head(target_batch.norm(probe)).sum().backward()
    assert probe.grad is not None and bool((probe.grad != 0).any())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.model.layers[0]._forward_hooks


def test_an_impossible_yardstick_is_refused_when_first_measured(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules whose method measured more than shares could not be read after hours of training."""
    model, method = tiny_model("llama"), build("medusa[heads=2]")
    assert isinstance(method, Trainable)
    module = method.build(Target(model, None).info, model.lm_head.weight)
    objective = ModuleObjective(method, BatchMaker(model, CPU))
    for measured, wrong in ((Tally(30, 10), True), (Tally(10.000001, 10), False), (Tally(-10, 10), False)):
        monkeypatch.setattr(Medusa, "yardsticks", lambda *_, measured=measured: {"mine": measured})
        refusal = refusals.refused("wrong_yardsticks", "Medusa", "'mine' is 3", "-1")
        with torch.no_grad(), refusal if wrong else nullcontext():
            assert objective.measure(module, batch)["mine"] == measured
    assert shares({"mine": 1.0000001}) == {"mine": 1.0}


def test_tokens_are_drawn_in_training_and_never_in_measuring(batch: Batch) -> None:
    """deed answers by itself, so it is measured over the whole vocabulary; with all tokens drawn the losses agree."""
    model, method = tiny_model("llama"), build("deed[exits=1]")
    assert isinstance(method, Trainable)
    vocabulary, maker = model.config.vocab_size, BatchMaker(model, CPU)
    module = method.build(Target(model, None).info, model.lm_head.weight)
    whole, few, many = (ModuleObjective(method, maker, drawn, vocabulary) for drawn in (0, 2, 50 * vocabulary))
    torch.manual_seed(0)
    assert torch.allclose(many(module, batch), whole(module, batch))
    with torch.no_grad():
        assert float(few(module, batch)) != float(few(module, batch)), "another draw for each pass"
        assert few.measure(module, batch) == whole.measure(module, batch)


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # the first backward pass of a process on a GPU
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("narrow", [False, True], ids=["all tokens", "draft vocabulary"])
@pytest.mark.parametrize("label", [*(name for name in trainable_names() if name != "early_exit"), *OTHER_MODULES])
def test_a_target_in_bfloat16_teaches_modules_in_float32(label: str, narrow: bool, device: str, batch: Batch) -> None:
    """As on a GPU by default. Tokens of a draft vocabulary, and tokens that are drawn, have products of their own."""
    family = "olmoe" if label == "m2r2_prefetch" else "llama"
    model, method = tiny_model(family, layers=6, dtype=torch.bfloat16).to(device), build(label)
    assert isinstance(method, Trainable)
    target, ids = Target(model, None), torch.arange(0, 96, 2) if narrow else None
    maker = BatchMaker(model, torch.device(device))
    maker.draft_over(ids)
    if isinstance(method, UsesDraftVocabulary):
        method.vocabulary = DraftVocabulary(ids)
    module = untrained(method, target)
    drawn = 0 if isinstance(method, UsesDraftVocabulary) else 8
    objective, rows = ModuleObjective(method, maker, drawn, model.config.vocab_size), batch.to(torch.device(device))
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = objective(module, rows)
        with torch.no_grad():
            measured = objective.measure(module, rows)
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        method.findings(module.eval(), [maker(rows)])  # outside autocast
    gradients = [weight.grad for weight in module.parameters() if weight.grad is not None]
    assert any(gradient.any() for gradient in gradients) and all(gradient.isfinite().all() for gradient in gradients)
    assert loss.isfinite() and np.isfinite(measured["loss"].right)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a target of random weights, and heads trained for it on its own text."""
    folder = tmp_path_factory.mktemp("modules")
    words = (*with_target(folder), "--out", folder / "heads")
    shown = done("train", "medusa[heads=2]", *words, "--self-distil", 6, "--answer-tokens", 6, *BATCHES, *COMMON)
    assert f"--method 'medusa[modules={folder / 'heads'},heads=2]'" in shown
    return folder


def test_their_facts_say_what_they_are_for_and_how_good_they_are(trained: Path) -> None:
    facts = json.loads((trained / "heads" / "modules.json").read_text())
    assert (facts["method"], facts["options"]["heads"], "modules" in facts["options"]) == ("medusa", 2, False)
    assert facts["target"]["name"] == "target"
    assert facts["target"]["weights_sha256"] == Target.load(trained / "target").weights_sha256
    assert 0 <= facts["yardsticks"]["head_2_top1"] <= facts["yardsticks"]["head_2_top4"] <= 1
    assert "loss" not in facts["yardsticks"]
    tree = facts["findings"]["tree"]
    assert {len(path.split()) for path in tree} == {1, 2}
    assert 0 < sum(share for path, share in tree.items() if " " not in path) <= 1
    assert list(tree.values()) == sorted(tree.values(), reverse=True)
    training = json.loads((trained / "heads" / "training.json").read_text())
    assert training["settings"]["optimizer"]["rate"] == 1e-3
    assert set(training["outcome"]["losses"][-1]) == {"step", "loss", "instruct"}
    assert " 6 prompts" in (trained / "heads" / "README.md").read_text()


def test_shared_heads_are_trained_and_stored_without_lm_heads(trained: Path, tmp_path: Path) -> None:
    """Two blocks of 32 * 33 parameters; the facts say by which option they decode."""
    words = ("--model", trained / "target", "--data", trained / "data", "--out", tmp_path / "heads", "--steps", 2)
    shown = done("train", "medusa[heads=2,head=shared]", *words, *BATCHES, *COMMON)
    assert f"--method 'medusa[modules={tmp_path / 'heads'},heads=2,head=shared]'" in shown
    weights = load_file(tmp_path / "heads" / "modules.safetensors")
    assert sum(weight.numel() for weight in weights.values()) == 2 * 32 * 33
    assert all(weight.any() for weight in weights.values())
    target = Target.load(trained / "target")
    method = build(f"medusa[modules={tmp_path / 'heads'},heads=2,head=shared]")
    method.prepare(target)
    prompt = DecodeRequest([1, 5, 9], 6)
    assert decode(method, target, prompt).token_ids == decode(build("autoregressive"), target, prompt).token_ids


def test_only_the_model_itself_goes_to_the_device(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding's own forms of the weights, made to ask who the target is, filled the GPU to 1.6 times the model."""
    made: list[str] = []

    class Watched(Target):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self.device.type)

    monkeypatch.setattr(frozen, "Target", Watched)
    target = load_target(find_target(str(trained / "target")), torch.device("meta"), "float32")
    assert (made, target.device.type) == (["cpu"], "meta")


def own_text_of(trained: Path, out: Path, corpus: Corpus, prompts: int) -> tuple[TrainingText, list[str]]:
    """Text for a run on `prompts` own answers, and what is printed of it."""
    model, shown = str(trained / "target"), list[str]()
    options = TeacherOptions(
        (), out, model=model, row_tokens=64, batch_tokens=256, self_distil=prompts, answer_tokens=6
    )
    files, job_context = find_target(model), JobContext(lambda: 0.0, Provenance("", "", {}), notify=shown.append)
    return TrainingText(files, chat_of(files), corpus, options, job_context), shown


RED, BLUE = Record.chat("unit", "Who is red?", "A"), Record.chat("unit", "Who is blue?", "B")


def test_a_prompt_that_is_held_out_is_not_answered_for_training(trained: Path, tmp_path: Path) -> None:
    """The target's greedy answer would be the same, so the yardsticks would be about text that was learnt."""
    corpus = Corpus([BLUE, Record.chat("unit", "Who is red?", "other")], {"instruct": [RED]}, {})
    text, shown = own_text_of(trained, tmp_path, corpus, 9)
    text.load_target({})
    assert len(shown) == 1 and "1 prompts" in shown[0] and "--self-distil 9" in shown[0]


def test_with_the_reference_mix_half_of_the_prompts_are_requests(trained: Path, tmp_path: Path) -> None:
    text, shown = own_text_of(trained, tmp_path, Corpus([BLUE], {"instruct": [RED]}, {}, ReferenceRecipe()), 6)
    text.data(text.load_target({})[0])
    assert len(shown) == 1 and "4 prompts" in shown[0] and "--self-distil 6" in shown[0]
    assert "half made by rule" in text.described and "half to requests" in text.fact


def test_what_is_lost_by_the_settings_is_told(trained: Path, tmp_path: Path) -> None:
    """A step of 300 tokens is two passes of 128, and a second answer beyond the row is not learnt."""
    said = [{"role": role, "content": "red " * 12} for role in ("user", "assistant")]
    (tmp_path / "long.jsonl").write_text(json.dumps({"messages": said * 3}))
    words = ("--model", trained / "target", "--data", trained / "data", "--data", tmp_path / "long.jsonl")
    sizes = ("--row-tokens", 64, "--micro-rows", 2, "--batch-tokens", 300, "--steps", 1)
    shown = done("train", "medusa[heads=1]", *words, "--out", tmp_path / "out", *sizes, *COMMON)
    assert all(fact in shown for fact in ("256 tokens", "--batch-tokens 300", " 128")), shown
    assert re.search(r"\d answers", shown)


def test_a_tokenizer_with_ids_that_the_model_lacks_is_refused(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained / "target", tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 50}))
    words = ("--model", folder, "--data", trained / "data", "--out", tmp_path / "out", "--steps", 1)
    for part, *rows in (("medusa", *BATCHES), ("draft", *BATCHES), ("moe",)):
        shown = refused("reference" if part == "moe" else "train", part, *words, *rows, id="other_vocabulary")
        assert "320" in shown and "50" in shown


def test_a_temperature_too_low_is_refused_before_answers_are_written(trained: Path, tmp_path: Path) -> None:
    """Logits in float32 divided by 1e-40 are infinite, and probabilities nan."""
    words = ("--model", trained / "target", "--data", trained / "data", "--out", tmp_path / "out", *BATCHES, *COMMON)
    own = ("--self-distil", 6, "--self-distil-temperature", 1e-40)
    assert "1e-40" in refused("train", "medusa[heads=2]", *words, *own, id="temperature_too_low")


def test_the_run_resumes_only_as_it_was(trained: Path) -> None:
    words = ["--model", trained / "target", "--data", trained / "data", "--out", trained / "heads", *BATCHES, *COMMON]
    own = ["--self-distil", 6, "--answer-tokens", 6]
    assert "Wrote" in done("train", "medusa[heads=2]", *words, *own, "--resume")
    fewer = ["--self-distil", 5, *own[2:], "--resume"]
    assert "text: 6" in refused("train", "medusa[heads=2]", *words, *fewer, id="other_training")
    assert "medusa[heads=1]" in refused("train", "medusa[heads=1]", *words, *own, "--resume", id="other_training")
