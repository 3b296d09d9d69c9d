"""The learning rate over a run, and which stage of the data it is in."""

from __future__ import annotations

import pytest

from benchctl.training.optim import Stage, learning_rate, stage_index
from benchctl.training.train_options import ScheduleName
from reference.recipe import fitting


def test_rate_warms_up_and_falls_to_zero() -> None:
    assert [learning_rate(p, warmup=0.02) for p in (0.0, 0.01, 0.02, 1.0)] == [0.0, 0.5, 1.0, pytest.approx(0.0)]


def test_a_cosine_is_half_way_down_in_the_middle_and_flat_at_both_ends() -> None:
    assert learning_rate(0.55, warmup=0.1, schedule="cosine") == pytest.approx(0.5)
    assert learning_rate(0.19, warmup=0.1, schedule="cosine") == pytest.approx(0.9755, abs=1e-4)


def test_a_line_falls_evenly() -> None:
    rates = [learning_rate(p, warmup=0.1, schedule="linear") for p in (0.05, 0.1, 0.19, 0.55, 1.0)]
    assert rates == pytest.approx([0.5, 1.0, 0.9, 0.5, 0.0])


def test_without_warm_up_the_first_step_has_the_peak_rate() -> None:
    assert learning_rate(0.0, warmup=0.0) == 1.0


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
