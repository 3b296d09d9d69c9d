"""The frame has one line per generation, and pairs each with its counterpart by the baseline."""

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_records import BASELINE, DRAFTED, EXITING, baseline_row, drafted_row, exiting_row, failed, write

from benchctl.analysis.frame import load, pair


def test_a_line_sums_the_steps_of_its_generation(tmp_path: Path) -> None:
    frame = load([write(tmp_path / "run.jsonl", [drafted_row(steps=4, step_s=0.5, ttft_s=2.0)])])
    line = frame.iloc[0]
    assert (line["ttft_s"], line["decode_s"], line["whole_s"]) == (2.0, 2.0, 4.0)
    assert (line["new_tokens"], line["committed_tokens"], line["steps"]) == (9, 8, 4)
    assert (line["drafted_tokens"], line["accepted_tokens"]) == (12, 4)
    assert (line["depth_layers"], line["full_layers"]) == (9 * 12, 9 * 12)


def test_warm_up_is_left_out_unless_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [replace(baseline_row(), repeat=-1), baseline_row()])
    assert list(load([path])["repeat"]) == [0]
    assert list(load([path], warm_up=True)["repeat"]) == [-1, 0]


def test_a_failed_generation_has_no_times(tmp_path: Path) -> None:
    frame = load([write(tmp_path / "run.jsonl", [failed(drafted_row(), "out of memory")])])
    assert frame[["ttft_s", "decode_s", "whole_s", "whole_decode_s"]].isna().all(axis=None)
    assert frame.iloc[0]["error"] == "out of memory"


def test_a_method_is_paired_with_the_baseline_of_its_own_process(tmp_path: Path) -> None:
    slow = write(tmp_path / "slow.jsonl", [baseline_row(step_s=9.0), drafted_row()])
    fast = write(tmp_path / "fast.jsonl", [baseline_row(step_s=1.0), exiting_row()])
    frame = load([slow, fast])
    assert list(pair(frame, DRAFTED, BASELINE)["decode_s_baseline"]) == [72.0]
    assert list(pair(frame, EXITING, BASELINE)["decode_s_baseline"]) == [8.0]


def test_turns_and_repeats_are_paired_with_their_own(tmp_path: Path) -> None:
    baselines = [replace(baseline_row(step_s=1.0 + turn + 10 * repeat), turn=turn, repeat=repeat)
                 for turn in range(2) for repeat in range(2)]  # fmt: skip
    answers = [replace(drafted_row(), turn=row.turn, repeat=row.repeat) for row in reversed(baselines)]
    pairs = pair(load([write(tmp_path / "run.jsonl", baselines + answers)]), DRAFTED, BASELINE)
    assert list(pairs["decode_s_baseline"] / 8) == list(1.0 + pairs["turn"] + 10 * pairs["repeat"])


@pytest.mark.parametrize("missing", [BASELINE, DRAFTED])
def test_a_prompt_that_either_failed_on_is_not_paired(tmp_path: Path, missing: str) -> None:
    rows = [baseline_row("p0"), drafted_row("p0"), baseline_row("p1"), drafted_row("p1")]
    rows = [failed(row) if (row.label, row.prompt_id) == (missing, "p1") else row for row in rows]
    frame = load([write(tmp_path / "run.jsonl", rows)])
    assert list(pair(frame, DRAFTED, BASELINE)["prompt_id"]) == ["p0"]


def test_a_run_without_rows_is_an_empty_frame(tmp_path: Path) -> None:
    frame = load([write(tmp_path / "run.jsonl", [])])
    assert len(frame) == 0
    assert len(pair(frame, DRAFTED, BASELINE)) == 0
