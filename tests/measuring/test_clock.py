"""The clock: it runs forwards, and waits for a GPU before it is read."""

from datetime import timedelta

import pytest
import torch

from benchctl.measuring.clock import Clock, Timer, utc_now


def test_the_clock_counts_seconds_and_never_runs_backwards() -> None:
    clock = Clock()
    readings = [clock() for _ in range(100)]
    assert readings == sorted(readings)
    assert 0 < readings[-1] - readings[0] < 1


@pytest.mark.parametrize(("device", "waits"), [("cuda", ["cuda"] * 2), ("cpu", [])])
def test_queued_work_of_a_gpu_is_waited_for_before_each_reading(
    device: str, waits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    clock = Clock(device)
    assert waited == []
    clock()
    clock()
    assert waited == waits


def test_a_timer_returns_at_its_moment_and_at_once_after_it() -> None:
    timer = Timer()
    moment_s = timer.now_s() + 0.01
    timer.wait_until(moment_s)
    reached_s = timer.now_s()
    assert reached_s >= moment_s
    timer.wait_until(moment_s - 60)
    assert timer.now_s() - reached_s < 30  # a busy machine may take long, but not the minute that has passed


def test_the_time_of_day_says_that_it_is_utc() -> None:
    assert utc_now().utcoffset() == timedelta(0)
