"""Figures of replay and profile rows: worked out by hand from made-up rows, and kept out of the headline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_records import BASELINE, DRAFTED, RUN, baseline_row, drafted_row, failed, write

from benchctl.analysis.comparison import Group, MethodFigures, compare, over
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.metrics.modes import (
    PROFILE_OVERHEAD,
    REPLAY_AGREEMENT,
    REPLAY_BLOCK_EFFICIENCY,
    REPLAY_DECODE_SPEEDUP,
    REPLAY_SPEEDUP,
    STEP,
    STEP_COMMIT,
    STEP_DRAFT,
    STEP_HOST,
    STEP_UNSPLIT,
    STEP_VERIFY,
)
from benchctl.analysis.metrics.speed import DECODE_SPEEDUP, SPEEDUP
from benchctl.analysis.tables.modes import mode_blocks, mode_cautions
from benchctl.records.schema import Row
from benchctl.records.writer import read

PROMPTS = ("p0", "p1")
IN_MODES = replace(RUN, modes=("free", "replay", "profile"))
SPLIT = {"draft": 0.25, "verify": 0.5, "commit": 0.15, "host": 0.1}  # of a step


def replayed(row: Row, agreed: int, step_s: float) -> Row:
    sums = {"replay_judged_tokens": 8.0, "replay_agreed_tokens": float(agreed)}
    return replace(row, mode="replay", verdict=None, fidelity=sums, step_s=(step_s,) * len(row.step_s))


def profiled(row: Row, step_s: float, **shares: float) -> Row:
    """A step of `step_s` seconds, of which the phases take these shares."""
    phases = {name: (share * step_s,) * len(row.step_s) for name, share in (shares or SPLIT).items()}
    return replace(row, mode="profile", phases=phases, step_s=(step_s,) * len(row.step_s))


def free_rows() -> list[Row]:
    """The baseline takes 2 + 8 seconds for a prompt, the method 2 + 4."""
    return [row for name in PROMPTS for row in (baseline_row(name), drafted_row(name))]


def replay_rows() -> list[Row]:
    """The baseline takes 2 + 16 seconds, the method 2 + 2."""
    pairs = [(replayed(baseline_row(name), 8, 2.0), replayed(drafted_row(name), 2, 0.5)) for name in PROMPTS]
    return [row for pair in pairs for row in pair]


def profile_rows() -> list[Row]:
    """A step of the baseline takes 1.25 seconds instead of 1, one of the method 1 as it does unsplit."""
    pairs = [(profiled(baseline_row(name), 1.25), profiled(drafted_row(name), 1.0)) for name in PROMPTS]
    return [row for pair in pairs for row in pair]


def group_of(tmp_path: Path, rows: Sequence[Row]) -> Group:
    (group,) = compare([read(write(tmp_path / "run.jsonl", rows, IN_MODES))])
    return group


def method_of(group: Group, label: str) -> MethodFigures:
    return next(method for method in group.pooled.methods if method.label == label)


def value(group: Group, metric: Metric, label: str = DRAFTED) -> float | None:
    return method_of(group, label).estimate(metric).value


def test_the_speed_up_on_the_same_text_stands_beside_that_of_free_running(tmp_path: Path) -> None:
    group = group_of(tmp_path, [*free_rows(), *replay_rows()])
    assert value(group, SPEEDUP) == pytest.approx(10 / 6)
    assert value(group, DECODE_SPEEDUP) == pytest.approx(8 / 4)
    assert value(group, REPLAY_SPEEDUP) == pytest.approx(18 / 4)
    assert value(group, REPLAY_DECODE_SPEEDUP) == pytest.approx(16 / 2)
    assert value(group, REPLAY_SPEEDUP, BASELINE) == 1.0
    assert value(group, REPLAY_BLOCK_EFFICIENCY) == 2.0
    interval = method_of(group, DRAFTED).estimate(REPLAY_SPEEDUP).interval
    assert interval is not None and interval.low == pytest.approx(4.5) == pytest.approx(interval.high)


def test_agreement_is_of_the_tokens_at_which_the_method_s_choice_was_seen(tmp_path: Path) -> None:
    group = group_of(tmp_path, [*free_rows(), *replay_rows()])
    assert value(group, REPLAY_AGREEMENT, BASELINE) == 1.0
    assert value(group, REPLAY_AGREEMENT) == 0.25


def test_the_phases_of_a_step_are_means_over_steps_and_profiling_is_set_against_free_steps(tmp_path: Path) -> None:
    group = group_of(tmp_path, [*free_rows(), *profile_rows()])
    phases = (STEP_DRAFT, STEP_VERIFY, STEP_COMMIT, STEP_HOST)
    assert [value(group, metric) for metric in phases] == pytest.approx([0.25, 0.5, 0.15, 0.1])
    assert [value(group, metric, BASELINE) for metric in (*phases, STEP)] == pytest.approx(
        [0.3125, 0.625, 0.1875, 0.125, 1.25]
    )
    assert value(group, PROFILE_OVERHEAD, BASELINE) == pytest.approx(0.25)
    assert value(group, PROFILE_OVERHEAD) == pytest.approx(0.0)
    assert value(group, STEP_UNSPLIT) == 0.0


def test_steps_count_alike_however_long_their_answers(tmp_path: Path) -> None:
    """Eight steps of 1 second and two of 6: 2 seconds a step, not the 3.5 of the mean answer."""
    rows = [baseline_row("p0"), baseline_row("p1", tokens=3)]
    found = [profiled(rows[0], 1.0), profiled(rows[1], 6.0)]
    assert value(group_of(tmp_path, [*rows, *found]), STEP, BASELINE) == pytest.approx(2.0)


def test_a_profile_without_its_free_counterpart_is_left_out(tmp_path: Path) -> None:
    rows = free_rows()
    rows[2] = failed(rows[2])
    found = profile_rows()
    found[2] = profiled(baseline_row("p1"), 99.0)
    assert value(group_of(tmp_path, [*rows, *found]), STEP, BASELINE) == pytest.approx(1.25)


def test_the_headline_is_the_same_with_the_other_modes_and_without(tmp_path: Path) -> None:
    alone = method_of(group_of(tmp_path, free_rows()), DRAFTED)
    beside = method_of(group_of(tmp_path, [*free_rows(), *replay_rows(), *profile_rows()]), DRAFTED)
    same = {estimate.metric: estimate for estimate in beside.estimates}
    assert all(same[estimate.metric] == estimate for estimate in alone.estimates if estimate.value is not None)
    assert (beside.prompts, beside.generations, beside.fidelity) == (alone.prompts, alone.generations, alone.fidelity)


def test_another_method_can_take_the_baseline_s_place_in_replay_too(tmp_path: Path) -> None:
    third = [replace(row, label="early_exit") for row in (*free_rows(), *replay_rows()) if row.label == BASELINE]
    file = read(write(tmp_path / "run.jsonl", [*free_rows(), *replay_rows(), *third], IN_MODES))
    (group,) = compare([over(file, DRAFTED)])
    assert value(group, REPLAY_SPEEDUP, "early_exit") == pytest.approx(4 / 18)


def test_tables_stand_only_where_there_are_such_rows(tmp_path: Path) -> None:
    group = group_of(tmp_path, [*free_rows(), *replay_rows(), *profile_rows()])
    assert [block.title for block in mode_blocks(group)] == ["Replay", "A step, ms"]
    (plain,) = compare([read(write(tmp_path / "free.jsonl", free_rows()))])
    assert list(mode_blocks(plain)) == [] and list(mode_cautions(plain)) == []


def cautions_of(tmp_path: Path, rows: Sequence[Row]) -> str:
    return "\n".join(mode_cautions(group_of(tmp_path, [*free_rows(), *rows])))


@pytest.mark.parametrize(("verify", "told"), [(0.81, False), (0.79, False), (0.83, True), (0.77, True)])
def test_phases_that_miss_a_step_by_more_than_two_percent_are_told(tmp_path: Path, verify: float, told: bool) -> None:
    rows = [profiled(drafted_row(name), 1.0, draft=0.1, verify=verify, commit=0.05, host=0.05) for name in PROMPTS]
    found = cautions_of(tmp_path, rows)
    assert (f"come to {0.2 + verify:.1%} of their time" in found) == told == bool(found)


def test_a_method_that_tells_of_no_phases_has_a_column_for_that_and_a_caution(tmp_path: Path) -> None:
    rows = [profiled(drafted_row(name), 1.0, **dict.fromkeys(SPLIT, 0.0), unsplit=1.0) for name in PROMPTS]
    assert "two_model[draft_tokens=3] has a step of its own that tells of no phases" in cautions_of(tmp_path, rows)
    group = group_of(tmp_path, [*free_rows(), *rows])
    titles = [column.title for block in mode_blocks(group) for column in block.columns]
    assert "not split" in titles and value(group, STEP_UNSPLIT) == pytest.approx(1.0)


def test_a_profile_that_slows_its_steps_is_told(tmp_path: Path) -> None:
    slow = [profiled(drafted_row(name), 1.2) for name in PROMPTS]
    assert "profiling made decoding at least 20% slower" in cautions_of(tmp_path, slow)
    assert cautions_of(tmp_path, [profiled(drafted_row(name), 1.05) for name in PROMPTS]) == ""


def test_what_failed_or_was_disturbed_in_a_mode_is_counted(tmp_path: Path) -> None:
    rows = replay_rows()
    rows[1] = replace(failed(rows[1], "ValueError: no"), mode="replay")
    rows[3] = replace(rows[3], invalid="the GPU throttled")
    found = cautions_of(tmp_path, rows)
    assert f"{DRAFTED}: 2 of 2 generations in replay mode failed or were disturbed" in found
    assert "first koala/p0: ValueError: no." in found
