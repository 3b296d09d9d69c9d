"""Which points no other beats, and which labels are one curve."""

from dataclasses import replace

import pytest
from fixtures_records import method

from benchctl.analysis.plots.pareto import Curve, curves, frontier
from benchctl.records.schema import MethodInfo


@pytest.mark.parametrize(
    ("points", "unbeaten"),
    [
        ([(2, 1), (1, 0.5)], (True, False)),  # beaten in both
        ([(1, 1), (2, 0.9), (3, 0.1)], (True, True, True)),
        ([(1, 1), (1.4, 1), (1.2, 1)], (False, True, False)),  # equal fidelity: the fastest
        ([(2, 1), (2, 1), (1, 1)], (True, True, False)),  # equal points do not beat each other
        ([(0.5, 0)], (True,)),
        ([], ()),
    ],
)
def test_the_frontier_is_of_unbeaten_points(points: list[tuple[float, float]], unbeaten: tuple[bool, ...]) -> None:
    assert frontier(points, ["lossy"] * len(points)) == unbeaten


def lossy(label: str, **options: str | float | bool) -> MethodInfo:
    return replace(method(label, "lossy"), options=options)


def exits(label: str, threshold: float) -> MethodInfo:
    return lossy(label, mode="exit", threshold=threshold, draft_tokens=4)


SWEPT = (exits("deed", 0.9), exits("deed[threshold=0.3]", 0.3), exits("deed[threshold=0.95]", 0.95))


def test_a_label_that_leaves_the_option_out_stands_where_its_default_puts_it() -> None:
    """m2r2[mode=dynamic], of threshold 0.9, was drawn before 0.3, so its curve went back through the whole plot."""
    labels = ("deed[threshold=0.3]", "deed", "deed[threshold=0.95]")
    assert curves(SWEPT) == (Curve(labels, "threshold 0.3 to 0.95"),)


def test_a_curve_over_depths_is_one_too() -> None:
    """Sweeps of skip_decode had no curve: only thresholds made one."""
    depths = [
        lossy(f"skip_decode[min_layers={n},fall_tokens=32]", min_layers=n, fall_tokens=32, adapters="lora")
        for n in (8, 12, 10)
    ]
    (curve,) = curves(depths)
    assert curve.title == "min_layers 8 to 12"
    assert [label[23:25].strip(",") for label in curve.labels] == ["8", "10", "12"]


def test_labels_that_differ_in_something_else_are_no_curve() -> None:
    other = lossy("deed[mode=draft]", mode="draft", threshold=0.5, draft_tokens=4)
    assert curves((*SWEPT[:2], other)) == ()
    assert curves((*SWEPT[:2], lossy("early_exit", mode="exit", threshold=0.5, draft_tokens=4))) == ()


def test_a_grid_is_curves_over_thresholds_with_each_label_on_one() -> None:
    grid = [
        lossy(f"early_exit[threshold={threshold},min_exit={exit}]", threshold=threshold, min_exit=exit)
        for exit in (2, 4, 8)
        for threshold in (0.1, 0.2, 0.3)
    ]
    found = curves(grid)
    assert [curve.title for curve in found] == [f"min_exit={exit} threshold 0.1 to 0.3" for exit in (2, 4, 8)]
    assert sorted(label for curve in found for label in curve.labels) == sorted(method.label for method in grid)


def test_equal_labels_and_options_of_yes_and_no_are_no_numbers() -> None:
    flags = [lossy(f"lookahead[bonus={on}]", bonus=on) for on in (True, False, True)]
    assert curves(flags) == () and curves(()) == ()
