"""Training a whole target under the depths of skip_decode: what it computes, and the model that comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fixtures_training import COMMON, done, refused, write_data
from oracles import in_float64
from plain_depths import plan_of_depths, planned_states, said_by
from runs import prompt_of
from tiny import tiny_folder, tiny_model

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.methods.skip_decode.schedule import DepthSchedule, text_depths
from benchctl.registry import build
from benchctl.training.data.packing import Batch
from reference.objectives import ScheduledDepth

LAYERS = 4
SCHEDULE = DepthSchedule(LAYERS, 4, 1, 1, 3)
BYTES = torch.ones(24, dtype=torch.int64)


def two_documents() -> Batch:
    tokens = torch.tensor([[*prompt_of(7), *prompt_of(6, 1), 0]])
    documents = torch.tensor([[0] * 7 + [1] * 6 + [-1]])
    positions = torch.tensor([[*range(7), *range(6), 0]])
    weights = torch.tensor([[0.3, 0.3, 1, 1, 1, 1, 1, 0.3, 1, 1, 1, 1, 1, 0]])
    return Batch(tokens, weights, documents, positions)


@torch.no_grad()
def test_the_loss_is_that_of_each_token_at_its_depth() -> None:
    """By hand: each document by itself, in one pass where tokens keep their residual in layers that they do not run."""
    model, batch = in_float64(tiny_model("llama", layers=LAYERS, vocab_size=24, dtype=torch.float64)), two_documents()
    depths = text_depths(SCHEDULE, batch, chance=False).depths[0].tolist()
    expected = torch.zeros((), dtype=torch.float64)
    assert depths[:13] == [4, 4, 4, 3, 2, 1, 1, 4, 4, 3, 2, 1, 1]
    for start, end in ((0, 7), (7, 13)):
        text = batch.tokens[0, start:end].tolist()
        said = said_by(model, planned_states(model, text, plan_of_depths(LAYERS, 1, depths[start:end])))
        losses = F.cross_entropy(said[:-1], torch.tensor(text[1:]), reduction="none")
        expected += (losses * batch.weights[0, start + 1 : end]).sum()
    objective = ScheduledDepth(BYTES, SCHEDULE)
    assert float(objective(model.eval(), batch)) == pytest.approx(float(expected), rel=1e-9)
    measured = objective.measure(model, batch)
    assert measured["loss"].right == pytest.approx(float(expected), rel=1e-9)
    # Ten answer tokens, each told from the one before it, which ran 4, 4, 3, 2 and 1 layers in either document.
    assert (measured["depth"].right, measured["depth"].of) == (28, 40)
    assert not any(layer._forward_hooks for layer in model.model.layers)


def test_the_command_line_makes_another_target_that_the_method_runs_without_modules(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    tiny_folder(tmp_path / "target", layers=LAYERS)
    words = ("--init-from", tmp_path / "target", "--data", tmp_path / "data", "--out", tmp_path / "other")
    label = "skip_decode[min_layers=2,fall_tokens=8,rank=4]"
    printed = done("reference", "target", *words, "--depths", label, "--steps", 2, "--batch-tokens", 2048, *COMMON)
    plain = "skip_decode[adapters=none,min_layers=2,fall_tokens=8]"
    assert f"--method '{plain}'" in printed and plain in (tmp_path / "other" / "README.md").read_text()
    before, target = Target.load(tmp_path / "target"), Target.load(tmp_path / "other")
    assert before.weights_sha256 != target.weights_sha256
    method = build(plain)
    method.prepare(target)
    assert min(decode(method, target, DecodeRequest(prompt_of(9), 12)).layers) == 2


def test_depths_that_cannot_be_are_refused(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    tiny_folder(tmp_path / "target", layers=LAYERS)
    words = ("--init-from", tmp_path / "target", "--data", tmp_path / "data", "--out", tmp_path / "other")
    for options, message in (
        (("medusa",), "--depths medusa"),
        (("skip_decode[min_layers=9]",), "min_layers 9"),
        (("skip_decode", "--exits", "1"), "--exits or --depths"),
        (("skip_decode[warmup_layers=-1]",), "warmup_layers is -1"),
    ):
        printed = refused("reference", "target", *words, "--depths", *options, "--steps", 1, *COMMON)
        assert message in " ".join(printed.split())
