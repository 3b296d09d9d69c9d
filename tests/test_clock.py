"""The clock: it runs forwards, and waits for a GPU before it is read."""

from datetime import timedelta

import pytest
import torch

from benchctl.measuring.clock import Clock, utc_now


def test_the_clock_counts_seconds_and_never_runs_backwards() -> None:
    clock = Clock()
    readings = [clock() for _ in range(100)]
    assert readings == sorted(readings)
    assert 0 < readings[-1] - readings[0] < 1


def test_on_a_gpu_queued_work_is_waited_for_before_each_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    clock = Clock("cuda")
    assert waited == []
    clock()
    clock()
    assert waited == ["cuda", "cuda"]


def test_on_a_cpu_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: pytest.fail("waited for a GPU"))
    Clock("cpu")()


def test_the_time_of_day_says_that_it_is_utc() -> None:
    assert utc_now().utcoffset() == timedelta(0)
