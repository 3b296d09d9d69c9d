"""What a report draws lies where the figures say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_records import BASELINE, DRAFTED, EXITING, RUN, baseline_row, drafted_row, failed, usual_rows
from pages import TWO_SUITES, groups_of, two_suites, usual_groups

from benchctl.analysis.comparison import POOLED
from benchctl.analysis.html.plot import BOTTOM, HEIGHT, LEFT, WIDTH, plot, short_labels
from benchctl.analysis.html.views import accepted, spreads
from benchctl.analysis.metrics.faithfulness import TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP


def test_places_are_in_proportion_to_the_figures() -> None:
    """From two ticks of each axis follows where every mark must lie."""
    (group,) = usual_groups()
    found = plot(group)
    assert found is not None
    (panel,) = found.panels
    (x0, x1), (y0, y1) = panel.x_ticks[:2], panel.y_ticks[-2:]

    def x(value: float) -> float:
        at0, at1 = float(x0.text.rstrip("x")), float(x1.text.rstrip("x"))
        return x0.at + (value - at0) / (at1 - at0) * (x1.at - x0.at)

    def y(value: float) -> float:
        return y0.at + (value - float(y0.text)) / (float(y1.text) - float(y0.text)) * (y1.at - y0.at)

    for mark in panel.marks:
        method = next(each for each in group.pooled.methods if each.label == mark.words[0])
        speedup = method.estimate(SPEEDUP)
        assert speedup.value is not None and speedup.interval is not None
        agreement = method.estimate(TOKEN_AGREEMENT)
        kept = 1.0 if method.label == BASELINE else agreement.value
        assert mark.x == pytest.approx(x(speedup.value), abs=0.05)
        assert (mark.low, mark.high) == pytest.approx((x(speedup.interval.low), x(speedup.interval.high)), abs=0.05)
        assert mark.y == pytest.approx(y(kept or 0.0), abs=0.05)
        if method.label == EXITING:
            assert agreement.interval is not None and agreement.interval.low < agreement.interval.high
            ends = y(agreement.interval.low), y(agreement.interval.high)
            assert (mark.bottom, mark.top) == pytest.approx(ends, abs=0.05)
            low, high = f"{agreement.interval.low:.3f}", f"{agreement.interval.high:.3f}"
            assert mark.words[2] == f"token agreement {kept:.3f} [{low}, {high}]"
        else:
            assert mark.bottom == mark.top == mark.y
        assert LEFT < mark.x < WIDTH and 0 < mark.y < HEIGHT - BOTTOM
    assert panel.no_gain == pytest.approx(x(1.0), abs=0.05)
    assert y1.at < y0.at, "what agrees more stands higher"


def test_marks_tell_lossless_from_lossy_and_beaten_from_best() -> None:
    found = plot(usual_groups()[0])
    assert found is not None
    (panel,) = found.panels
    assert {mark.words[0]: (mark.look, mark.best) for mark in panel.marks} == {
        BASELINE: ("baseline", False),
        DRAFTED: ("lossless", True),
        EXITING: ("lossy", False),
    }
    assert panel.missing == ()
    corners = [tuple(map(float, corner.split(","))) for corner in panel.frontier.split()]
    best = [(mark.x, mark.y) for mark in panel.marks if mark.best]
    assert set(best) <= set(corners) and corners[0][0] == LEFT and corners[-1][1] == HEIGHT - BOTTOM


def test_each_suite_has_a_panel(tmp_path: Path) -> None:
    (group,) = groups_of(tmp_path, two_suites(), TWO_SUITES)
    found = plot(group)
    assert found is not None
    assert [panel.suite for panel in found.panels] == [POOLED, "koala", "mt-bench"]
    assert found.panels[1].marks == found.panels[2].marks, "both suites hold the same rows"


def test_a_method_without_figures_on_a_suite_is_named_beside_its_panel(tmp_path: Path) -> None:
    rows = [row for row in two_suites() if row.label != EXITING or row.suite == "koala"]
    rows += [failed(row) for row in two_suites() if row.label == EXITING and row.suite == "mt-bench"]
    (group,) = groups_of(tmp_path, rows, TWO_SUITES)
    found = plot(group)
    assert found is not None
    assert [panel.missing for panel in found.panels] == [(), (), (EXITING,)]


def test_sampled_runs_have_no_plot(tmp_path: Path) -> None:
    rows = [replace(row, verdict=None if row.label == BASELINE else "sampled", first_divergence=None, margin=None,
                    noise=None) for row in usual_rows()]  # fmt: skip
    (group,) = groups_of(tmp_path, rows, replace(RUN, temperature=0.5))
    assert plot(group) is None


def test_short_labels_keep_what_tells_them_apart() -> None:
    assert short_labels(["m[a=1,b=2]", "m[a=1,b=3]", "n[a=1]"]) == {
        "m[a=1,b=2]": "m b=2",
        "m[a=1,b=3]": "m b=3",
        "n[a=1]": "n",
    }


def test_acceptance_is_that_of_the_steps(tmp_path: Path) -> None:
    """Each step drafts 3 and accepts 1: the first position always, the second never."""
    rows = [row for number in range(12) for row in (baseline_row(f"p{number}"), drafted_row(f"p{number}"))]
    (group,) = groups_of(tmp_path, rows)
    (found,) = accepted(1, group)
    assert [bar.value for bar in found.positions] == [1.0, 0.0]
    assert [bar.dot for bar in found.positions] == [1.0, 0.0]
    assert [bar.value for bar in found.histogram] == [0.0, 1.0, 0.0]
    assert (found.rate, found.mean) == ("0.333 [0.333, 0.333]", "1.00")


def test_spreads_are_quantiles_of_the_time_per_token(tmp_path: Path) -> None:
    """Answers of 1 to 21 ms a token: 5% of 20 steps from the least is 2 ms, the middle one 11 ms."""
    rows = [
        row
        for number in range(21)
        for row in (
            baseline_row(f"p{number}", step_s=(number + 1) / 1e3),
            drafted_row(f"p{number}", step_s=2 * (number + 1) / 1e3),
        )
    ]
    (group,) = groups_of(tmp_path, rows)
    found = {each.label: each for each in spreads(group)}
    assert found[BASELINE].quantiles_ms == pytest.approx((2, 6, 11, 16, 20))
    assert found[BASELINE].places == pytest.approx((10, 30, 55, 80, 100))
    assert found[DRAFTED].quantiles_ms == pytest.approx((2, 6, 11, 16, 20)), "two tokens a step of twice the time"
    assert (found[BASELINE].tpot, found[BASELINE].generations) == ("11.00", 21)
