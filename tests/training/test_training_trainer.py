"""The loop: it learns, it measures, it stops at nonsense, and its learning rate follows the schedule."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from refusals import refused
from tiny_training import (
    BATCH_TOKENS,
    STAGES,
    CountingRows,
    TinyModule,
    TinyObjective,
    tiny_data,
    tiny_module,
    tiny_settings,
    tiny_trainer,
)
from torch import Tensor, nn

from benchctl.training.checkpoint import checkpoints
from benchctl.training.data.packing import Batch
from benchctl.training.optim import Optimizers, OptimizerSettings, Stage, is_matrix, learning_rate, stage_index
from benchctl.training.train_options import OptimizerName, ScheduleName
from benchctl.training.trainer import Data, Progress, Trainer, TrainSettings
from reference.recipe import fitting


class Killed(Exception):
    """What ends a run in the middle."""


def ticking_clock() -> Callable[[], float]:
    """A clock that moves one second with every look; the loop looks twice a step."""
    return map(float, count()).__next__


def killed_at(step: int) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        if progress.step == step:
            raise Killed

    return report


def log_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def weights_of(module: nn.Module) -> dict[str, list[float]]:
    return {name: parameter.tolist() for name, parameter in module.named_parameters()}


def trained(folder: Path, settings: TrainSettings, dtype: torch.dtype = torch.float32) -> dict[str, list[float]]:
    trainer = tiny_trainer(folder, settings, dtype=dtype)
    trainer.train()
    return weights_of(trainer.module)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_training_learns_the_rule_of_the_text(tmp_path: Path, optimizer: OptimizerName, schedule: ScheduleName) -> None:
    seen: list[Progress] = []
    settings = replace(tiny_settings(steps=80, optimizer=optimizer), schedule=schedule)
    held_out = tiny_trainer(tmp_path, settings, report=seen.append).train()["unit"]
    assert seen[0].loss == pytest.approx(math.log(13), abs=0.6)
    assert held_out["loss"].share < 0.3
    assert 0 < seen[-1].rate < 0.02


def test_the_rate_of_a_logged_step_is_the_one_that_it_used(tmp_path: Path) -> None:
    """It was that of the step after it: 0 for the last one."""
    settings = replace(tiny_settings(steps=4), warmup=0.0, schedule="linear", log_steps=1)
    tiny_trainer(tmp_path, settings).train()
    assert [line["rate"] for line in log_of(tmp_path)] == [1.0, 0.75, 0.5, 0.25]


def test_held_out_measures_come_every_so_many_steps_and_at_the_end(tmp_path: Path) -> None:
    seen: list[Progress] = []
    trainer = tiny_trainer(tmp_path, tiny_settings(steps=10), report=seen.append)
    last = trainer.train()
    assert [progress.step for progress in seen if progress.held_out] == [4, 8, 10]
    assert seen[-1].held_out == last == trainer.held_out()
    logged = log_of(tmp_path)
    assert [line["step"] for line in logged] == [4, 8, 10]
    assert logged[-1]["held_out"] == {"unit": {"loss": last["unit"]["loss"].share}}


def test_measuring_leaves_the_module_in_its_mode(tmp_path: Path) -> None:
    modes: list[bool] = []

    class Watching(TinyObjective):
        def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
            modes.append(module.training)
            return super().__call__(module, batch)

    trainer = Trainer(tiny_module(), Watching(), tiny_data(), tiny_settings(steps=1), tmp_path, ticking_clock())
    trainer.train()
    assert modes == [True, True, True, True, False]
    assert trainer.module.training


@pytest.mark.parametrize(("every_s", "torn"), [(4.0, '{"step": 9, "prog'), (1e9, "")], ids=["resumed", "begun again"])
def test_a_run_that_was_killed_logs_every_step_once(tmp_path: Path, every_s: float, torn: str) -> None:
    """Also when the kill tore the last line, or came before the first checkpoint."""
    settings = replace(tiny_settings(every_s=every_s), log_steps=1)
    with pytest.raises(Killed):
        tiny_trainer(tmp_path, settings, ticking_clock(), killed_at(9)).train()
    assert [line["step"] for line in log_of(tmp_path)] == list(range(1, 9))
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write(torn)
    trainer = tiny_trainer(tmp_path, settings, ticking_clock())
    assert trainer.resume() is bool(torn)
    assert 0 < trainer.position.step < 9 or not torn
    trainer.train()
    assert [line["step"] for line in log_of(tmp_path)] == list(range(1, 13))


def test_resuming_a_finished_run_only_measures(tmp_path: Path) -> None:
    first = tiny_trainer(tmp_path, tiny_settings())
    measured = first.train()
    again = tiny_trainer(tmp_path, tiny_settings())
    assert again.resume()
    assert again.train() == measured
    assert weights_of(again.module) == weights_of(first.module)


def test_a_run_by_the_clock_ends_when_its_time_is_over(tmp_path: Path) -> None:
    seen: list[Progress] = []
    tiny_trainer(tmp_path, tiny_settings(steps=None, seconds=12), ticking_clock(), seen.append).train()
    assert [progress.elapsed_s for progress in seen] == [2, 4, 6, 8, 10, 12]
    assert {progress.tokens_per_s for progress in seen} == {BATCH_TOKENS}


class Poisoned(TinyObjective):
    """The loss is `value` at one micro-batch."""

    def __init__(self, at: int, value: float) -> None:
        self._left = at
        self._value = value

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        self._left -= 1
        return super().__call__(module, batch) * (self._value if self._left == 0 else 1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_the_run_at_its_step(tmp_path: Path, value: float) -> None:
    settings = tiny_settings(every_s=0.0)
    trainer = Trainer(tiny_module(), Poisoned(22, value), tiny_data(), settings, tmp_path, ticking_clock())
    with refused("training_diverged", "step 6", "loss", f" {value}", "step-0000005", "--resume", "--rate"):
        trainer.train()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-0000004", "step-0000005"]
    lower = replace(settings, optimizer=replace(settings.optimizer, rate=0.01))
    again = tiny_trainer(tmp_path, lower)
    assert again.resume()
    assert math.isfinite(again.train()["unit"]["loss"].share)


@pytest.mark.parametrize("rate", [0.05, 0.0])
def test_a_resumed_run_learns_at_the_rates_that_it_is_given(tmp_path: Path, rate: float) -> None:
    """The saved state of its optimisers has the rates of before."""
    settings = tiny_settings(every_s=0.0)
    with pytest.raises(Killed):
        tiny_trainer(tmp_path, settings, report=killed_at(6)).train()
    given = replace(settings.optimizer, rate=rate, matrix_rate=rate)
    trainer = tiny_trainer(tmp_path, replace(settings, optimizer=given))
    assert trainer.resume()
    before = weights_of(trainer.module)
    trainer.train()
    assert (trainer.position.step, weights_of(trainer.module) == before) == (12, rate == 0.0)


def test_a_gradient_that_is_not_finite_stops_the_run_too(tmp_path: Path) -> None:
    class Steep(TinyObjective):
        def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
            loss = super().__call__(module, batch)
            loss.register_hook(lambda gradient: gradient * math.inf)  # type: ignore[no-untyped-call]
            return loss

    trainer = Trainer(tiny_module(), Steep(), tiny_data(), tiny_settings(), tmp_path, ticking_clock())
    with refused("training_diverged", "step 1", "gradient", "--rate"):
        trainer.train()
    assert checkpoints(tmp_path) == []


def test_accumulation_is_the_same_as_one_large_batch(tmp_path: Path) -> None:
    """Eight rows at once or one by one, with weights of their own; rounding aside."""
    at_once = replace(tiny_settings(optimizer="adamw"), stages=(Stage(1.0, 8, 8),))
    one_by_one = replace(at_once, stages=(Stage(1.0, 8, 1),))
    expected = trained(tmp_path / "at once", at_once, torch.float64)
    got = trained(tmp_path / "one by one", one_by_one, torch.float64)
    for name, values in expected.items():
        assert torch.allclose(torch.tensor(got[name]), torch.tensor(values), rtol=0, atol=1e-12), name


def test_the_first_step_is_that_of_the_plain_optimizer(tmp_path: Path) -> None:
    """Clipped, at the rate of the schedule, with the gradient of the mean loss."""
    settings = replace(tiny_settings(steps=1, optimizer="adamw"), warmup=0.0, clip=0.1, stages=(Stage(1.0, 8, 8),))
    got = trained(tmp_path, settings, torch.float64)
    module, batch = tiny_module(torch.float64), CountingRows(8).rows(0, 8)
    (TinyObjective()(module, batch) / weight_of(batch)).backward()  # type: ignore[no-untyped-call]
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    assert float(torch.nn.utils.clip_grad_norm_(learned, 0.1)) > 0.1
    torch.optim.AdamW(learned, lr=0.05, betas=(0.9, 0.95), weight_decay=0.01).step()
    for name, expected in module.named_parameters():
        assert torch.allclose(torch.tensor(got[name]), expected.float(), rtol=0, atol=1e-6), name


def weight_of(batch: Batch) -> float:
    """Tokens 0-4 and 5-7 of every row are documents: six of the seven predictions are within one."""
    return float(batch.weights[:, [1, 2, 3, 4, 6, 7]].sum(dtype=torch.float64))


def test_bf16_is_autocast_of_float32_and_leaves_float64_alone(tmp_path: Path) -> None:
    settings = tiny_settings(steps=3)
    narrow = replace(settings, bf16=True)
    assert trained(tmp_path / "32", settings) != trained(tmp_path / "32 bf16", narrow)
    wide = trained(tmp_path / "64", settings, torch.float64)
    assert wide == trained(tmp_path / "64 bf16", narrow, torch.float64)


@pytest.mark.slow
def test_compiling_changes_rounding_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as for the real compiler but run by torch itself, which needs no C++ compiler."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda loss, dynamic: compile_(loss, dynamic=dynamic, backend="eager"))
    plain = trained(tmp_path / "plain", tiny_settings(), torch.float64)
    compiled = trained(tmp_path / "compiled", replace(tiny_settings(), compiled=True), torch.float64)
    for name, values in plain.items():
        assert torch.allclose(torch.tensor(compiled[name]), torch.tensor(values), rtol=0, atol=1e-9), name


def test_a_step_without_any_weight_learns_nothing_and_goes_on(tmp_path: Path) -> None:
    class Weightless(CountingRows):
        def rows(self, start: int, count: int) -> Batch:
            batch = super().rows(start, count)
            return replace(batch, weights=torch.zeros_like(batch.weights))

    data = Data([Weightless(stage.row_tokens) for stage in STAGES], {}, torch.ones(1))
    settings = replace(tiny_settings(steps=3), optimizer=OptimizerSettings("adamw", decay=0.0))
    trainer = Trainer(tiny_module(), TinyObjective(), data, settings, tmp_path, ticking_clock())
    assert trainer.train() == {}
    assert weights_of(trainer.module) == weights_of(tiny_module())


def test_every_row_of_a_stage_is_read_once_and_in_order(tmp_path: Path) -> None:
    read: list[tuple[int, int]] = []

    class Watched(CountingRows):
        def rows(self, start: int, count: int) -> Batch:
            read.append((start, count))
            return super().rows(start, count)

    data = Data([Watched(stage.row_tokens) for stage in STAGES], {}, torch.ones(1))
    trainer = Trainer(tiny_module(), TinyObjective(), data, tiny_settings(steps=4), tmp_path, ticking_clock())
    trainer.train()
    first_stage = [(start, 2) for start in range(0, 16, 2)]
    assert read == first_stage + [(start, 1) for start in range(8)]
    assert trainer.position.rows == [16, 8]
    assert trainer.position.tokens == 4 * BATCH_TOKENS


def test_muon_takes_matrices_and_adamw_the_rest() -> None:
    module = TinyModule()
    state = Optimizers(module, OptimizerSettings("muon")).state_dict()
    assert [len(state[part]["param_groups"][0]["params"]) for part in ("0", "1")] == [3, 1]
    assert list(Optimizers(nn.Linear(2, 2, bias=False), OptimizerSettings("muon")).state_dict()) == ["0"]


def test_muon_leaves_the_router_of_a_mixture_of_experts_to_adamw() -> None:
    """A row of a router is an expert: making the rows orthogonal forces all experts to be asked equally strongly."""
    weight = nn.Parameter(torch.ones(2, 2))
    names = ("model.layers.0.mlp.gate.weight", "router.weight", "gate.weight", "model.layers.0.mlp.gate_proj.weight")
    assert [is_matrix(name, weight) for name in names] == [False, False, False, True]


def test_a_module_without_trained_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        Optimizers(nn.Linear(2, 2).requires_grad_(False), OptimizerSettings())


@pytest.mark.parametrize(
    ("schedule", "warmup", "rates"),
    [
        ("cosine", 0.1, {0.0: 0.0, 0.05: 0.5, 0.1: 1.0, 0.19: 0.9755, 0.55: 0.5, 1.0: 0.0}),
        ("linear", 0.1, {0.0: 0.0, 0.05: 0.5, 0.1: 1.0, 0.19: 0.9, 0.55: 0.5, 1.0: 0.0}),
        ("cosine", 0.0, {0.0: 1.0}),
    ],
)
def test_the_rate_warms_up_and_falls_to_zero(schedule: ScheduleName, warmup: float, rates: dict[float, float]) -> None:
    for progress, rate in rates.items():
        assert learning_rate(progress, warmup, schedule) == pytest.approx(rate, abs=1e-4)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_a_run_may_warm_up_to_its_end(schedule: ScheduleName) -> None:
    """The report of the last step asked for the rate at the end and divided by zero: the trained weights were lost."""
    assert [learning_rate(p, warmup=1.0, schedule=schedule) for p in (0.5, 1.0)] == [0.5, 1.0]


def test_stages_follow_the_progress() -> None:
    stages = (Stage(0.6, 256, 16), Stage(1.0, 512, 8))
    assert [stage_index(stages, progress) for progress in (0.0, 0.59, 0.6, 1.0)] == [0, 0, 1, 1]


def test_a_step_has_as_many_micro_batches_as_fit_and_one_at_least() -> None:
    assert [Stage(1.0, 256, 4).micro_batches(tokens) for tokens in (100, 1024, 4096, 5000)] == [1, 1, 4, 4]


def test_rows_are_never_longer_than_the_context_and_as_many_tokens_are_read() -> None:
    stages = (Stage(0.5, 256, 8), Stage(1.0, 1024, 2))
    assert fitting(stages, 128) == (Stage(0.5, 128, 16), Stage(1.0, 128, 16))
    assert fitting(stages, 1024) == stages
