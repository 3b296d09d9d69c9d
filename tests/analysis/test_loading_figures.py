"""From the counters of rows to the figures of expert loading: only where there are any, labelled where throttled."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from compared import group_of, value_of
from fixtures_records import BASELINE, RUN, baseline_row, failed, method, usual_rows, write

from benchctl.analysis.metrics.experts import (
    EVICTED_UNUSED,
    LATE,
    LOADED,
    LOADS,
    PRECISION,
    RECALL,
    RESIDENCY,
    STALL,
    THROTTLE,
)
from benchctl.analysis.tables.text import Format, View, render
from benchctl.records.schema import Row, to_line
from benchctl.records.writer import read

LOADING_METRICS = (STALL, LOADS, LOADED, EVICTED_UNUSED, RESIDENCY, LATE, RECALL, PRECISION, THROTTLE)
OFFLOAD = "expert_offload"
THROTTLED = "expert_offload[bandwidth_mb_s=500.0]"
COUNTERS = {
    "needed": 128.0,
    "ready": 96.0,
    "late": 8.0,
    "loads": 40.0,
    "evicted_unused": 4.0,
    "predicted": 60.0,
    "predicted_needed": 45.0,
    "foreseeable": 90.0,
    "stall_s": 0.016,
    "prefill_loads": 30.0,
    "prefill_stall_s": 1.0,
    "expert_bytes": 1e6,
}
WITH_OFFLOAD = replace(RUN, methods=(method(BASELINE), method(OFFLOAD), method(THROTTLED)))


def _row(label: str = OFFLOAD, prompt_id: str = "p0", **more: float) -> Row:
    """An answer of nine tokens, eight of them decoded, with COUNTERS."""
    return replace(baseline_row(prompt_id), label=label, verdict="identical", counters={**COUNTERS, **more})


def _rows() -> list[Row]:
    return [baseline_row(), _row(), _row(THROTTLED, bandwidth_mb_s=500.0)]


def test_a_row_keeps_its_counters(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", _rows(), WITH_OFFLOAD)
    assert [row.counters for row in read(path).rows] == [{}, COUNTERS, {**COUNTERS, "bandwidth_mb_s": 500.0}]


@pytest.mark.parametrize("counters", [{"loads": -1.0}, {"loads": float("nan")}, {"loads": "many"}])
def test_counters_that_cannot_be_are_refused(counters: Mapping[str, float]) -> None:
    with pytest.raises(ValueError, match="counters"):
        to_line(replace(_row(), counters=counters))


def test_a_failed_generation_has_no_counters() -> None:
    with pytest.raises(ValueError, match="failed generation"):
        replace(failed(_row()), counters=COUNTERS)
    assert b'"counters":{}' in to_line(failed(_row()))


def test_figures_are_ratios_of_sums_over_the_decoded_tokens() -> None:
    rows = [*_rows(), baseline_row("p1"), _row(prompt_id="p1", loads=0.0, stall_s=0.0)]
    group = group_of(rows, WITH_OFFLOAD)
    values = {metric: value_of(group, metric, OFFLOAD) for metric in LOADING_METRICS}
    assert values == pytest.approx(
        {
            STALL: 0.016 / 16,
            LOADS: 40 / 16,
            LOADED: 40e6 / 16,
            EVICTED_UNUSED: 8 / 16,
            RESIDENCY: 0.75,
            LATE: 16 / 256,
            RECALL: 0.5,
            PRECISION: 0.75,
            THROTTLE: None,
        }
    )
    assert {value_of(group, metric, BASELINE) for metric in LOADING_METRICS} == {None}


def test_a_stall_that_nobody_timed_is_no_zero() -> None:
    untimed = replace(_row(), counters={name: value for name, value in COUNTERS.items() if name != "stall_s"})
    group = group_of([baseline_row(), untimed], WITH_OFFLOAD)
    assert (value_of(group, STALL, OFFLOAD), value_of(group, LOADS, OFFLOAD)) == (None, 5.0)


def test_the_table_shows_loading_and_says_what_was_throttled() -> None:
    text = render([group_of(_rows(), WITH_OFFLOAD)], "md", View(full=True))
    assert "| stall ms | experts loaded | MB loaded | evicted unused | loading throttled to |" in text
    assert "| 2.00 | 5.00 | 5.00 | 0.50 | – |" in text and "| 2.00 | 5.00 | 5.00 | 0.50 | 500 MB/s |" in text
    assert text.count("| 0.750 | 0.062 | 0.500 | 0.750 |") == 2


def test_without_counters_there_is_not_a_word_about_loading() -> None:
    group = group_of(usual_rows())
    formats: tuple[Format, ...] = ("table", "md", "csv", "json")
    for format in formats:
        text = render([group], format, View(full=True))
        assert not any(word in text for word in ("stall", "throttled", "experts", "residency"))


def test_a_group_with_loading_and_one_without_share_a_csv() -> None:
    groups = [group_of(usual_rows()), group_of(_rows(), replace(WITH_OFFLOAD, threads=2))]
    lines = list(csv.DictReader(io.StringIO(render(groups, "csv"))))
    assert {line["group"]: line["loads_per_token"] for line in lines} == {"1": "", "2": "5.0"}
