"""The picture of times: its percentiles are those of the rows, and few generations have no 95th percentile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compared import file_of
from fixtures_records import BASELINE, DRAFTED, EXITING, RUN, baseline_row, failed, method, usual_rows, write
from pages import groups_of
from pictures import LOOKS, assert_picture_readable, texts, write_picture
from refusals import refused

from benchctl.analysis.comparison import compare
from benchctl.analysis.metrics.speed import TPOT, TTFT
from benchctl.analysis.plots.latency import latencies
from benchctl.analysis.plots.style import SIZES
from benchctl.records.schema import Row, Totals
from benchctl.records.writer import read

LABELS = (BASELINE, DRAFTED, EXITING)


def varied(prompts: int = 30) -> list[Row]:
    """Each step and prefill of its own length."""
    chance = np.random.default_rng(0)
    return [
        replace(
            row, ttft_s=float(chance.uniform(1, 3)), step_s=tuple(map(float, chance.lognormal(0, 0.4, len(row.step_s))))
        )
        for row in usual_rows(prompts)
    ]


@pytest.mark.parametrize("label", LABELS)
def test_each_generation_has_its_time_per_token_and_until_the_first(tmp_path: Path, label: str) -> None:
    rows = varied()
    (group,) = groups_of(tmp_path, rows)
    mine = [row for row in rows if row.label == label]
    (tpot,), (ttft,) = latencies(group, TPOT, [label]), latencies(group, TTFT, [label])
    assert sorted(tpot.seconds) == pytest.approx(sorted(sum(row.step_s) / sum(row.committed) for row in mine))
    assert sorted(ttft.seconds) == pytest.approx(sorted(row.ttft_s or 0.0 for row in mine))


def test_disturbed_rounds_failures_and_what_the_baseline_did_not_answer_are_left_out(tmp_path: Path) -> None:
    rows = []
    for row in usual_rows(8):
        slow = replace(row, step_s=tuple(99.0 for _ in row.step_s))
        if row.prompt_id == "p1":  # disturbed as the baseline was measured, so for all
            rows.append(replace(slow, invalid="throttled" if row.label == BASELINE else ""))
        elif row.prompt_id == "p2":
            rows.append(failed(row) if row.label == BASELINE else slow)
        else:
            rows.append(row)
    (group,) = groups_of(tmp_path, rows)
    for latency in latencies(group, TPOT, LABELS):
        assert len(latency.seconds) == 6
        assert latency.seconds.max() < 2


def test_answers_of_files_that_share_no_session_are_counted_once() -> None:
    """Each was counted once for every answer of the baseline to that prompt."""
    parts = {"one.jsonl": BASELINE, "two.jsonl": BASELINE, "three.jsonl": DRAFTED}
    imported = replace(RUN, imported="EAGLE")
    files = [file_of([row for row in varied(6) if row.label == label], imported, name) for name, label in parts.items()]
    (group,) = compare(files)
    assert [len(found.seconds) for found in latencies(group, TPOT, (BASELINE, DRAFTED))] == [12, 6]


def test_an_answer_of_one_token_has_no_time_per_token(tmp_path: Path) -> None:
    (group,) = groups_of(tmp_path, [*usual_rows(3), baseline_row("p9", tokens=1)])
    (tpot,), (ttft,) = latencies(group, TPOT, [BASELINE]), latencies(group, TTFT, [BASELINE])
    assert (len(tpot.seconds), len(ttft.seconds)) == (3, 4)


def test_the_numbers_beside_the_boxes_are_the_median_and_the_95th_percentile(tmp_path: Path) -> None:
    """By numpy, of the rows: in ms, three digits."""
    rows, out = varied(), tmp_path / "plot.svg"
    assert write_picture("latency", groups_of(tmp_path, rows), out, SIZES["screen"]) == ()
    found = texts(out)
    for label in LABELS:
        times = [1e3 * sum(row.step_s) / sum(row.committed) for row in rows if row.label == label]
        assert f"{np.median(times):.0f} · {np.quantile(times, 0.95):.0f}" in found
    assert "Latency of 30 answers for each method" in found and "logarithmic" not in found


def test_times_of_other_magnitudes_stand_on_a_logarithmic_axis_that_says_so(tmp_path: Path) -> None:
    rows = [
        replace(row, step_s=tuple(30 * seconds for seconds in row.step_s)) if row.label == EXITING else row
        for row in varied()
    ]
    out = tmp_path / "plot.svg"
    write_picture("latency", groups_of(tmp_path, rows), out, SIZES["screen"])
    assert texts(out).splitlines().count("logarithmic") == 1  # TTFT is not


def test_few_generations_have_no_95th_percentile(tmp_path: Path) -> None:
    """Of 19 answers it is hardly more than the slowest one."""
    out = tmp_path / "plot.svg"
    (note,) = write_picture("latency", groups_of(tmp_path, varied(19)), out, SIZES["screen"])
    assert note.startswith(f"{', '.join(LABELS)}: ") and "--repeats" in note
    assert texts(out).count(" · –") == 6
    assert write_picture("latency", groups_of(tmp_path, varied(20), name="more"), out, SIZES["screen"]) == ()
    assert texts(out).count(" · –") == 0


def test_only_the_methods_asked_for_are_drawn(tmp_path: Path) -> None:
    out = tmp_path / "plot.svg"
    groups = groups_of(tmp_path, varied())
    write_picture("latency", groups, out, SIZES["screen"], methods=["two_model", BASELINE])
    assert "two_model" in texts(out) and EXITING not in texts(out)
    with refused("unknown_method", "medusa", "autoregressive two_model"):
        write_picture("latency", groups, out, SIZES["screen"], methods=["medusa"])


@pytest.mark.slow
def test_too_many_methods_or_groups_are_refused_with_what_to_do(tmp_path: Path) -> None:
    labels = [f"two_model[draft_tokens={number}]" for number in range(1, 17)]
    rows = [replace(row, label=label) for row in usual_rows(2) if row.label == DRAFTED for label in labels]
    run = replace(RUN, methods=(RUN.methods[0], *map(method, labels)))
    groups = groups_of(tmp_path, [*(row for row in usual_rows(2) if row.label == BASELINE), *rows], run)
    with refused("too_many_methods", "17 methods", "16", "--method", "autoregressive"):
        write_picture("latency", groups, tmp_path / "plot.png", SIZES["screen"])
    apart = [read(write(tmp_path / f"{seed}.jsonl", usual_rows(2), replace(RUN, threads=seed))) for seed in range(1, 8)]
    with refused("too_many_panels", "7 panels", "6"):
        write_picture("latency", compare(apart), tmp_path / "plot.png", SIZES["screen"])


def test_answers_without_the_baselines_are_refused_for_that_reason(tmp_path: Path) -> None:
    """It said that no generation has times, of files in which all of them do."""
    groups = groups_of(tmp_path, [row for row in varied(2) if row.label != BASELINE])
    with refused("no_baseline_answers", "run.jsonl"):
        write_picture("latency", groups, tmp_path / "plot.png", SIZES["screen"])


def test_files_that_tell_no_times_are_refused(tmp_path: Path) -> None:
    rows = [
        Row(suite="koala", prompt_id="p0", turn=0, label=label, repeat=0, session=0, order=0, prompt_tokens=0,
            totals=Totals(new_tokens=9, steps=9))
        for label in (BASELINE, DRAFTED)
    ]  # fmt: skip
    with refused("no_times"):
        write_picture(
            "latency", groups_of(tmp_path, rows, replace(RUN, imported="x")), tmp_path / "plot.png", SIZES["screen"]
        )


@pytest.mark.parametrize(("size", "ending"), LOOKS)
def test_every_text_can_be_read(size: str, ending: str, tmp_path: Path) -> None:
    groups = groups_of(tmp_path, varied(10))
    assert_picture_readable("latency", groups, SIZES[size], tmp_path / f"plot{ending}")
