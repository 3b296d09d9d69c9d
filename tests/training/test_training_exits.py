"""Training exits from the command line: modules, and classifiers on top of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import refusals
import torch
from fixtures_training import BATCHES, COMMON, done, refused, with_target
from safetensors.torch import load_file

from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.trainable import Trainable
from benchctl.registry import build

EXITS = (1, 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a target of random weights, and trained exits for it."""
    folder = tmp_path_factory.mktemp("exits")
    with_target(folder)
    shown = _train(folder, "early_exit[head=trained,exits=1+2]", "exits")
    assert f"--method 'early_exit[modules={folder / 'exits'},head=trained,exits=1+2]'" in shown
    return folder


def _train(folder: Path, label: str, out: str) -> str:
    words = ("--model", folder / "target", "--data", folder / "data", "--out", folder / out, "--steps", 2)
    return done("train", label, *words, *BATCHES, *COMMON)


def _prepare(folder: Path, label: str) -> None:
    build(label).prepare(Target.load(folder / "target"))


def test_classifiers_are_trained_on_top_of_exits_that_stay_as_they_were(made: Path) -> None:
    _train(made, f"early_exit[head=trained,exits=1+2,confidence=classifier,modules={made / 'exits'}]", "both")
    first, both = (load_file(made / name / "modules.safetensors") for name in ("exits", "both"))
    assert {name for name in both if name not in first} == {
        f"classifier.{layer}.{part}" for layer in EXITS for part in ("weight", "bias")
    }
    assert all(torch.equal(first[name], both[name]) for name in first)
    shares = json.loads((made / "both" / "modules.json").read_text())["yardsticks"]
    assert {"exit_1_top1", "exit_1_bare_top1", "exit_2_top1", "exit_1_found", "agreement", "depth"} <= set(shares)
    card = (made / "both" / "README.md").read_text()
    earlier = json.loads((made / "exits" / "training.json").read_text())["provenance"]["command"]
    assert "only the classifier was trained" in card and earlier and earlier in card
    for confidence in ("classifier", "softmax_max"):
        _prepare(made, f"early_exit[head=trained,confidence={confidence},modules={made / 'both'}]")


def test_exits_without_classifiers_say_how_to_train_them(made: Path) -> None:
    with refusals.refused("modules_missing", str(made / "exits"), "classifier", "benchctl train 'early_exit["):
        _prepare(made, f"early_exit[head=trained,confidence=classifier,modules={made / 'exits'}]")
    words = ("--model", made / "target", "--data", made / "data", "--out", made / "none", "--steps", 1)
    label = "early_exit[head=trained,confidence=classifier]"
    assert label in refused("train", label, *words, *BATCHES, *COMMON, id="modules_missing")


@pytest.mark.parametrize("label", ["early_exit[head=trained,confidence=classifier]", "specee", "m2r2_dynamic"])
def test_the_first_stage_that_an_error_names_can_be_trained(label: str, tmp_path: Path) -> None:
    """For specee the error named the command that had just failed."""
    words = ("--model", "ref-dense", "--data", tmp_path, "--out", tmp_path / "new", "--steps", 1)
    printed = refused("train", label, *words, id="modules_missing")
    found = re.search(r"benchctl train '(.+?)' --model", printed)
    first = build(found[1]) if found else None
    assert isinstance(first, Trainable) and first.needs_modules
    assert first.second_stage is None or not first.second_stage.needed


def test_modules_of_other_exits_are_refused_before_a_model_is_loaded(made: Path) -> None:
    words = ("--model", made / "target", "--method", f"early_exit[head=trained,modules={made / 'exits'},exits=1+4]")
    shown = refused("run", *words, id="exits_not_trained")
    assert re.search(r"\b1\+2\b.*\b4\b", shown)
