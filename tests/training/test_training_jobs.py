"""Training a target through the command line: what it writes, how it goes on, and where bfloat16 is used."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from disks import full_disk
from fixtures_training import COMMON, SHAPE, done, refused, train_tiny_target, write_data
from transformers import AutoModelForCausalLM

from benchctl.decoding.model.target import Target
from benchctl.training.data.packing import PackedCorpus, Piece, constant
from benchctl.training.jobs import steps_of, target_dtype
from benchctl.training.optim import Stage
from benchctl.training.train_options import TrainOptions
from benchctl.training.trainer import Data, bf16_helps
from reference import pack as pack_module
from reference.pack import PackEntry, add_to_pack, replacing

SIZES = (*SHAPE, "--mlp", 64, "--vocabulary", 300, "--batch-tokens", 2048)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def target(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny_target(data, tmp_path_factory.mktemp("models") / "tiny")


def test_the_finished_target_is_a_folder_for_transformers_and_for_decoding(target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(target)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == 5
    assert Target.load(target).stop_ids == {5}


def test_the_record_has_settings_measures_data_and_code_and_the_card_the_command_but_no_place(target: Path) -> None:
    training = json.loads((target / "training.json").read_text())
    assert training["settings"]["budget"] == {"steps": 3, "seconds": None}
    assert set(training["outcome"]["held_out"]) == {"instruct", "text"}
    assert training["outcome"]["held_out"]["text"]["bits_per_byte"] > 0
    assert set(training["data_sha256"]) == {"train.jsonl", "val.jsonl"}
    assert training["provenance"]["versions"]["torch"] == torch.__version__
    card = (target / "README.md").read_text()
    assert "| unit | 66 |" in card and "Weight" not in card
    assert "python -m reference --no-mix target --data " in card and "--steps 3" in card
    assert str(target.parent) not in card


def test_a_target_may_learn_from_answers_only(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers"
    words = ("reference", "target", "--data", data, "--out", out, "--steps", 1, *SIZES, *COMMON)
    done(*words, "--answers-only")
    measured = json.loads((out / "training.json").read_text())["outcome"]["held_out"]["instruct"]
    assert measured["loss"] == pytest.approx(measured["nats_per_token"], rel=1e-6)
    assert "prompts: " in refused(*words, "--resume", id="other_training")


def test_chats_that_no_row_has_room_for_are_told(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    long = json.dumps({"instruction": "the dog " * 700, "output": "Yes"})
    for name in ("train.jsonl", "val.jsonl"):
        (folder / name).write_text(f"{(folder / name).read_text()}\n{long}\n{long}")
    shown = done("reference", "target", "--data", folder, "--out", tmp_path / "out", "--steps", 1, *SIZES, *COMMON)
    assert "2 answers" in shown and "128 tokens" in shown
    assert "2 held-out chats" in shown


def test_an_earlier_run_is_not_overwritten_but_resumed(data: Path, target: Path, tmp_path: Path) -> None:
    """A run that was killed before its first checkpoint does its steps again and ends with the same weights."""
    out = tmp_path / "again"
    shutil.copytree(target, out)
    shutil.rmtree(out / "checkpoints" / "step-0000003")
    for name in ("training.json", "model.safetensors"):
        (out / name).unlink()
    arguments = ("reference", "target", "--data", data, "--out", out, "--steps", 3, *SIZES, *COMMON)
    assert "--resume" in refused(*arguments, id="out_not_empty")
    assert "nothing to resume yet" in done(*arguments, "--resume")
    assert (out / "model.safetensors").read_bytes() == (target / "model.safetensors").read_bytes()
    shown = refused(*arguments, "--resume", "--seed", 1, id="other_training")
    assert "seed: 0" in shown and " 1 " in shown


def test_epochs_are_turned_into_steps_over_all_stages() -> None:
    """Rows of 4 tokens: 6 pieces of 4 are 6 rows a pass. Half of the run reads 2 rows a step, half of it 1."""
    import numpy as np

    pieces = [Piece(np.zeros(4, dtype=np.uint16), constant(4, 100))] * 6
    rows = [PackedCorpus(lambda random: pieces, 4, 0, seed=0, stage=stage) for stage in range(2)]
    data = Data(rows, {}, torch.zeros(1))
    assert steps_of(3, (Stage(0.5, 4, 2), Stage(1.0, 4, 1)), data, batch_tokens=4) == 12
    assert steps_of(0.001, (Stage(1.0, 4, 1),), Data(rows[:1], {}, torch.zeros(1)), batch_tokens=4) == 1


def test_a_model_goes_into_the_pack_and_replaces_its_earlier_self(target: Path, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    add_to_pack(target, PackEntry("tiny", "target", "MIT", "first", "chats"), pack)
    add_to_pack(target, PackEntry("other", "draft", "MIT", "second", "chats"), pack)
    packed = add_to_pack(target, PackEntry("tiny", "moe", "MIT", "again", "chats", draft="other"), pack)
    index = json.loads((pack / "index.json").read_text())
    assert [(entry["name"], entry["role"], entry["description"]) for entry in index] == [
        ("tiny", "moe", "again"),
        ("other", "draft", "second"),
    ]
    assert packed.sha256 == hashlib.sha256((pack / "tiny" / "model.safetensors").read_bytes()).hexdigest()
    model = AutoModelForCausalLM.from_pretrained(target)
    assert packed.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_a_failed_packing_leaves_the_pack_as_is(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that lay in the pack lost its modules and then failed; a full disk left half a model behind."""
    pack, words = tmp_path / "pack", ("--role", "target", "--description", "A", "--data", "B")
    done("reference", "pack", "--model", target, *words, "--pack", pack)
    packing = ("reference", "pack", "--model", ".", *words, "--pack", pack)
    (pack / "tiny" / "modules").mkdir()
    before = _contents(pack)
    monkeypatch.chdir(pack / "tiny")
    refused(*packing, id="already_packed")
    monkeypatch.chdir(target)
    shown = refused(*packing, "--draft", "nosuch", id="draft_not_packed")
    assert "'nosuch'" in shown and "tiny" in shown
    copy, copied = shutil.copyfile, 0

    def copy_three(source: Path, place: Path) -> None:
        nonlocal copied
        copied += 1
        copy(source, place)
        if copied > 3:
            full_disk()

    monkeypatch.setattr(shutil, "copyfile", copy_three)
    shown = refused(*packing, id="cannot_write")
    assert "tiny" in shown and "OSError: [Errno 28] No space left" in shown
    assert _contents(pack) == before
    monkeypatch.setattr(shutil, "copyfile", copy)
    with monkeypatch.context() as patch:
        patch.setattr(pack_module, "_write_index", lambda *_: full_disk())
        refused(*packing, id="cannot_write")
    assert _contents(pack) == before
    done(*packing)
    assert set(before) - set(_contents(pack)) == {"tiny/modules"}


def _contents(folder: Path) -> dict[str, bytes]:
    """Everything below a folder; of a folder nothing but its name."""
    found = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in found}


def test_what_a_kill_left_aside_comes_back_before_all_else(tmp_path: Path) -> None:
    """Killed between the two renames; what was left aside was deleted as rubbish, and then the disk was full."""
    (tmp_path / ".earlier-model").mkdir()
    (tmp_path / ".earlier-model" / "file").write_text("first")
    with pytest.raises(OSError, match="No space left"), replacing(tmp_path / "model"):
        full_disk()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "file").read_text() == "first"


@pytest.mark.slow
def test_a_target_goes_on_from_a_model_with_its_sizes_and_tokenizer(data: Path, target: Path, tmp_path: Path) -> None:
    words = ("reference", "target", "--init-from", target, "--data", data, *COMMON, "--batch-tokens", 2048, "--steps")
    done(*words, 1, "--rate", 0, "--matrix-rate", 0, "--out", tmp_path / "still")
    started, still = (AutoModelForCausalLM.from_pretrained(folder) for folder in (target, tmp_path / "still"))
    assert all(torch.equal(a, b) for a, b in zip(started.parameters(), still.parameters(), strict=True))
    assert (tmp_path / "still" / "tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()
    done(*words, 3, "--out", tmp_path / "further")
    further = AutoModelForCausalLM.from_pretrained(tmp_path / "further")
    assert not torch.equal(started.model.norm.weight, further.model.norm.weight)
    card, before = (tmp_path / "further" / "README.md").read_text(), json.loads((target / "training.json").read_text())
    steps, command = before["outcome"]["steps"], before["provenance"]["command"]
    assert f"It began as tiny, trained before: {steps} steps over" in card and f"by `{command}`." in card
    assert "From scratch" not in card


def test_sizes_beside_a_model_that_has_its_own_are_refused(data: Path, target: Path, tmp_path: Path) -> None:
    words = ("reference", "target", "--init-from", target, "--data", data, "--out", tmp_path / "x", "--steps", 1)
    assert "--layers" in refused(*words, "--layers", 4, id="shape_is_given")
    assert "--vocabulary" in refused(*words, "--vocabulary", 400, id="shape_is_given")
    assert not (tmp_path / "x").exists()


OPTIONS = TrainOptions(data=(), out=Path(), device="cuda")


def cpu(monkeypatch: pytest.MonkeyPatch, machine: str = "x86_64", amx: bool = False) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)


def gpu(monkeypatch: pytest.MonkeyPatch, has_bf16: bool) -> None:
    """One that emulates bfloat16 in any case."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or has_bf16
    )


def test_a_cpu_helps_that_has_tiles_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for amx in (False, True):
        cpu(monkeypatch, amx=amx)
        assert bf16_helps("cpu") is amx
    cpu(monkeypatch, machine="aarch64", amx=True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not bf16_helps("cpu")


def test_a_gpu_that_emulates_it_gets_float32_unless_bfloat16_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_bf16, kept in ((True, "bfloat16"), (False, "float32")):
        gpu(monkeypatch, has_bf16)
        assert (bf16_helps("cuda:0"), target_dtype(OPTIONS)) == (has_bf16, kept)
    assert target_dtype(TrainOptions(data=(), out=Path(), device="cuda", dtype="bfloat16")) == "bfloat16"


@pytest.mark.slow
def test_a_run_records_its_products(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    words = ("reference", "target", "--data", data, "--steps", 1, *SHAPE, "--mlp", 64, "--vocabulary", 300, *COMMON)
    words += ("--batch-tokens", 2048, "--dtype")
    cpu(monkeypatch)
    for asked, bf16 in (("auto", False), ("bfloat16", True)):
        out = tmp_path / asked
        done(*words, asked, "--out", out)
        assert json.loads((out / "training.json").read_text())["settings"]["bf16"] is bf16
        assert ("bfloat16 autocast" in (out / "README.md").read_text()) is bf16
