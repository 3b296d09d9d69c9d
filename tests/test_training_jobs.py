"""Whole jobs on a tiny text: target, draft, card, pack."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from fixtures_training import CHATS, TEXTS, TINY, ticking_clock
from transformers import AutoModelForCausalLM

from benchctl.cli.train import train
from benchctl.errors import UserError
from benchctl.training.corpus import Record
from benchctl.training.jobs import RunOptions, export_checkpoint, train_draft, train_target
from benchctl.training.models import load_model
from benchctl.training.pack import PackEntry, add_to_pack
from benchctl.training.synthetic import story_records, synthetic_records


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    chats = [{"source": "unit", "instruction": r.prompt, "output": r.text} for r in CHATS]
    texts = [{"source": "unit", "text": r.text} for r in TEXTS]
    lines = [json.dumps(record) for record in chats + texts]
    (folder / "train.jsonl").write_text("\n".join(lines))
    (folder / "val.jsonl").write_text("\n".join(lines[:20]))
    return folder


@pytest.fixture(scope="module")
def target(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "tiny"
    train_target(
        RunOptions((data,), out, steps=3, batch_tokens=2048), TINY, 300, ticking_clock(), lambda progress: None
    )
    return out


def test_the_finished_target_is_a_folder_for_transformers(target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(target)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == 5
    training = json.loads((target / "training.json").read_text())
    assert training["settings"]["budget"] == {"steps": 3, "seconds": None}
    assert set(training["outcome"]["held_out"]) == {"instruct"}
    assert set(training["data_sha256"]) == {"train.jsonl", "val.jsonl"}


def test_the_card_says_what_was_read_and_how_to_repeat_it(target: Path) -> None:
    card = (target / "README.md").read_text()
    assert "| unit | 66 | 1 / 1 | not stated |" in card
    assert "benchctl train target --data " in card
    assert "--steps 3" in card
    assert str(target.parent) not in card


def test_a_draft_is_distilled_and_both_go_into_the_pack(data: Path, target: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny-draft"
    options = RunOptions((data,), out, steps=2, batch_tokens=1024)
    accepted = train_draft(options, target, 4, TINY, ticking_clock(), lambda progress: None)
    assert 0 <= accepted <= 1
    pack = tmp_path / "pack"
    add_to_pack(target, PackEntry("tiny", "target", "MIT", "first", draft="tiny-draft"), pack)
    add_to_pack(out, PackEntry("tiny-draft", "draft", "MIT", "second"), pack)
    packed = add_to_pack(target, PackEntry("tiny", "target", "MIT", "again", draft="tiny-draft"), pack)
    index = json.loads((pack / "index.json").read_text())
    assert [(entry["name"], entry["description"]) for entry in index] == [("tiny", "again"), ("tiny-draft", "second")]
    assert packed.sha256 == hashlib.sha256((pack / "tiny" / "model.safetensors").read_bytes()).hexdigest()
    assert packed.parameters == sum(parameter.numel() for parameter in load_model(target).parameters())


def test_an_unfinished_run_can_be_exported(target: Path, tmp_path: Path) -> None:
    export_checkpoint(target, tmp_path / "out")
    exported, finished = load_model(tmp_path / "out").state_dict(), load_model(target).state_dict()
    assert all(torch.equal(exported[name], finished[name]) for name in finished)
    with pytest.raises(UserError, match="missing"):
        add_to_pack(tmp_path / "out", PackEntry("x", "target", "MIT", ""), tmp_path / "pack")
    with pytest.raises(UserError, match="no checkpoint"):
        export_checkpoint(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--steps", "1", "--minutes", "1"], "either --minutes or --steps"),
        (["--optimizer", "sgd", "--steps", "1"], "'sgd' is not one of"),
        (["--data", "nowhere", "--steps", "1"], "no such file or folder"),
    ],
)
def test_wrong_usage_says_what_to_do(data: Path, tmp_path: Path, arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(train, ["target", "--data", str(data), "--out", str(tmp_path), *arguments])
    assert result.exit_code != 0
    assert complaint in result.output + str(result.exception)


def test_synthetic_chats_are_the_same_every_time_and_sums_are_right() -> None:
    records = synthetic_records(300)
    assert records == synthetic_records(300)
    sums = [r for r in records if r.prompt is not None and r.prompt.startswith("Add ")]
    assert sums
    for record in sums:
        assert record.prompt is not None
        a, b = (int(word.strip(".")) for word in record.prompt.split() if word.strip(".").isdigit())
        assert str(a + b) in record.text


def test_a_story_is_asked_for_by_the_word_it_is_about() -> None:
    story = Record("tinystories_sample", None, "Once upon a time a boat sailed. The boat was blue. A boat!")
    assert [record.prompt for record in story_records([story, story])] == [
        "Tell me a short story about a boat.",
        "Write a short story for children about a boat.",
    ]
