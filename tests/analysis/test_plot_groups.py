"""What pictures of several groups share: titles, names, legends, and numbers of three digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compared import group_of
from fixtures_records import KOALA, MT_BENCH, RUN, usual_rows, write
from matplotlib.text import Text
from refusals import refused

from benchctl.analysis.comparison import by_suite, compare
from benchctl.analysis.plots.axes import new_panels
from benchctl.analysis.plots.style import SIZES, settings, shown_labels, three_digits
from benchctl.records.writer import read

LABEL = "two_model[draft_tokens=6,confidence=0.5]"


def test_a_picture_leaves_out_options_in_which_no_labels_differ() -> None:
    assert shown_labels([LABEL], []) == {LABEL: "two_model"}
    other = "two_model[draft_tokens=6,confidence=0.2]"
    assert shown_labels([LABEL, other], []) == {LABEL: "two_model confidence=0.5", other: "two_model confidence=0.2"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1234"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.01"), (-12.34, "−12.3"),
     (-0.001, "0.00"), (0.0, "0.00")],
)  # fmt: skip
def test_numbers_have_three_digits_and_none_is_less_than_nothing_by_rounding(value: float, text: str) -> None:
    assert three_digits(value) == text


@pytest.mark.parametrize(
    ("changes", "shown"),
    [({}, {"cpu", "64"}), ({"temperature": 0.7}, {"cpu", "64", "0.7"}), ({"imported": "EAGLE"}, {"EAGLE"})],
)
def test_settings_are_those_that_are_known_of_a_run(changes: dict[str, Any], shown: set[str]) -> None:
    """Above pictures of imported files stood a device and threads, which such files do not contain."""
    text = settings(group_of(usual_rows(1), replace(RUN, **changes)))
    assert {fact for fact in ("cpu", "64", "0.7", "EAGLE") if fact in text} == shown


def test_a_column_has_room_for_one_panel(tmp_path: Path) -> None:
    """Of two, the words next to the axes ran into the titles, and out of the picture."""
    runs = [replace(RUN, threads=threads) for threads in (1, 2)]
    files = [read(write(tmp_path / f"{run.threads}.jsonl", usual_rows(1), run)) for run in runs]
    groups = compare(files)
    new_panels(groups, ["a", "b"], SIZES["screen"], [1, 1])
    new_panels(groups[:1], ["a"], SIZES["column"], [1])
    with refused("too_many_panels", "2", "1"):
        new_panels(groups, ["a", "b"], SIZES["column"], [1, 1])


def test_settings_that_panels_share_stand_above_the_first_only(tmp_path: Path) -> None:
    rows = [replace(row, suite=suite) for suite in ("koala", "mt-bench") for row in usual_rows(1)]
    groups = by_suite(compare([read(write(tmp_path / "a.jsonl", rows, replace(RUN, suites=(KOALA, MT_BENCH))))]))
    figure, panels = new_panels(groups, ["first", "second"], SIZES["screen"], [1, 2], columns=2)
    words = [" ".join(text.get_text().split()) for text in figure.findobj(Text)]
    assert [word for word in words if word] == [
        "first",
        f"{settings(groups[0])}; koala: 1 prompt",
        "second",
        "mt-bench: 1 prompt",
    ]
    assert panels[0].bbox.height == pytest.approx(panels[1].bbox.height)  # a row is as high as its highest panel
