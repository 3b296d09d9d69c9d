"""What the Pareto plot draws is what the rows say, worked out here by plain sums; its words never cover anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from fixtures_pictures import (
    FOURTEEN,
    Drawn,
    contrast,
    head_to_head,
    markers_of,
    points,
)
from fixtures_records import (
    BASELINE,
    DRAFTED,
    EXITING,
    KOALA,
    MT_BENCH,
    RUN,
    baseline_row,
    drafted_row,
    exiting_row,
    write,
)
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pictures import assert_readable, words_of

from benchctl.analysis.comparison import Group, by_suite, compare
from benchctl.analysis.metrics.faithfulness import TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.plots.fidelity_axis import FidelityAxis
from benchctl.analysis.plots.pareto import Curve, Panel, draw_panels, draw_pareto, panel_of
from benchctl.analysis.plots.style import SIZES, THEMES, Style, style_of
from benchctl.records.schema import Row, Run
from benchctl.records.writer import read

STYLES = [style_of(theme, size) for theme, size in product(THEMES, SIZES)]
SLOW = "lookahead"  # exact, and slower than the baseline
STEPS = {DRAFTED: 1.2, SLOW: 1.5}  # seconds; the baseline's take 1, early_exit's 0.5


def groups_of(rows: Sequence[Row], run: Run) -> tuple[Group, ...]:
    with TemporaryDirectory() as folder:
        return compare([read(write(Path(folder) / "run.jsonl", rows, run))])


@cache
def usual() -> tuple[Group, ...]:
    """Four methods on six prompts, whose steps vary from prompt to prompt."""
    rows: list[Row] = []
    for number in range(6):
        prompt, pace = f"p{number}", 1 + 0.05 * number
        slow = replace(baseline_row(prompt, step_s=STEPS[SLOW] * pace**2), label=SLOW, verdict="identical")
        leaving = replace(exiting_row(prompt, step_s=0.5 + 0.02 * number), first_divergence=2 + number % 3)
        drafted = drafted_row(prompt, step_s=STEPS[DRAFTED] * (1 + 0.02 * (number % 2)))
        rows += [baseline_row(prompt, step_s=pace), drafted, slow, leaving]
    exact = replace(RUN.methods[1], label=SLOW, name=SLOW)
    return groups_of(rows, replace(RUN, methods=(*RUN.methods, exact)))


@cache
def many(suites: int = 1) -> tuple[Group, ...]:
    run, rows = head_to_head((KOALA, MT_BENCH)[:suites])
    return groups_of(rows, run)


def speed(label: str) -> float:
    """Sums over the six prompts; the first token takes 2 s, everywhere."""
    paces = [1 + 0.05 * number for number in range(6)]
    taken = {
        BASELINE: sum(2 + 8 * pace for pace in paces),
        SLOW: sum(2 + 8 * STEPS[SLOW] * pace**2 for pace in paces),
        DRAFTED: sum(2 + 4 * STEPS[DRAFTED] * (1 + 0.02 * (number % 2)) for number in range(6)),
        EXITING: sum(2 + 8 * (0.5 + 0.02 * number) for number in range(6)),
    }
    return taken[BASELINE] / taken[label]


def panel(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def hollow(drawn: Drawn, style: Style) -> bool:
    return drawn.filling.upper() == style.ground.upper()


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_every_method_stands_at_its_speed_and_agreement_with_its_intervals(style: Style) -> None:
    drawn = points(panel(draw_pareto(usual(), FidelityAxis(), style)))
    assert {label: at.x for label, at in drawn.items()} == pytest.approx(
        {label: speed(label) for label in (BASELINE, DRAFTED, SLOW, EXITING)}
    )
    assert drawn[EXITING].y == pytest.approx((2 + 3 + 4) / 27)  # of 9 tokens each, 2, 3 and 4 agree
    for found in usual()[0].pooled.methods:
        fast, kept = found.estimate(SPEEDUP).interval, found.estimate(TOKEN_AGREEMENT).interval
        if found.label != BASELINE:
            assert fast and drawn[found.label].across == pytest.approx((fast.low, fast.high))
        if found.label == EXITING:
            assert kept and drawn[found.label].along == pytest.approx((kept.low, kept.high))
    assert drawn[BASELINE].across is None and drawn[DRAFTED].along is None


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_lossless_methods_stand_in_a_band_of_their_own_the_fastest_lowest(style: Style) -> None:
    axes = panel(draw_pareto(usual(), FidelityAxis(), style))
    drawn = points(axes)
    assert drawn[SLOW].y > drawn[BASELINE].y > drawn[DRAFTED].y > 1 > drawn[EXITING].y
    assert all(tick <= 1 + 1e-9 for tick in axes.get_yticks())  # the band has no scale
    words = [text.get_text() for text in words_of(axes.figure)]  # type: ignore[arg-type]
    assert "✓ lossless" in words
    named = [word for word in words if word.startswith("✓ ") and word != "✓ lossless"]
    assert {word.split(" ")[1].split("\n")[0] for word in named if "x" in word} == {"two_model", "lookahead"}


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_who_is_beaten_is_faded_and_hollow_and_looks_differ_without_colour(style: Style) -> None:
    """early_exit is the fastest, two_model the fastest that agrees in all; these beat the others."""
    assert speed(EXITING) > speed(DRAFTED) > 1 > speed(SLOW)
    drawn = points(panel(draw_pareto(usual(), FidelityAxis(), style)))
    assert {label for label, at in drawn.items() if hollow(at, style)} == {BASELINE, SLOW}
    assert {label: at.marker for label, at in drawn.items()} == {BASELINE: "s", DRAFTED: "o", SLOW: "o", EXITING: "^"}
    assert contrast(drawn[DRAFTED].colour, style.ground) > 1.5 * contrast(drawn[SLOW].colour, style.ground)


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_the_frontier_goes_from_the_best_of_the_band_down_to_the_fastest(style: Style) -> None:
    axes = panel(draw_pareto(usual(), FidelityAxis(), style))
    drawn = points(axes)
    best, fastest, floor = drawn[DRAFTED], drawn[EXITING], axes.get_ylim()[0]
    assert has_line(axes, [(best.x, best.y), (best.x, best.y), (fastest.x, fastest.y), (fastest.x, floor)], "steps-pre")


def has_line(axes: Axes, corners: Sequence[tuple[float, float]], drawstyle: str = "default") -> bool:
    """Steps go down, or up, to the next point's height first."""
    paths = [np.asarray(line.get_xydata()) for line in axes.lines if line.get_drawstyle() == drawstyle]
    return any(path.shape == (len(corners), 2) and np.allclose(path, corners) for path in paths)


def test_without_a_lossless_leader_the_frontier_starts_at_the_left_edge() -> None:
    found = panel_of(usual()[0], FidelityAxis())
    dots = tuple(replace(dot, banded=False) for dot in found.dots)
    axes = panel(draw_panels([replace(found, dots=dots)], FidelityAxis(), style_of()))
    best, fastest, (left, _), (floor, _) = speed(DRAFTED), speed(EXITING), axes.get_xlim(), axes.get_ylim()
    assert has_line(axes, [(left, 1), (best, 1), (fastest, 1 / 3), (fastest, floor)], "steps-pre")


def check_words(figure: Figure, style: Style) -> None:
    """No word covers another, a marker or the frame, and none leaves the picture."""
    assert_readable(figure, style)
    for axes in figure.axes:
        frame = axes.get_window_extent().padded(0.1)
        for box in (text.get_window_extent() for text in axes.texts):
            assert box.count_overlaps(markers_of(axes, style.marker * style.dpi / 72)) == 0
            assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_words_of_a_few_methods_cover_nothing(style: Style) -> None:
    figure = draw_pareto(usual(), FidelityAxis(), style)
    check_words(figure, style)
    assert all(contrast(to_hex(text.get_color()), style.ground) >= 4.5 for text in words_of(figure))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_words_of_fourteen_methods_cover_nothing(size: str) -> None:
    """Of 14 labels around one line at 1, most covered each other, or bars."""
    figure = draw_pareto(many(), FidelityAxis(), style_of("light", size))
    check_words(figure, style_of("light", size))
    assert set(points(panel(figure))) == {BASELINE, *FOURTEEN}
    high = figure.get_figheight()
    assert high == 7.5 if size == "slide" else high < 9.5  # it fits on a page of a paper


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_a_panel_for_each_suite_shares_one_key(size: str) -> None:
    style, groups = style_of("dark", size), by_suite(many(2))
    figure = draw_pareto(groups, FidelityAxis(), style)
    check_words(figure, style)
    assert len(figure.axes) == 2 and len(figure.legends) == 1
    for axes, group in zip(figure.axes, groups, strict=True):
        expected = {one.label: one.estimate(SPEEDUP).value for one in group.pooled.methods}
        assert {label: at.x for label, at in points(axes).items()} == pytest.approx(expected)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert "koala: 3 prompts" in titles and "mt-bench: 3 prompts" in titles


@pytest.mark.slow
def test_numbers_beside_dots_are_those_of_the_key() -> None:
    """Fourteen long labels do not fit into one column of a paper."""
    axes = panel(figure := draw_pareto(many(), FidelityAxis(), style_of("light", "column")))
    told = dict(entry.get_text().replace("\n    ", " ").split("  ", 1) for entry in figure.legends[0].get_texts()[4:])
    assert len(told) == len(FOURTEEN)
    drawn = points(axes)
    for text in axes.texts:
        if text.get_text().isdigit():
            label = next(
                label for label in FOURTEEN if words_in(label) in told[text.get_text()].removeprefix("✓ ") + " "
            )
            assert f"{drawn[label].x:.2f}x" in told[text.get_text()]


def words_in(label: str) -> str:
    return label.replace("[", " ").replace(",", " ").replace("]", "") + " "


def test_a_curve_has_a_line_and_a_marker_of_its_own() -> None:
    found = panel_of(many()[0], FidelityAxis())
    lossy = tuple(FOURTEEN[-4:])
    figure = draw_panels([replace(found, curves=(Curve(lossy, "swept, by threshold"),))], FidelityAxis(), style_of())
    drawn = points(panel(figure))
    assert has_line(panel(figure), [(drawn[label].x, drawn[label].y) for label in lossy])
    assert {drawn[label].marker for label in lossy}.isdisjoint({"o", "s", "^", "X"})
    assert "swept, by threshold" in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.slow
def test_what_cannot_be_named_is_counted() -> None:
    """Sixty methods outside the band: the key counts those without a number, and the best one has one."""
    one = next(dot for dot in panel_of(usual()[0], FidelityAxis()).dots if dot.label == DRAFTED)
    dots = [
        replace(
            one,
            label=f"two_model[draft_tokens={n}]",
            x=n / 60,
            y=n / 60,
            x_ends=(n / 60, n / 60),
            y_ends=(n / 60, n / 60),
            best=n == 60,
            banded=False,
        )
        for n in range(1, 61)
    ]
    figure = draw_panels([Panel(usual()[0], tuple(dots), ())], FidelityAxis(), style_of())
    words = [text.get_text().replace("\n    ", " ") for text in figure.legends[0].get_texts()]
    numbers = [text.get_text() for text in panel(figure).texts if text.get_text().isdigit()]
    assert numbers and f"frontier (faded: beaten by another; {60 - len(numbers)} not named)" in words
    assert words[-1] == f"{len(numbers)}  ✓ two_model draft_tokens=60  1.00x"
    assert len(points(panel(figure))) == 60


@pytest.mark.slow
def test_panels_name_their_own_leaders_where_there_is_no_room_for_more() -> None:
    """Five panels of fourteen methods on a slide."""
    found = panel_of(many()[0], FidelityAxis())
    shifted = [
        replace(
            found,
            dots=tuple(replace(dot, best=dot.banded and number == leader) for number, dot in enumerate(found.dots)),
        )
        for leader in (1, 2, 3, 4, 5)
    ]
    figure = draw_panels(shifted, FidelityAxis(), style_of("dark", "slide"))
    key = [text.get_text().split("  ")[0] for text in figure.legends[0].get_texts()]
    for axes in figure.axes[: len(shifted)]:
        numbers = [text.get_text() for text in axes.texts if text.get_text().isdigit()]
        assert len(numbers) >= 1 and set(numbers) <= set(key)
