"""`benchctl train` before anything is trained: its help, and what it refuses at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixtures_training import done, refused, write_data
from tiny import tiny_folder

from benchctl.cli.display import TrainingDisplay
from benchctl.cli.train import command_line, train
from benchctl.decoding.modules.trainable import Tally
from benchctl.registry import TRAINABLE
from benchctl.training.jobs import check_device
from benchctl.training.modules.job import trainable_names
from benchctl.training.trainer import Progress


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Model and data that are good."""
    folder = tmp_path_factory.mktemp("good")
    return ["--model", tiny_folder(folder / "tiny"), "--data", write_data(folder / "data")]


def test_help_lists_every_part_and_every_method_with_modules() -> None:
    assert trainable_names() == sorted(TRAINABLE)
    printed = done("train", "--help")
    for part in ("draft", *trainable_names()):
        assert printed.count(f"\n  {part} ") == 1
    assert "Usage: main train medusa[heads=3]" in done("train", "medusa[heads=3]", "--help")


@pytest.mark.parametrize("part", ["fly", "prompt_lookup", "autoregressive"])
def test_what_has_nothing_to_train_is_refused_with_what_has(part: str) -> None:
    assert "draft, auto_exit, deed, dflash, eagle, early_exit, kangaroo, m2r2" in refused("train", part, "--help")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("medusa[wings=2]",), "'wings'"),
        (("medusa[modules=x]",), "leave out modules"),
        (("medusa", "--row-tokens", "64", "--data", "nowhere.jsonl"), "nowhere.jsonl"),
        (("medusa", "--model", "nowhere"), "'nowhere'"),
        (("medusa", "--steps", "1", "--epochs", "1"), "--minutes, --steps"),
        (("target", "--steps", "1", "--optimizer", "sgd"), "'sgd' is not one of"),
        (("target", "--steps", "1", "--device", "tpu"), "unknown device 'tpu'"),
        (("target", "--steps", "1", "--rate", "nan"), "not a finite number"),
        (("medusa", "--row-tokens", "9"), "longer than a row"),
        (("medusa", "--row-tokens", "129"), "--row-tokens 128"),
        (("draft", "--row-tokens", "129", "--steps", "1"), "--row-tokens 128"),
        (("target", "--steps", "1", "--held-out-every", "0"), "'--held-out-every'"),
        (("target", "--steps", "1", "--hidden", "100", "--heads", "6"), "--hidden 100 is no multiple of --heads 6"),
        (("target", "--steps", "1", "--heads", "6", "--kv-heads", "4"), "--heads 6 is no multiple of --kv-heads 4"),
        (("moe", "--steps", "1", "--experts", "2", "--experts-per-token", "3"), "--experts-per-token 3 is more than"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_trained(
    words: list[object], tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    given = words if arguments[0] != "target" else words[2:]
    program = "reference" if arguments[0] in ("target", "moe") else "train"
    assert complaint in refused(program, arguments[0], *given, "--out", tmp_path / "out", *arguments[1:])


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    words = ("--data", "x", "--out", tmp_path / "out", "--steps", 1, "--device", "cuda")
    assert "--device cpu" in refused("reference", "target", *words)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device("cuda:1")


def test_an_estimate_for_a_gpu_that_is_not_there_is_refused(
    words: list[object], monkeypatch: pytest.MonkeyPatch, raised: list[str]
) -> None:
    """It was a traceback."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    refused("train", "medusa", *words[:2], "--estimate", "--device", "cuda")
    assert raised[-1] == "no_gpu"


def test_an_out_folder_that_cannot_be_used_is_refused(words: list[object], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "modules.json").write_text("{}")
    for out, fact in (("file", "is a file"), ("file/below", "cannot be made"), ("done", "--resume")):
        assert fact in refused("train", "medusa", *words, "--out", tmp_path / out)


def test_the_command_line_is_recorded_without_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file had the name of a number that was given, training ended with a traceback."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "3").touch()
    context = train.make_context("train", ["draft"])
    out, data = tmp_path / "x", ("--data", str(tmp_path), "--data", "owner/name")
    words = [*data, "--out", str(out), "--model", "medusa", "--answers-only", "--resume", "--steps", "3"]
    draft = train.commands["draft"].make_context("draft", words, parent=context)
    given = f"--out x --data {tmp_path.name} --data owner/name --model medusa"
    assert sorted(command_line(draft).split()) == sorted(f"benchctl draft {given} --answers-only --steps 3".split())


def test_progress_is_one_line_and_each_held_out_set_another(capsys: pytest.CaptureFixture[str]) -> None:
    """Of many measures the first are shown, and the others counted."""
    many = {f"measure_{number}": Tally(1, 4) for number in range(15)}
    step = Progress(step=30, progress=0.25, loss=2.5, rate=1.0, tokens=900, elapsed_s=60.0, tokens_per_s=15.0)
    with TrainingDisplay(lambda: 0.0) as display:
        display.progress(replace(step, held_out={"text": {"loss": Tally(5, 2), "top1": Tally(1, 4)}, "many": many}))
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == "step 30  25.0%  loss 2.500  15 tokens/s  3 min left"
    assert second == "  text: loss 2.500  top1 0.250"
    assert third.endswith("measure_12 0.250  and 2 more in log.jsonl")
