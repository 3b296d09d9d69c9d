"""What pictures of several groups share: names in lines, and numbers of three digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_records import RUN, usual_rows, write
from refusals import refused

from benchctl.analysis.comparison import compare
from benchctl.analysis.plots.axes import legend_columns, new_panels
from benchctl.analysis.plots.style import broken_label, shown_labels, style_of, text_inches, three_digits
from benchctl.records.writer import read

LABEL = "two_model[draft_tokens=6,confidence=0.5]"


def test_a_label_is_broken_after_its_bracket_and_commas_and_no_line_is_wider_than_it_may_be() -> None:
    width = text_inches("confidence=0.5]", 8)[0] + 0.01
    assert broken_label(LABEL, 8, width) == "two_model[\ndraft_tokens=6,\nconfidence=0.5]"
    assert broken_label(LABEL, 8, 10) == LABEL
    assert broken_label("early_exit mode=draft", 8, 0.1) == "early_exit\nmode=draft"


def test_a_slide_leaves_out_options_that_tell_no_labels_apart() -> None:
    assert shown_labels([LABEL], style_of(), []) == {LABEL: LABEL}
    assert shown_labels([LABEL], style_of(size="slide"), []) == {LABEL: "two_model"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1234"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.01"), (-12.34, "−12.3"),
     (-0.001, "0.00"), (0.0, "0.00")],
)  # fmt: skip
def test_numbers_have_three_digits_and_none_is_less_than_nothing_by_rounding(value: float, text: str) -> None:
    assert three_digits(value) == text


def test_a_slide_has_room_for_one_panel(tmp_path: Path) -> None:
    """Of two, the words beside the axes ran into the titles, and out of the picture."""
    runs = [replace(RUN, threads=threads) for threads in (1, 2)]
    files = [read(write(tmp_path / f"{run.threads}.jsonl", usual_rows(1), run)) for run in runs]
    groups = compare(files)
    new_panels(groups, style_of(), [1, 1])
    new_panels(groups[:1], style_of(size="slide"), [1])
    with refused("too_many_panels", "2", "1"):
        new_panels(groups, style_of(size="slide"), [1, 1])


def test_a_legend_has_as_many_columns_as_fit_and_rows_that_are_alike() -> None:
    assert legend_columns(["a", "b", "c"], style_of()) == 3
    assert legend_columns(["a" * 60, "b" * 60, "c"], style_of(size="column")) == 1
    four = ["x" * 22] * 4
    widest = text_inches(four[0], 8)[0] + 6 * 8 / 72
    assert int(0.96 * style_of().width / widest) == 3 and legend_columns(four, style_of()) == 2
