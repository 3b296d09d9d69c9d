"""What pictures of several groups share: names in lines, and numbers of three digits."""

from __future__ import annotations

import pytest

from benchctl.analysis.plot_groups import broken, legend_columns, names, three_digits
from benchctl.analysis.plot_style import Style
from benchctl.analysis.plots import text_inches

LABEL = "two_model[draft_tokens=6,confidence=0.5]"


def test_a_label_is_broken_after_its_bracket_and_commas_and_no_line_is_wider_than_it_may_be() -> None:
    width = text_inches("confidence=0.5]", 8)[0] + 0.01
    assert broken(LABEL, 8, width) == "two_model[\ndraft_tokens=6,\nconfidence=0.5]"
    assert broken(LABEL, 8, 10) == LABEL
    assert broken("early_exit mode=draft", 8, 0.1) == "early_exit\nmode=draft"


def test_a_slide_leaves_out_options_that_tell_no_labels_apart() -> None:
    assert names([LABEL], Style()) == {LABEL: LABEL}
    assert names([LABEL], Style(size="slide")) == {LABEL: "two_model"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1234"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.01"), (-12.34, "−12.3"),
     (-0.001, "0.00"), (0.0, "0.00")],
)  # fmt: skip
def test_numbers_have_three_digits_and_none_is_less_than_nothing_by_rounding(value: float, text: str) -> None:
    assert three_digits(value) == text


def test_a_legend_has_as_many_columns_as_fit_and_rows_that_are_alike() -> None:
    assert legend_columns(["a", "b", "c"], Style()) == 3
    assert legend_columns(["a" * 60, "b" * 60, "c"], Style(size="column")) == 1
    four = ["x" * 22] * 4
    widest = text_inches(four[0], 8)[0] + 6 * 8 / 72
    assert int(0.96 * Style().width / widest) == 3 and legend_columns(four, Style()) == 2
