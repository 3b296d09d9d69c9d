"""The frontier holds the points that no other beats."""

from benchctl.analysis.plots.frontier import Point, frontier


def test_a_point_worse_on_both_axes_is_beaten() -> None:
    assert frontier([Point(2, 1), Point(1, 0.5)]) == (True, False)


def test_points_that_trade_one_axis_for_the_other_all_stay() -> None:
    assert frontier([Point(1, 1), Point(2, 0.9), Point(3, 0.1)]) == (True, True, True)


def test_on_one_line_only_the_fastest_stays() -> None:
    assert frontier([Point(1, 1), Point(1.4, 1), Point(1.2, 1)]) == (False, True, False)


def test_equal_points_do_not_beat_each_other() -> None:
    assert frontier([Point(2, 1), Point(2, 1), Point(1, 1)]) == (True, True, False)


def test_one_point_and_none() -> None:
    assert frontier([Point(0.5, 0)]) == (True,)
    assert frontier([]) == ()
