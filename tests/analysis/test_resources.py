"""Energy, memory and the bandwidth bound from rows whose numbers were chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compared import figures_of, group_of, value_of
from fixtures_records import BASELINE, DRAFTED, RUN, baseline_row, batch, drafted_row, failed, usual_rows
from warned import warned

from benchctl.analysis.frame.rows import least_read_s
from benchctl.analysis.metrics.resources import BANDWIDTH_SHARE, ENERGY, PEAK_MEMORY, RESERVED_MEMORY
from benchctl.analysis.tables.columns import metric_blocks
from benchctl.analysis.tables.text import render
from benchctl.records.schema import Row, Run

SIZED = replace(RUN, step_bytes=100, cache_token_bytes=10, machine={**RUN.machine, "memory_bandwidth_mb_s": 1.0})


def test_the_bound_is_the_bytes_of_every_step_over_the_bandwidth() -> None:
    """A prompt of 3 tokens, 2 steps over 4 and 5 tokens: 2 * 100 + 9 * 10 bytes at 1 MB/s."""
    row = replace(baseline_row(tokens=3), prompt_tokens=3)
    assert least_read_s(row, SIZED) == pytest.approx(290e-6)


@pytest.mark.parametrize(
    ("row", "run"),
    [
        (drafted_row(), SIZED),
        (drafted_row(), replace(SIZED, baseline=DRAFTED)),  # set against another method
        (batch(baseline_row(), baseline_row("p1"))[0], SIZED),
        (failed(baseline_row()), SIZED),
        (baseline_row(), replace(SIZED, step_bytes=0)),
        (baseline_row(), replace(SIZED, machine=RUN.machine)),
        (baseline_row(), replace(SIZED, machine={"memory_bandwidth_mb_s": ""})),
        (baseline_row(), replace(SIZED, machine={"memory_bandwidth_mb_s": 0.0})),
    ],
)
def test_there_is_no_bound_for_other_methods_batches_failures_and_headers_that_do_not_tell(row: Row, run: Run) -> None:
    assert least_read_s(row, run) is None


def test_the_baselines_share_of_the_bound_is_a_ratio_of_sums() -> None:
    """Steps of 1 ms: 8 of 5 prompt tokens take 8 * 100 + (40 + 36) * 10 bytes, 1.56 ms of 8."""
    rows = [baseline_row("p0", step_s=1e-3), drafted_row("p0"), baseline_row("p1", step_s=1e-3), drafted_row("p1")]
    group = group_of(rows, SIZED)
    assert value_of(group, BANDWIDTH_SHARE, BASELINE) == pytest.approx(1.56 / 8)
    assert value_of(group, BANDWIDTH_SHARE, DRAFTED) is None


def test_a_share_above_the_bound_is_inside_its_interval() -> None:
    """Steps of 0.1 ms, of weights that stay in a cache: 1.95 times the bound. The interval once ended at 1."""
    rows = [baseline_row(f"p{number}", step_s=1e-4 * (1 + number / 50)) for number in range(6)]
    estimate = figures_of(group_of(rows, SIZED), BASELINE).estimate(BANDWIDTH_SHARE)
    assert estimate.value is not None and estimate.interval is not None
    assert 1 < estimate.interval.low < estimate.value < estimate.interval.high


def test_energy_per_token_is_over_the_rows_that_tell_it() -> None:
    rows = [replace(baseline_row("p0"), energy_j=18.0), baseline_row("p1")]
    rows += [replace(drafted_row("p0"), energy_j=4.5), drafted_row("p1")]
    group = group_of(rows)
    assert value_of(group, ENERGY, BASELINE) == pytest.approx(2.0)
    assert value_of(group, ENERGY, DRAFTED) == pytest.approx(0.5)


def test_the_energy_of_a_batch_counts_once() -> None:
    rows = [replace(row, energy_j=36.0) for row in batch(baseline_row("p0"), baseline_row("p1"))]
    assert value_of(group_of(rows, replace(RUN, batch_size=2)), ENERGY, BASELINE) == pytest.approx(2.0)


def test_memory_is_the_mean_of_the_peaks() -> None:
    rows = [replace(baseline_row(f"p{i}"), peak_memory_bytes=10 + i, reserved_memory_bytes=30 + i) for i in (0, 2)]
    group = group_of(rows)
    assert value_of(group, PEAK_MEMORY, BASELINE) == 11.0
    assert value_of(group, RESERVED_MEMORY, BASELINE) == 31.0


def test_a_group_whose_rows_tell_nothing_has_none_of_these_figures() -> None:
    (baseline, *_) = group_of([baseline_row("p0"), baseline_row("p1")]).pooled.methods
    assert {estimate.metric for estimate in baseline.estimates}.isdisjoint({ENERGY, BANDWIDTH_SHARE, PEAK_MEMORY})


def test_the_table_has_the_columns_that_this_machine_can_tell() -> None:
    def titles(rows: list[Row], run: Run) -> list[str]:
        group = group_of(rows, run)
        return [column.title for block in metric_blocks(group) if block.title == "Machine" for column in block.columns]

    rows = [replace(row, peak_memory_bytes=9) for row in (baseline_row("p0"), baseline_row("p1"))]
    assert titles(rows, RUN) == []
    assert titles(rows, SIZED) == ["memory bandwidth reached"]
    rows = [replace(row, reserved_memory_bytes=9, energy_j=1.0) for row in rows]
    assert titles(rows, replace(SIZED, device="cuda")) == [
        "memory bandwidth reached",
        "J per token",
        "peak memory MB",
        "held by torch MB",
    ]


def test_a_run_that_was_disturbed_throughout_has_no_speeds_but_says_why() -> None:
    group = group_of(replace(row, invalid="the GPU slowed down: power brake") for row in usual_rows(12))
    (values,) = warned(group, "rounds_disturbed")
    assert (values["disturbed"], values["rounds"]) == (12, 12)
    assert "x [" not in render([group], "md")
    assert render([group], "table") and render([group], "csv")
