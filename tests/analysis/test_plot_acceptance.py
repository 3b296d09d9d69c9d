"""The picture of acceptance: which methods are in it, and what stands for their shares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixtures_records import DRAFTED, EXITING, RUN, baseline_row, exiting_row, method, stepped_row, write
from pages import groups_of
from pictures import LOOKS, assert_picture_readable, figure_of, texts, write_picture
from refusals import refused

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.plots.acceptance import accepted, drafting
from benchctl.analysis.plots.style import SIZES
from benchctl.records.schema import Row, Run
from benchctl.records.writer import read

OTHER = "medusa[heads=2,nodes=4]"


def chance_steps(seed: int, deepest: int) -> list[list[tuple[int, int]]]:
    """Of 12 answers; drafts of 0 to `deepest` tokens."""
    chance = np.random.default_rng(seed)
    return [
        [(int(drafted), int(chance.integers(0, drafted + 1))) for drafted in chance.integers(0, deepest + 1, 12)]
        for _ in range(12)
    ]


ANSWERS = {DRAFTED: chance_steps(0, 5), OTHER: chance_steps(1, 2)}


def run_of(*labels: str) -> Run:
    methods = (RUN.methods[0], *(method(label) for label in labels), RUN.methods[2])
    target = replace(RUN.target, vocabulary=4096)
    return replace(RUN, methods=methods, target=target, max_new_tokens=512)


def rows_of(answers: dict[str, list[list[tuple[int, int]]]]) -> list[Row]:
    rows = [
        replace(stepped_row(steps, f"p{place}"), label=label)
        for label in answers
        for place, steps in enumerate(answers[label])
    ]
    tokens = {row.prompt_id: len(row.token_ids) for row in rows}
    return [*(baseline_row(prompt_id, tokens=count) for prompt_id, count in tokens.items()), *rows]


def usual_groups(tmp_path: Path) -> tuple[Group, ...]:
    return groups_of(tmp_path, [*rows_of(ANSWERS), exiting_row()], run_of(*ANSWERS))


def test_only_the_methods_asked_for_are_drawn_and_those_that_draft_nothing_are_refused(tmp_path: Path) -> None:
    groups, out = usual_groups(tmp_path), tmp_path / "plot.svg"
    assert drafting(groups) == (DRAFTED, OTHER)
    unasked = write_picture("acceptance", groups, out, SIZES["screen"])
    assert not any(EXITING in note for note in unasked)
    notes = write_picture("acceptance", groups, out, SIZES["screen"], methods=["medusa", "early_exit"])
    assert any(note.startswith(f"{EXITING}: ") for note in notes)
    assert "medusa" in texts(out) and "two_model" not in texts(out)
    with refused("no_drafts", "early_exit", "two_model", "medusa"):
        write_picture("acceptance", groups, out, SIZES["screen"], methods=["early_exit"])
    nothing = groups_of(tmp_path, [baseline_row(), exiting_row()], RUN, "nothing")
    with refused("no_drafts", "nothing.jsonl"):
        write_picture("acceptance", nothing, out, SIZES["screen"])


def test_more_methods_than_can_be_told_apart_are_refused(tmp_path: Path) -> None:
    answers = {f"two_model[draft_tokens={number}]": chance_steps(number, 3) for number in range(1, 10)}
    groups = groups_of(tmp_path, rows_of(answers), run_of(*answers))
    with refused("too_many_methods", "9 methods", "8", "1 more", "--method"):
        write_picture("acceptance", groups, tmp_path / "plot.png", SIZES["screen"])
    write_picture("acceptance", groups, tmp_path / "plot.png", SIZES["screen"], methods=list(answers)[:2])


def test_a_group_without_drafts_is_left_out_and_named(tmp_path: Path) -> None:
    with_drafts = usual_groups(tmp_path)[0].files[0]
    without = read(write(tmp_path / "plain.jsonl", [baseline_row(), exiting_row()], replace(RUN, threads=2)))
    notes = write_picture("acceptance", compare([with_drafts, without]), tmp_path / "plot.png", SIZES["screen"])
    assert any("plain.jsonl" in note for note in notes)


def test_each_method_has_axes_with_its_colour_bars_for_steps_and_a_line_for_positions(tmp_path: Path) -> None:
    (group,) = usual_groups(tmp_path)
    figure = figure_of("acceptance", [group], SIZES["screen"])
    for axes, label in zip(figure.axes, ANSWERS, strict=True):
        (found,) = accepted(1, group, [label])
        deepest = max(drafted for answer in ANSWERS[label] for drafted, _ in answer)
        assert len(found.conditional) + 1 == len(found.histogram) == deepest + 1
        heights = [patch.get_height() for patch in axes.patches]  # type: ignore[attr-defined]
        assert heights == pytest.approx([estimate.value for estimate in found.histogram])
        expected = [[at, each.value] for at, each in enumerate(found.conditional, 1) if each.interval]
        own = [line for line in axes.lines if line.get_color() == SIZES["screen"].colour_of(label)]
        assert any(np.asarray(line.get_xydata()).tolist() == expected for line in own)


def test_a_position_that_too_few_drafts_reach_for_an_interval_is_left_out(tmp_path: Path) -> None:
    """Hollow marks at 100% drew the eye, and rested on a draft or two."""
    groups = groups_of(tmp_path, rows_of({OTHER: ANSWERS[OTHER][:1]}), run_of(OTHER))
    (found,) = accepted(1, groups[0], [OTHER])
    assert all(each.interval is None for each in (*found.conditional, *found.histogram))
    (axes,) = figure_of("acceptance", groups, SIZES["screen"]).axes
    assert not any(np.isfinite(np.asarray(line.get_ydata(), dtype=float)).any() for line in axes.lines)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "ending"), LOOKS)
def test_every_text_can_be_read(size: str, ending: str, tmp_path: Path) -> None:
    long = "early_exit[mode=draft,head=trained,threshold=0.5,exits=4,draft_tokens=2]"
    answers = ANSWERS | {long: chance_steps(3, 2)}
    groups = groups_of(tmp_path, rows_of(answers), run_of(*answers))
    assert_picture_readable("acceptance", groups, SIZES[size], tmp_path / f"plot{ending}")
