"""The estimate of memory: parameters are those of real modules, bytes follow from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refused
from tiny import tiny_folder

from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.trainable import ROWS_AT_ONCE, Trainable
from benchctl.registry import build
from benchctl.training.models import parameter_count
from benchctl.training.modules.frozen import find_target, load_target
from benchctl.training.modules.job import estimate
from benchctl.training.train_options import TeacherOptions


@pytest.mark.parametrize("label", ["medusa[heads=2]", "early_exit[head=trained,exits=1+2]", "m2r2[gates=1+2]"])
def test_parameters_are_those_of_real_modules(label: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "target")
    target, method = load_target(find_target(str(folder)), torch.device("cpu"), "float32"), build(label)
    assert isinstance(method, Trainable)
    options = TeacherOptions((), Path(), model=str(folder), row_tokens=64, micro_rows=2, batch_tokens=256)
    adamw, muon = estimate(options, label), estimate(replace(options, optimizer="muon"), label)
    parameters = parameter_count(method.build(target.info, target.lm_head))
    assert adamw.module_parameters == parameters
    assert adamw.memory_bytes["optimizer"] == 2 * adamw.memory_bytes["gradients"] == 8 * parameters
    assert parameters * 4 <= muon.memory_bytes["optimizer"] < parameters * 8
    assert adamw.step_tokens == 256


@pytest.mark.parametrize("label", ["deed[exits=99]", "m2r2[gates=99]", "skip_decode[max_layers=99]"])
def test_modules_that_the_model_has_no_layers_for_have_no_estimate(label: str, tmp_path: Path) -> None:
    with refused("cannot_be_trained", "99"):
        estimate(TeacherOptions((), Path(), model=str(tiny_folder(tmp_path / "target"))), label)


def test_residuals_and_logits_are_those_of_one_pass(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "target")
    info = Target.load(folder).info
    options = TeacherOptions((), Path(), model=str(folder), row_tokens=64, micro_rows=2, dtype="float32")
    memory_bytes = estimate(options, "medusa[heads=2]").memory_bytes
    assert memory_bytes["residuals"] == (info.layers + 1) * 128 * info.hidden_size * 4
    assert memory_bytes["logits"] == 3 * 2 * 128 * info.vocabulary * 4  # an LM head each
    shared = replace(options, draft_vocabulary=8)
    assert estimate(shared, "medusa[head=shared]").memory_bytes["logits"] == 3 * ROWS_AT_ONCE * 8 * 4
    assert estimate(options, "deed").memory_bytes["logits"] == 3 * ROWS_AT_ONCE * info.vocabulary * 4
    assert estimate(replace(options, dtype="auto"), "deed").memory_bytes["target"] == memory_bytes["target"]
