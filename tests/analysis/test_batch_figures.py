"""Figures of batches: their time counts once, whatever the number of answers, and is set against batches only."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from compared import figures_of, file_of, frame_of, group_of, value_of
from fixtures_records import BASELINE, EXITING, RUN, baseline_row, batch, exiting_row, failed, method
from warned import warned

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.gate import Conditions, check
from benchctl.analysis.metrics.drafting import DEPTH_FRACTION
from benchctl.analysis.metrics.speed import DECODE_SPEEDUP, SPEEDUP, TOKENS_PER_S, TPOT, TTFT
from benchctl.analysis.tables.text import Format, render
from benchctl.records.schema import Row, Run

BATCHED = replace(RUN, batch_size=2, methods=(method(BASELINE), method(EXITING, "lossy")))


def pair_of_batches(number: int = 0, step_s: float = 0.5) -> list[Row]:
    """Answers of 5 and of 9 tokens, decoded together: the baseline takes 2 s + 8 s, the method 2 s + 4 s."""
    one, other = f"p{2 * number}", f"p{2 * number + 1}"
    return [
        *batch(baseline_row(one, tokens=5), baseline_row(other, tokens=9)),
        *batch(exiting_row(one, tokens=5, step_s=step_s), exiting_row(other, tokens=9, step_s=step_s)),
    ]


def batched(rows: list[Row]) -> Group:
    return group_of(rows, BATCHED)


def test_every_answer_has_its_share_of_the_time_of_its_batch() -> None:
    frame = frame_of([*pair_of_batches(), *batch(baseline_row("p2", tokens=3))], BATCHED)
    assert list(frame["whole_s"]) == [5.0, 5.0, 3.0, 3.0, 4.0]
    assert list(frame["whole_decode_s"]) == [4.0, 4.0, 2.0, 2.0, 2.0]
    assert list(frame["decode_s"]) == [4.0, 8.0, 2.0, 4.0, 2.0]
    assert list(frame["ttft_s"]) == [2.0] * 5
    assert list(frame["batch"]) == ["p0"] * 4 + ["p2"]


def test_speed_up_and_tokens_per_second_are_the_batches_and_tpot_is_the_reader_s() -> None:
    """The sums of what each reader waited, 16 s and 10 s, would say 1.6 times; the machine was 10 s and 6 s at it."""
    group = batched(pair_of_batches())
    metrics = (SPEEDUP, DECODE_SPEEDUP, TOKENS_PER_S, TPOT, TTFT, DEPTH_FRACTION)
    expected = [10 / 6, 8 / 4, 14 / 6, 0.5, 2.0, (2 * 12 + 12 * 6) / (14 * 12)]
    assert [value_of(group, metric, EXITING) for metric in metrics] == pytest.approx(expected)
    assert (figures_of(group, EXITING).prompts, figures_of(group, EXITING).generations) == (2, 2)
    assert [value_of(group, metric, BASELINE) for metric in (SPEEDUP, TOKENS_PER_S)] == pytest.approx([1, 1.4])


def test_the_same_prompts_of_other_turns_and_repeats_are_other_batches() -> None:
    later = [replace(row, turn=1) for row in pair_of_batches(step_s=2.0)]
    again = [replace(row, repeat=1) for row in pair_of_batches(step_s=1.0)]
    frame = frame_of([*pair_of_batches(), *later, *again], BATCHED)
    own = frame[frame["label"] == EXITING]
    assert list(own["whole_s"]) == [3.0, 3.0, 9.0, 9.0, 5.0, 5.0]


def test_a_batch_that_failed_leaves_its_pair_out() -> None:
    broken = [failed(row) if row.label == EXITING else row for row in pair_of_batches()]
    found = figures_of(batched([*broken, *pair_of_batches(1)]), EXITING)
    assert found.prompts == 2
    assert found.estimate(SPEEDUP).value == pytest.approx(10 / 6)


def test_intervals_draw_batches_and_not_their_prompts() -> None:
    """Two prompts of one batch are one measurement of time: four batches of two are too few for an interval."""
    paces = (0.3, 0.5, 0.8, 0.4, 0.6)
    batches = [pair_of_batches(number, pace) for number, pace in enumerate(paces)]
    few = [row for rows in batches[:4] for row in rows]
    assert figures_of(batched(few), EXITING).estimate(SPEEDUP).interval is None
    estimate = figures_of(batched([row for rows in batches for row in rows]), EXITING).estimate(SPEEDUP)
    value = 5 * 10 / sum(2 + 8 * pace for pace in paces)
    assert estimate.value == pytest.approx(value)
    assert estimate.interval is not None and estimate.interval.low < value < estimate.interval.high


@pytest.mark.parametrize("format", ["table", "md"])
def test_tables_say_that_they_are_of_batches(format: Format) -> None:
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", render([batched(pair_of_batches())], format)).split())
    assert "batches of up to 2" in text and "1.67x" in text
    plain = render([group_of(replace(row, batch=()) for row in pair_of_batches())], "md")
    assert "batch" not in plain


def test_few_batches_are_told_however_many_prompts_they_hold() -> None:
    few = [row for number in range(9) for row in pair_of_batches(number)]
    assert warned(batched(few), "few_prompts") == [{"count": 9, "unit": "batches", "limit": 20, "publish": 200}]
    assert warned(batched([*few, *pair_of_batches(9)]), "few_prompts") == []


def test_of_ten_batches_with_few_answered_prompts_the_prompts_are_counted() -> None:
    """Only batches counted, so ten batches gave no warning although all but one of them had failed."""
    rows = [row for number in range(10) for row in pair_of_batches(number)]
    left = [failed(row) if row.label == EXITING and row.batch != rows[0].batch else row for row in rows]
    assert warned(batched(left), "few_prompts") == [{"count": 2, "unit": "prompts", "limit": 20, "publish": 200}]


def _gated(rows: list[Row], run: Run) -> tuple[float, float | None]:
    """The early exit's speed-up in the gate, against the same rows in another file, and in `compare`."""
    (now,), (then,) = (compare([file_of(rows, run, name)]) for name in ("now.jsonl", "then.jsonl"))
    label = next(label for label in check(now, Conditions(), then).labels if label.label == EXITING)
    (found,) = [change.quotient for change in label.changes if change.figure == SPEEDUP.label]
    assert found is not None
    return found.now, value_of(now, SPEEDUP, EXITING)


def test_the_gate_has_the_speed_up_of_compare_for_uneven_batches_and_turns() -> None:
    """Each batch counted by its mean answer, and each prompt by its mean turn."""
    batches = [row for number in range(5) for row in pair_of_batches(number)]
    last = [*batch(baseline_row("p99", tokens=3)), *batch(exiting_row("p99", tokens=3, step_s=2.0))]
    gate, shown = _gated([*batches, *last], BATCHED)
    assert gate == pytest.approx(shown)
    alone = [replace(row, batch=()) for row in batches]
    turns = [replace(row, turn=1, ttft_s=8.0) for row in alone if row.label == EXITING and row.prompt_id < "p5"]
    turns += [replace(row, turn=1) for row in alone if row.label == BASELINE and row.prompt_id < "p5"]
    gate, shown = _gated([*alone, *turns], replace(BATCHED, batch_size=1))
    assert gate == pytest.approx(shown)
