"""A/A on rows whose noise was chosen: what is called different by chance, and what could be told from chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, sqrt
from pathlib import Path

import numpy as np
import pytest
from command import cli
from compared import file_of
from fixtures_records import BASELINE, RUN, baseline_row, failed, write
from refusals import refused

from benchctl.analysis.stats.aa import compare_with_itself
from benchctl.records.schema import Row
from benchctl.records.writer import RunFile


def noisy_rows(prompts: int, repeats: int, noise: float, seed: int) -> list[Row]:
    """The baseline's answers of one token, each prompt with a pace of its own, each repeat off by `noise`."""
    draw = np.random.default_rng(seed)
    pace_s = draw.uniform(0.5, 3.0, prompts)
    times_s = (pace_s[:, None] * draw.normal(1.0, noise, (prompts, repeats))).tolist()
    return [
        replace(baseline_row(f"p{prompt}", tokens=1, ttft_s=time_s), repeat=repeat)
        for prompt, times in enumerate(times_s)
        for repeat, time_s in enumerate(times)
    ]


def detectable(rows: Sequence[Row], prompts: int, noise: float, repeats: int) -> float:
    """The same from theory: of 2 arms of r/2 repeats each prompt's share of all time has an error of noise * 2 /
    sqrt(r); what a test at 5% finds in 80% is (t + 0.84) standard deviations away."""
    paces_s = np.array([np.mean([row.ttft_s or 0 for row in rows if row.prompt_id == f"p{i}"]) for i in range(prompts)])
    shares = paces_s / paces_s.sum()
    spread = noise * 2 / sqrt(repeats) * sqrt(float((shares**2).sum()))
    return exp((2.0930 + 0.8416) * spread) - 1  # t of 19 degrees


def test_the_detectable_effect_is_that_of_theory() -> None:
    """20 prompts, 8 repeats, 2% noise: the mean over 12 data sets is within 5% of what is worked out by hand."""
    data = [noisy_rows(20, 8, 0.02, seed) for seed in range(12)]
    found = [compare_with_itself([file_of(rows)], splits=300).minimum_detectable_effect for rows in data]
    expected = [detectable(rows, 20, 0.02, 8) for rows in data]
    assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.05)


def test_equal_arms_are_called_different_about_once_in_twenty_times() -> None:
    rates = [
        compare_with_itself([file_of(noisy_rows(20, 4, 0.03, seed))], splits=200).false_positive_rate
        for seed in range(8)
    ]
    assert 0.02 < np.mean(rates) < 0.08


def test_a_machine_whose_noise_is_twice_as_large_detects_half_as_much() -> None:
    quiet, loud = (
        compare_with_itself([file_of(noisy_rows(20, 4, noise, 1))]).minimum_detectable_effect for noise in (0.01, 0.02)
    )
    assert loud == pytest.approx(2 * quiet, rel=0.1)


def test_how_prompts_differ_is_no_noise() -> None:
    """Arms share their prompts, and with them their paces: without noise any difference could be told."""
    assert compare_with_itself([file_of(noisy_rows(10, 4, 0.0, 0))]).minimum_detectable_effect == pytest.approx(0.0)


def test_files_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    """Two models, or machines, became sessions of one comparison."""
    paths = [
        write(tmp_path / f"{threads}.jsonl", noisy_rows(6, 2, 0.02, 0), replace(RUN, threads=threads))
        for threads in (1, 2)
    ]
    result = cli("doctor", "--aa", *paths)
    assert result.exit_code == 2 and "threads is 2" in result.stderr


def test_what_is_counted_are_prompts_repeats_and_sessions() -> None:
    files = [file_of(noisy_rows(6, 5, 0.02, seed), name=f"{seed}.jsonl") for seed in range(3)]
    found = compare_with_itself(files, splits=50)
    assert (found.baseline, found.prompts, found.repeats, found.sessions, found.splits) == (BASELINE, 6, 4, 3, 50)


def test_failed_doubtful_and_other_generations_are_left_out() -> None:
    rows = noisy_rows(8, 4, 0.02, 0)
    alone = compare_with_itself([file_of(rows)], splits=50)
    slow = replace(baseline_row("p8", tokens=1, ttft_s=900.0), invalid="throttled")
    others = [replace(slow, repeat=repeat) for repeat in range(4)]
    others += [replace(failed(slow), prompt_id="p9", repeat=repeat) for repeat in range(4)]
    others += [replace(row, label="two_model[draft_tokens=3]", ttft_s=500.0) for row in rows]
    others += [replace(row, repeat=-1 - row.repeat, ttft_s=500.0) for row in rows]
    others += [replace(row, mode="replay", ttft_s=500.0) for row in rows]
    assert compare_with_itself([file_of([*rows, *others])], splits=50) == alone


def test_a_repeat_that_lost_a_turn_is_not_taken_for_a_fast_one() -> None:
    rows = [replace(row, turn=turn) for row in noisy_rows(8, 5, 0.0, 0) for turn in (0, 1)]
    rows[1] = replace(rows[1], invalid="throttled")
    assert compare_with_itself([file_of(rows)], splits=50).minimum_detectable_effect == pytest.approx(0.0)


def test_a_prompt_that_lost_a_repeat_stays_with_those_it_has() -> None:
    """A load that spoilt one repeat of half of the prompts once cost all of these prompts."""
    rows = noisy_rows(8, 8, 0.02, 0)
    spoilt = [replace(row, invalid="it waited") if index % 16 == 3 else row for index, row in enumerate(rows)]
    found = compare_with_itself([file_of(spoilt)], splits=50)
    assert (found.prompts, found.repeats) == (8, 6)


@pytest.mark.parametrize(
    ("file", "id"),
    [
        (file_of(noisy_rows(8, 1, 0.1, 0)), "too_few_repeats"),
        (file_of(noisy_rows(4, 8, 0.1, 0)), "too_few_repeats"),
        (file_of([]), "too_few_repeats"),
        (file_of(noisy_rows(8, 4, 0.1, 0), replace(RUN, temperature=1.0)), "sampled_answers"),
    ],
)
def test_files_that_cannot_tell_are_refused(file: RunFile, id: str) -> None:
    with refused(id, file.path.name):
        compare_with_itself([file])
