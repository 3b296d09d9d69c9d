"""Figures of replay and profile rows: worked out by hand from made-up rows, and kept out of the headline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compared import figures_of, file_of, group_of, value_of
from fixtures_records import BASELINE, DRAFTED, RUN, baseline_row, drafted_row, failed
from warned import warned

from benchctl.analysis.comparison import Group, compare, over
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
from benchctl.analysis.tables.columns import metric_blocks
from benchctl.records.schema import Row

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


def grouped(*rows: Row) -> Group:
    return group_of(rows, IN_MODES)


def test_the_speed_up_on_the_same_text_stands_beside_that_of_free_running() -> None:
    group = grouped(*free_rows(), *replay_rows())
    metrics = (SPEEDUP, DECODE_SPEEDUP, REPLAY_SPEEDUP, REPLAY_DECODE_SPEEDUP, REPLAY_BLOCK_EFFICIENCY)
    assert [value_of(group, metric) for metric in metrics] == pytest.approx([10 / 6, 8 / 4, 18 / 4, 16 / 2, 2])
    assert value_of(group, REPLAY_SPEEDUP, BASELINE) == 1.0
    # Agreement is of the tokens at which the method's choice was seen.
    assert (value_of(group, REPLAY_AGREEMENT, BASELINE), value_of(group, REPLAY_AGREEMENT)) == (1.0, 0.25)


def test_the_phases_of_a_step_are_means_over_steps_and_profiling_is_set_against_free_steps() -> None:
    group = grouped(*free_rows(), *profile_rows())
    phases = (STEP_DRAFT, STEP_VERIFY, STEP_COMMIT, STEP_HOST)
    assert [value_of(group, metric) for metric in phases] == pytest.approx([0.25, 0.5, 0.15, 0.1])
    assert [value_of(group, metric, BASELINE) for metric in (*phases, STEP)] == pytest.approx(
        [0.3125, 0.625, 0.1875, 0.125, 1.25]
    )
    assert value_of(group, PROFILE_OVERHEAD, BASELINE) == pytest.approx(0.25)
    assert value_of(group, PROFILE_OVERHEAD) == pytest.approx(0.0)
    assert value_of(group, STEP_UNSPLIT) == 0.0


def test_steps_count_alike_however_long_their_answers() -> None:
    """Eight steps of 1 second and two of 6: 2 seconds a step, not the 3.5 of the mean answer."""
    rows = [baseline_row("p0"), baseline_row("p1", tokens=3)]
    found = [profiled(rows[0], 1.0), profiled(rows[1], 6.0)]
    assert value_of(grouped(*rows, *found), STEP, BASELINE) == pytest.approx(2.0)


def test_a_profile_without_its_free_counterpart_is_left_out() -> None:
    rows = free_rows()
    rows[2] = failed(rows[2])
    found = profile_rows()
    found[2] = profiled(baseline_row("p1"), 99.0)
    assert value_of(grouped(*rows, *found), STEP, BASELINE) == pytest.approx(1.25)


def test_the_headline_is_the_same_with_the_other_modes_and_without() -> None:
    alone = figures_of(grouped(*free_rows()), DRAFTED)
    beside = figures_of(grouped(*free_rows(), *replay_rows(), *profile_rows()), DRAFTED)
    same = {estimate.metric: estimate for estimate in beside.estimates}
    assert all(same[estimate.metric] == estimate for estimate in alone.estimates if estimate.value is not None)
    assert (beside.prompts, beside.generations, beside.fidelity) == (alone.prompts, alone.generations, alone.fidelity)


def test_another_method_can_take_the_baseline_s_place_in_replay_too() -> None:
    third = [replace(row, label="early_exit") for row in (*free_rows(), *replay_rows()) if row.label == BASELINE]
    (group,) = compare([over(file_of([*free_rows(), *replay_rows(), *third], IN_MODES), DRAFTED)])
    assert value_of(group, REPLAY_SPEEDUP, "early_exit") == pytest.approx(4 / 18)


def titles(group: Group) -> dict[str, list[str]]:
    return {block.title: [column.title for column in block.columns] for block in metric_blocks(group)}


def test_tables_are_shown_only_where_there_are_such_rows() -> None:
    tables = titles(grouped(*free_rows(), *replay_rows(), *profile_rows()))
    assert {"Replay", "A step, ms"} <= tables.keys() and "not split" not in tables["A step, ms"]
    assert "on own text" in tables["Replay"]
    assert {"Replay", "A step, ms"}.isdisjoint(titles(group_of(free_rows())))


def test_a_method_without_phases_has_a_column_for_that_time() -> None:
    rows = [profiled(drafted_row(name), 1.0, **dict.fromkeys(SPLIT, 0.0), unsplit=1.0) for name in PROMPTS]
    group = grouped(*free_rows(), *rows)
    assert "not split" in titles(group)["A step, ms"] and value_of(group, STEP_UNSPLIT) == pytest.approx(1.0)


def test_speed_ups_in_replay_of_a_refused_method_are_marked() -> None:
    """Only those of free running were."""
    lossy = [replace(row, verdict="lossy", first_divergence=1) for row in free_rows() if row.label == DRAFTED]
    group = grouped(*(row for row in free_rows() if row.label == BASELINE), *lossy, *replay_rows())
    columns = next(block.columns for block in metric_blocks(group) if block.title == "Replay")
    cells = {column.title: column.cell(figures_of(group)) for column in columns}
    assert (cells["speed-up [95%]"], cells["decode only"]) == ("refused 4.50x", "refused 8.00x")


def test_failures_in_a_mode_are_counted() -> None:
    rows = replay_rows()
    rows[1] = replace(failed(rows[1], "ValueError: no"), mode="replay")
    (values,) = warned(grouped(*free_rows(), *rows), "generations_failed")
    assert (values["label"], values["mode"], values["generations"]) == (DRAFTED, "replay", 1)
    assert values["prompt"] == "koala/p0"
