"""Training exits from the command line: modules, classifiers on top of them, or a whole target, which is another."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fixtures_training import BATCHES, COMMON, done, refused, write_data
from oracles import Naive, in_float64
from safetensors.torch import load_file
from tiny import tiny_folder, tiny_model

from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.trainable import Trainable
from benchctl.errors import UserError
from benchctl.registry import build
from benchctl.training.data.packing import Batch, Piece, batch_of
from benchctl.training.modules.objective import loss_weights
from reference.objectives import MultiExit

EXITS = (1, 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a target of random weights, and trained exits for it."""
    folder = tmp_path_factory.mktemp("exits")
    write_data(folder / "data")
    tiny_folder(folder / "target")
    told = _train(folder, "early_exit[head=trained,exits=1+2]", "exits")
    assert f"--method 'early_exit[modules={folder / 'exits'},head=trained,exits=1+2]'" in told
    return folder


def _train(folder: Path, label: str, out: str, target: str = "target") -> str:
    words = ("--model", folder / target, "--data", folder / "data", "--out", folder / out, "--steps", 2)
    return done("train", label, *words, *BATCHES, *COMMON)


def _prepare(folder: Path, label: str, target: str = "target") -> None:
    loaded = Target.load(folder / target)
    build(label).prepare(loaded)


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
    assert "only the classifier learnt" in card and earlier and earlier in card
    for confidence in ("classifier", "softmax_max"):
        _prepare(made, f"early_exit[head=trained,confidence={confidence},modules={made / 'both'}]")


def test_exits_without_classifiers_say_how_to_train_them(made: Path) -> None:
    with pytest.raises(UserError, match=r"holds no classifier; train one on top of it with: benchctl train"):
        _prepare(made, f"early_exit[head=trained,confidence=classifier,modules={made / 'exits'}]")
    words = ("--model", made / "target", "--data", made / "data", "--out", made / "none", "--steps", 1)
    told = refused("train", "early_exit[head=trained,confidence=classifier]", *words, *BATCHES, *COMMON)
    assert "is trained on top of other modules; train those first" in told


@pytest.mark.parametrize("label", ["early_exit[head=trained,confidence=classifier]", "specee", "m2r2_dynamic"])
def test_the_first_stage_that_an_error_names_can_be_trained(label: str, tmp_path: Path) -> None:
    """For specee the error named the command that had just failed."""
    printed = refused(
        "train", label, "--model", "ref-dense", "--data", tmp_path, "--out", tmp_path / "new", "--steps", 1
    )
    found = re.search(r"train those first: benchctl train '(.+?)' --model", printed)
    first = build(found[1]) if found else None
    assert isinstance(first, Trainable) and first.needs_modules
    assert first.second_stage is None or not first.second_stage.needed


def test_modules_of_other_exits_are_refused_before_a_model_is_loaded(made: Path) -> None:
    words = ("--model", made / "target", "--method", f"early_exit[head=trained,modules={made / 'exits'},exits=1+4]")
    assert "trained for exits 1+2, not for 4; choose" in refused("run", *words)


@pytest.mark.slow
def test_a_target_whose_exits_learnt_is_another_one(made: Path) -> None:
    """Its weights tell it apart from the model it began as, whose modules it refuses, and its card says so."""
    words = ("--data", made / "data", "--out", made / "lite", "--steps", 2, "--batch-tokens", 2048, *COMMON)
    told = done("reference", "target", "--init-from", made / "target", "--exits", "1+2", *words)
    assert "--method 'early_exit[exits=1+2]'" in told and "exit_1_top1" in told
    old, new = Target.load(made / "target"), Target.load(made / "lite")
    assert old.weights_sha256 != new.weights_sha256
    with pytest.raises(UserError, match="made for target .* but the target has weights"):
        _prepare(made, f"early_exit[head=trained,modules={made / 'exits'}]", "lite")
    assert "this is another model than any it began as" in (made / "lite" / "README.md").read_text()


@pytest.mark.parametrize(
    ("exits", "complaint"),
    [("1+x", "--exits is '1+x'; join layer numbers by +"), ("3", "--exits 3: exit 3 is not below the model's 3")],
)
def test_exits_that_a_target_cannot_have_are_refused(exits: str, complaint: str, made: Path, tmp_path: Path) -> None:
    words = ("--init-from", made / "target", "--data", made / "data", "--out", tmp_path / "x", "--steps", 1)
    assert complaint in refused("reference", "target", *words, "--exits", exits, *COMMON)


def _batch() -> Batch:
    """A row of two documents and padding, of different weights."""
    random = np.random.default_rng(0)
    percents = [np.array([25, 50, 75, 100, 25, 50][:size], dtype=np.uint8) for size in (5, 6)]
    pieces = [Piece(random.integers(3, 90, len(percent), np.uint16), percent) for percent in percents]
    return batch_of([pieces], 13, pad_id=0)


def test_the_loss_of_a_target_with_exits_is_the_mean_over_them_and_the_last_layer() -> None:
    """Each document by itself, by transformers' residuals as hooks see them."""
    model, batch = in_float64(tiny_model("llama", dtype=torch.float64)), _batch()
    naive, expected = Naive(model), torch.zeros((), dtype=torch.float64)
    for place in (slice(0, 5), slice(5, 11)):
        text, weights = batch.tokens[0, place], batch.weights[0, place]
        states = naive.states(text.tolist())
        for layer in (1, 2, 3):
            losses = F.cross_entropy(naive.logits(states[layer])[:-1], text[1:], reduction="none")
            expected += (losses * weights[1:]).sum() / 3
    objective = MultiExit(torch.ones(96), EXITS)
    got = objective(model, batch)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    measured = objective.measure(model, batch)
    assert measured["loss"].right == pytest.approx(float(expected))
    assert measured["loss"].of == float(loss_weights(batch).sum())
    assert {"nats_per_token", "top1", "exit_1_top1", "exit_2_top1"} <= set(measured)
