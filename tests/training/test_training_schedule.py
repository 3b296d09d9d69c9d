"""The learning rate over a run, and which stage of the data it is in."""

from __future__ import annotations

import pytest

from benchctl.training.optim import Stage, learning_rate, stage_index
from benchctl.training.train_options import ScheduleName
from reference.recipe import fitting


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
