"""The loop: it learns, it resumes exactly, and a failed save costs nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fixtures_training import Fixture, small_fixture, small_settings, ticking_clock, tiny_model
from torch import nn
from torch.nn import functional
from transformers import LlamaForCausalLM

from benchctl.errors import UserError
from benchctl.training.checkpoint import Position, checkpoints, load_checkpoint, load_weights, save_checkpoint
from benchctl.training.objective import Distillation, next_token_loss
from benchctl.training.optim import OptimizerSettings, optimizer_name
from benchctl.training.packing import Batch
from benchctl.training.schedule import Budget, Stage, learning_rate, stage_index
from benchctl.training.trainer import Progress, Trainer, TrainSettings


@pytest.fixture(scope="module")
def small() -> Fixture:
    return small_fixture()


class Killed(Exception):
    """What ends a run in the middle."""


def run(
    small: Fixture, folder: Path, settings: TrainSettings, resume: bool = False, kill_at: int | None = None
) -> tuple[LlamaForCausalLM, list[Progress]]:
    model = tiny_model(small.tokenizer)
    seen: list[Progress] = []

    def report(progress: Progress) -> None:
        seen.append(progress)
        if progress.step == kill_at:
            raise Killed

    trainer = Trainer(model, next_token_loss, small.data, settings, folder, ticking_clock(), report)
    if resume:
        assert trainer.resume()
    trainer.train()
    return model, seen


def unigram_loss(batches: list[Batch]) -> float:
    """Loss of always guessing by how often a token occurs in the very text that is measured."""
    counted = torch.cat([batch.tokens[:, 1:][batch.weights[:, 1:] == 1] for batch in batches])
    shares = torch.bincount(counted).float() / len(counted)
    return float(-(shares[shares > 0] * shares[shares > 0].log()).sum())


def test_training_beats_the_unigram_baseline(small: Fixture, tmp_path: Path) -> None:
    model, seen = run(small, tmp_path, small_settings(steps=80))
    held_out = Trainer(
        model, next_token_loss, small.data, small_settings(steps=1), tmp_path, ticking_clock()
    ).held_out()["unit"]
    assert seen[0].loss > 5
    assert held_out.nats_per_token < 0.75 * unigram_loss(list(small.data.held_out["unit"]))
    assert 0 < held_out.bits_per_byte < held_out.nats_per_token / math.log(2)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_killed_run_ends_with_the_same_weights(small: Fixture, tmp_path: Path, optimizer: str) -> None:
    settings = replace(
        small_settings(steps=16, checkpoint_s=5.0), optimizer=OptimizerSettings(name=optimizer_name(optimizer))
    )
    whole, _ = run(small, tmp_path / "whole", settings)
    with pytest.raises(Killed):
        run(small, tmp_path / "killed", settings, kill_at=13)
    assert 0 < int(checkpoints(tmp_path / "killed")[-1].name.removeprefix("step-")) < 13
    resumed, seen = run(small, tmp_path / "killed", settings, resume=True)
    assert seen[-1].step == 16
    for name, expected in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], expected), name


def test_the_log_has_a_line_of_json_per_measured_step(small: Fixture, tmp_path: Path) -> None:
    run(small, tmp_path, small_settings(steps=20))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20]
    assert lines[1]["progress"] == 1.0


def test_a_resumed_run_logs_every_step_once(small: Fixture, tmp_path: Path) -> None:
    settings = replace(small_settings(steps=12, checkpoint_s=4.0), log_steps=1)
    with pytest.raises(Killed):
        run(small, tmp_path, settings, kill_at=9)
    run(small, tmp_path, settings, resume=True)
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 13))


def test_a_run_by_the_clock_ends_when_its_time_is_over(small: Fixture, tmp_path: Path) -> None:
    settings = TrainSettings(Budget(seconds=6), (Stage(0.5, 32, 2), Stage(1.0, 64, 1)), batch_tokens=64, bf16=False)
    _, seen = run(small, tmp_path, settings)
    assert len(seen) == 6
    assert seen[-1].rate == pytest.approx(0.0)


def test_a_save_that_fails_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, Position(step=1), {"w": torch.ones(2)}, {})

    def full_disk(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, Position(step=2), {"w": torch.zeros(2)}, {})
    monkeypatch.undo()
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert (found.position.step, found.weights["w"].tolist()) == (1, [1.0, 1.0])
    save_checkpoint(tmp_path, Position(step=2), {"w": torch.zeros(2)}, {})
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, Position(step=step), {"w": torch.ones(1)}, {})
    assert [path.name for path in checkpoints(tmp_path)] == ["step-0000002", "step-0000003"]


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(UserError, match="another shape"):
        load_weights(nn.Linear(2, 2), {"weight": torch.ones(3, 2), "bias": torch.ones(2)})


def test_the_draft_learns_the_targets_distribution(small: Fixture, tmp_path: Path) -> None:
    target, _ = run(small, tmp_path / "target", small_settings(steps=40))
    draft = tiny_model(small.tokenizer, seed=1)
    trainer = Trainer(
        draft, Distillation(target), small.data, small_settings(steps=40), tmp_path / "draft", ticking_clock()
    )
    batch = small.data.stages[1].rows(0, 8)
    with torch.no_grad():
        before = float(Distillation(target)(draft, batch))
    trainer.train()
    with torch.no_grad():
        assert float(Distillation(target)(draft, batch)) < 0.5 * before
        assert float(Distillation(target)(target, batch)) == pytest.approx(0, abs=1e-3)


def test_next_token_loss_is_the_weighted_cross_entropy() -> None:
    class Fixed(nn.Module):
        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> object:
            return SimpleNamespace(logits=functional.one_hot(input_ids, 3).float())

    batch = Batch(torch.tensor([[0, 0, 2]]), torch.tensor([[1.0, 1.0, 0.5]]))
    right, wrong = -math.log(math.e / (math.e + 2)), -math.log(1 / (math.e + 2))
    assert float(next_token_loss(Fixed(), batch)) == pytest.approx(right + 0.5 * wrong)


def test_rate_warms_up_and_falls_to_zero() -> None:
    assert [learning_rate(p, warmup=0.02) for p in (0.0, 0.01, 0.02, 1.0)] == [0.0, 0.5, 1.0, pytest.approx(0.0)]


def test_stages_follow_the_progress() -> None:
    stages = (Stage(0.6, 256, 16), Stage(1.0, 512, 8))
    assert [stage_index(stages, progress) for progress in (0.0, 0.59, 0.6, 1.0)] == [0, 0, 1, 1]


def test_a_budget_is_steps_or_seconds() -> None:
    assert Budget(steps=4).progress(1, 99.0) == 0.25
    assert Budget(seconds=50).progress(1, 99.0) == 1.0
    with pytest.raises(ValueError, match="either"):
        Budget(steps=1, seconds=1.0)
