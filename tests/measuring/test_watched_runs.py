"""A run under watch: what its rows tell, what is marked, and how it is said; and `benchctl doctor`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command import cli, ok
from fixtures_run import GENERATIONS, LABELS, make_settings, measure_file, measured, timeless

from benchctl.cli import doctor as doctor_aa
from benchctl.measuring import run as runs
from benchctl.measuring.machine import advice as examinations
from benchctl.measuring.machine.advice import LoadSample
from benchctl.measuring.machine.meter import Meter, bandwidth_mb_s
from benchctl.measuring.session import Notice, Progress
from benchctl.measuring.settings import RunSettings
from benchctl.records.writer import read

QUIET = {"waited_share": 0.0}
LOUD = {"waited_share": 0.5}


@pytest.fixture
def settings(run_folder: Path, tmp_path: Path) -> RunSettings:
    return replace(make_settings(run_folder, tmp_path / "out.jsonl"), watch=True)


class Chosen:
    """An instrument that shows what it was given, one generation after another, and is quiet then."""

    def __init__(self, *shown: Mapping[str, float]) -> None:
        self._shown: Iterator[Mapping[str, float]] = iter(shown)
        self.count = 0

    def __call__(self) -> Callable[[], Mapping[str, float]]:
        self.count += 1
        return lambda: next(self._shown, QUIET)


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Chosen]:
    """Conditions for the generations of the next run; warm-up takes 24 of them in two rounds."""

    def make(*shown: Mapping[str, float]) -> Chosen:
        chosen = Chosen(*shown)
        monkeypatch.setattr(runs, "bandwidth_mb_s", lambda device, threads: None)
        monkeypatch.setattr(runs, "make_meter", lambda device, **_: Meter(device, [chosen]))
        return chosen

    return make


@pytest.mark.slow
def test_a_watched_run_records_every_generation_and_the_machine_and_an_unwatched_one_only_the_answers(
    settings: RunSettings, tmp_path: Path
) -> None:
    file = measure_file(settings)
    assert all(row.conditions for row in file.rows)
    assert all(row.peak_memory_bytes and row.reserved_memory_bytes is None for row in file.rows)
    assert 0.1 < float(str(file.run.machine["one_row_cost"])) < 10
    bandwidth = file.run.machine["memory_bandwidth_mb_s"]
    assert isinstance(bandwidth, float) and 100 < bandwidth < 10_000_000
    assert file.run.step_bytes > 0 and file.run.cache_token_bytes > 0
    plain = measure_file(replace(settings, watch=False, out=tmp_path / "plain.jsonl"))
    assert timeless(measured(plain)) == timeless(measured(file))
    assert all(not row.conditions and not row.invalid for row in plain.rows)
    assert not {"memory_bandwidth_mb_s", "one_row_cost"} & set(plain.run.machine)


@pytest.mark.slow
def test_bandwidth_is_measured_with_the_memory_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "ones")  # what the measurement takes its memory with
    assert 100 < (bandwidth_mb_s("cpu", 1) or 0) < 10_000_000
    monkeypatch.setattr(sys, "executable", "no-such-python")
    assert bandwidth_mb_s("cpu", 1) is None


def warm_up_of(settings: RunSettings) -> RunSettings:
    """One round of warm-up on the first prompt, of one turn: a generation per label."""
    return replace(settings, repeat=replace(settings.repeat, warm_up=1))


def test_warm_up_is_never_marked(settings: RunSettings, show: Callable[..., Chosen]) -> None:
    chosen = show(*[LOUD] * len(LABELS))
    file = measure_file(warm_up_of(settings))
    assert chosen.count == len(file.rows) == GENERATIONS + len(LABELS)
    assert not any(row.invalid for row in file.rows)


def test_a_disturbance_that_lasts_is_told(settings: RunSettings, show: Callable[..., Chosen]) -> None:
    show(*[{"throttle_reasons": 64.0}] * 999)
    events: list[Notice | Progress] = []
    file = measure_file(warm_up_of(settings), events.append)
    assert all("too hot (hardware)" in row.invalid for row in measured(file))
    notices = [event.text for event in events if isinstance(event, Notice) and "--no-watch" in event.text]
    assert len(notices) == 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """An examination whose measured figures were chosen: only how they are told is looked at."""
    seen = LoadSample(foreign_cores=1.0, waited_share=0.3, sentinel_spread=0.01)
    monkeypatch.setattr(examinations, "_sample", lambda clock, device, host: (7.31e-5, seen))
    monkeypatch.setattr(examinations, "memory_bandwidth_mb_s", lambda clock, device: 17_708.6)


@pytest.mark.usefixtures("quick")
def test_doctor_shows_the_machine_and_its_problems_to_people_and_programs() -> None:
    result = ok(cli("doctor", "--device", "cpu"))
    lines = result.stdout.splitlines()
    assert "measured on       1 thread" in lines and "memory bandwidth  17.7 GB/s" in lines
    assert any(line.startswith("matrix product") and "73.1 us" in line and "1%" in line for line in lines)
    assert any(line.startswith("* ") and "30%" in line for line in lines)
    assert max(map(len, lines)) <= 80
    shown = json.loads(cli("doctor", "--device", "cpu", "--json").stdout)
    assert shown["memory_bandwidth_mb_s"] == 17_708.6 and shown["seen"]["waited_share"] == 0.3
    assert shown["facts"]["cpu"] and shown["gpu"] is None and shown["threads"] == 1


def test_the_machine_is_really_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examinations, "_LOOKS", 5)
    found = examinations.examine_machine("cpu", 1)
    assert 1e-6 < found.sentinel_s < 1 and found.seen.sentinel_spread >= 0
    assert 100 < found.memory_bandwidth_mb_s < 10_000_000


def test_doctor_compares_the_baseline_with_itself(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: Callable[..., Chosen]
) -> None:
    """On a quiet machine: a busy one, as beside other tests, once left out all of a prompt."""
    monkeypatch.setattr(doctor_aa, "_PROMPTS", 5)
    monkeypatch.setattr(doctor_aa, "_NEW_TOKENS", 3)
    show()
    out = tmp_path / "aa.jsonl"
    result = ok(cli("doctor", "--aa", "--device", "cpu", "--model", run_folder / "target", "--out", out))
    assert "5 prompts" in result.stdout
    file = read(out)
    assert len(measured(file)) == 5 * 8 and {row.label for row in file.rows} == {"autoregressive"}
    again = json.loads(cli("doctor", "--aa", out, "--json").stdout)
    assert f"{again['minimum_detectable_effect']:.2%}" in result.stdout
    refused = cli("doctor", "--aa", "--model", run_folder / "target", "--out", out)
    assert (refused.exit_code, refused.stdout) == (2, "")


@pytest.mark.slow
def test_a_run_in_batches_has_no_cost_of_one_row(settings: RunSettings) -> None:
    """Its baseline never decodes one row, so `compare` cannot call it weak by that."""
    file = measure_file(replace(settings, methods=("autoregressive",), batch_size=2))
    assert "memory_bandwidth_mb_s" in file.run.machine and "one_row_cost" not in file.run.machine
