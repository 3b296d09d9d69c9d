"""The frame has one line per generation, and pairs each with its counterpart by the baseline."""

from dataclasses import replace
from itertools import product

import pytest
from compared import file_of, frame_of, pairs_of, to_frame
from fixtures_records import BASELINE, DRAFTED, EXITING, RUN, baseline_row, batch, drafted_row, exiting_row, failed

from benchctl.analysis.frame.build import pair
from benchctl.analysis.stats.estimates import measured_apart
from benchctl.records.schema import Mode, Row


def test_a_line_sums_the_steps_of_its_generation() -> None:
    frame = frame_of([drafted_row(steps=4, step_s=0.5, ttft_s=2.0)])
    line = frame.iloc[0]
    assert (line["ttft_s"], line["decode_s"], line["whole_s"]) == (2.0, 2.0, 4.0)
    assert (line["new_tokens"], line["committed_tokens"], line["steps"]) == (9, 8, 4)
    assert (line["drafted_tokens"], line["accepted_tokens"]) == (12, 4)
    assert (line["depth_layers"], line["full_layers"]) == (9 * 12, 9 * 12)


def test_warm_up_is_left_out() -> None:
    rows = [replace(baseline_row(), repeat=-1), baseline_row()]
    assert list(frame_of(rows)["repeat"]) == [0]


def test_a_failed_generation_has_no_times() -> None:
    frame = frame_of([failed(drafted_row(), "out of memory")])
    assert frame[["ttft_s", "decode_s", "whole_s", "whole_decode_s"]].isna().all(axis=None)
    assert frame.iloc[0]["error"] == "out of memory"


def test_a_method_is_paired_with_the_baseline_of_its_own_process() -> None:
    slow = file_of([baseline_row(step_s=9.0), drafted_row()])
    frame = to_frame([slow, file_of([baseline_row(step_s=1.0), exiting_row()])])
    assert list(pair(frame, DRAFTED, BASELINE)["decode_s_baseline"]) == [72.0]
    assert list(pair(frame, EXITING, BASELINE)["decode_s_baseline"]) == [8.0]


def test_turns_and_repeats_are_paired_with_their_own() -> None:
    baselines = [replace(baseline_row(step_s=1.0 + turn + 10 * repeat), turn=turn, repeat=repeat)
                 for turn in range(2) for repeat in range(2)]  # fmt: skip
    answers = [replace(drafted_row(), turn=row.turn, repeat=row.repeat) for row in reversed(baselines)]
    pairs = pairs_of(baselines + answers)
    assert list(pairs["decode_s_baseline"] / 8) == list(1.0 + pairs["turn"] + 10 * pairs["repeat"])


def test_a_run_without_rows_is_an_empty_frame() -> None:
    frame = frame_of([])
    assert len(frame) == 0
    assert len(pair(frame, DRAFTED, BASELINE)) == 0


def test_only_rows_of_the_mode_asked_for_are_in_the_frame_and_by_default_the_free_ones() -> None:
    forced = [replace(row, mode="replay", step_s=(9.0,) * len(row.step_s)) for row in (baseline_row(), drafted_row())]
    rows = [baseline_row(), drafted_row(), *forced]
    assert list(frame_of(rows)["decode_s"]) == [8.0, 4.0]
    assert list(frame_of(rows, mode="replay")["decode_s"]) == [72.0, 36.0]
    assert list(pairs_of(rows)["decode_s_baseline"]) == [8.0]
    assert list(pairs_of(rows, mode="replay")["decode_s_baseline"]) == [72.0]


@pytest.mark.parametrize("label", [BASELINE, DRAFTED])
@pytest.mark.parametrize("flaw", ["failed", "invalid"])
def test_a_prompt_that_either_failed_on_or_was_disturbed_is_not_paired_but_keeps_its_line(
    label: str, flaw: str
) -> None:
    rows = [baseline_row("p0"), drafted_row("p0"), baseline_row("p1"), drafted_row("p1")]
    rows = [flawed(row, flaw) if (row.label, row.prompt_id) == (label, "p1") else row for row in rows]
    assert len(frame_of(rows)) == 4
    assert list(pairs_of(rows)["prompt_id"]) == ["p0"]


def flawed(row: Row, flaw: str) -> Row:
    return failed(row) if flaw == "failed" else replace(row, invalid="throttled")


def with_marked(place: int, rows: list[Row]) -> list[Row]:
    return [replace(row, invalid="throttled") if index == place else row for index, row in enumerate(rows)]


@pytest.mark.parametrize("mode", ["free", "replay"])
def test_one_generation_out_of_bounds_takes_its_whole_round_along(mode: Mode) -> None:
    """All labels, all turns and all modes of a prompt's repeat, and nothing else: neither the other repeat, nor the
    same one of another prompt or session."""
    made = [baseline_row(), drafted_row(), exiting_row()]
    places = product(("p0", "p1"), range(2), range(2), range(2))
    rows = [
        replace(row, prompt_id=prompt, repeat=repeat, session=session, turn=turn, mode=each)
        for prompt, repeat, session, turn in places
        for row in made
        for each in ("free", "replay")
    ]
    first = replace(exiting_row(), prompt_id="p0", mode="replay", turn=1)
    rows = with_marked(rows.index(first), rows)
    frame = frame_of(rows, mode=mode)
    found = pair(frame, DRAFTED, BASELINE)[["prompt_id", "repeat", "session", "turn"]]
    left = {place for place in product(("p0", "p1"), range(2), range(2), range(2)) if place[:3] != ("p0", 0, 0)}
    assert set(found.itertuples(index=False, name=None)) == left and len(found) == len(left)


def test_the_round_of_a_batch_is_that_of_all_its_prompts() -> None:
    rows = [*batch(baseline_row("p0"), baseline_row("p1")), *batch(drafted_row("p0"), drafted_row("p1"))]
    for place in range(len(rows)):
        frame = frame_of(with_marked(place, rows), replace(RUN, batch_size=2))
        assert pair(frame, DRAFTED, BASELINE).empty


def test_arms_that_never_shared_a_session_are_paired_across_sessions() -> None:
    """Two sessions of the baseline, one of the method: its answer stands beside either of the baseline's."""
    baselines = [replace(baseline_row(step_s=pace), session=session) for session, pace in ((0, 1.0), (1, 3.0))]
    rows = [*baselines, replace(drafted_row(), session=2), replace(drafted_row("p1"), session=2)]
    pairs = pairs_of(rows)
    assert list(pairs["prompt_id"]) == ["p0", "p0"]
    assert list(pairs["decode_s_baseline"]) == [8.0, 24.0]
    assert (list(pairs["session"]), list(pairs["session_baseline"])) == ([2, 2], [0, 1])
    assert measured_apart(pairs)


@pytest.mark.parametrize("flaw", ["failed", "invalid"])
def test_a_session_whose_baseline_came_to_nothing_is_not_made_up_for_by_another(flaw: str) -> None:
    """A speed-up over a baseline of another day would look like any other."""
    rows = [flawed(baseline_row(), flaw), drafted_row(), replace(baseline_row(step_s=9.0), session=1)]
    frame = frame_of(rows)
    assert pair(frame, DRAFTED, BASELINE).empty
    together = pair(frame, BASELINE, BASELINE)
    assert list(together["session_baseline"]) == [1] and not measured_apart(together)
