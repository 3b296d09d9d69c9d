"""What the Pareto plot draws is what the rows say, worked out here by plain sums; its names never cover anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from compared import file_of
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
)
from fixtures_scores import both_orders
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from pictures import assert_readable, draw, words_of

from benchctl.analysis.comparison import Group, by_suite, compare
from benchctl.analysis.metrics.faithfulness import EXACT_MATCH, TARGET_AGREEMENT, TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.plots.fidelity_axis import FidelityAxis, default_axis
from benchctl.analysis.plots.pareto import items_of, panel_of
from benchctl.analysis.plots.style import SIZES, Style
from benchctl.records.schema import Row, Run

SCREEN = SIZES["screen"]
STYLES = list(SIZES.values())
SLOW = "lookahead"  # exact, and slower than the baseline
STEPS = {DRAFTED: 1.2, SLOW: 1.5}  # seconds; the baseline's take 1, early_exit's 0.5


def groups_of(rows: Sequence[Row], run: Run) -> tuple[Group, ...]:
    return compare([file_of(rows, run)])


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


def all_points(figure: Figure) -> dict[str, Drawn]:
    return {label: at for axes in figure.axes for label, at in points(axes).items()}


def pareto(groups: Sequence[Group], style: Style = SCREEN, **asked: str) -> Figure:
    return draw("pareto", groups, style, **asked).figure


def names(figure: Figure) -> list[str]:
    """Those next to dots."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def key(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.findobj(Legend) for text in legend.get_texts()]


@pytest.mark.parametrize("style", STYLES, ids=SIZES)
def test_every_method_stands_at_its_speed_and_agreement_with_its_intervals(style: Style) -> None:
    drawn = all_points(pareto(usual(), style))
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


def test_fidelity_is_target_agreement_where_it_was_measured() -> None:
    """Token agreement ends at the first difference, so the first picture showed all lossy methods near 0."""
    assert default_axis(usual()) == FidelityAxis(TOKEN_AGREEMENT, instead=TARGET_AGREEMENT)
    sums = {"scored_tokens": 9.0, "target_agreed_tokens": 8.0, "target_logprob": -9.0}
    sums |= {"baseline_scored_tokens": 9.0, "baseline_target_logprob": -9.0}
    rows = [baseline_row(), replace(exiting_row(), fidelity=sums), drafted_row()]
    groups = groups_of(rows, RUN)
    assert default_axis(groups) == FidelityAxis(TARGET_AGREEMENT)
    assert all_points(pareto(groups))[EXITING].y == pytest.approx(8 / 9)
    assert all_points(pareto(groups, quality="target-agreement"))[EXITING].y == pytest.approx(8 / 9)
    assert FidelityAxis(TARGET_AGREEMENT).of(groups[0], groups[0].pooled.methods[0]).value == 1.0
    assert all_points(pareto(groups, quality="agreement"))[EXITING].y == pytest.approx(2 / 9)


def test_the_baseline_of_an_engine_has_its_own_target_agreement() -> None:
    sums = {"scored_tokens": 9.0, "target_agreed_tokens": 8.0, "target_logprob": -9.0}
    rows = [replace(row, fidelity=sums) for row in (baseline_row(), exiting_row())]
    assert all_points(pareto(groups_of(rows, RUN)))[BASELINE].y == pytest.approx(8 / 9)


@pytest.mark.parametrize("style", STYLES, ids=SIZES)
def test_lossless_methods_have_a_row_each_the_fastest_lowest(style: Style) -> None:
    band, below = pareto(usual(), style).axes
    rows = {label: at.y for label, at in points(band).items()}
    assert rows == {DRAFTED: 0, BASELINE: 1, SLOW: 2} and list(points(below)) == [EXITING]
    assert list(band.get_yticks()) == [] and band.get_xlim() == below.get_xlim()
    low, high = below.get_ylim()
    along = points(below)[EXITING].along
    assert along and low < along[0] and along[1] < high < 0.6  # no empty half up to 1


def test_one_lossless_method_alone_has_a_fidelity_axis() -> None:
    """It was a strip an inch high without one."""
    (axes,) = pareto(
        groups_of([row for n in range(6) for row in (baseline_row(f"p{n}"), drafted_row(f"p{n}"))], RUN)
    ).axes
    assert {label: at.y for label, at in points(axes).items()} == {BASELINE: 1, DRAFTED: 1}
    assert max(axes.get_yticks()) == 1 and len(axes.get_yticks()) > 1 and axes.get_ylabel()


@pytest.mark.parametrize("style", STYLES, ids=SIZES)
def test_colours_are_of_methods_markers_of_claims_and_the_unbeaten_have_an_outline(style: Style) -> None:
    """early_exit is the fastest, two_model the fastest that agrees in all; these beat the others."""
    assert speed(EXITING) > speed(DRAFTED) > 1 > speed(SLOW)
    drawn = all_points(pareto(usual(), style))
    assert {label: at.colour.upper() for label, at in drawn.items()} == {
        label: style.colour_of(label) for label in drawn
    }
    assert {label for label, at in drawn.items() if at.edge.upper() == style.ink} == {DRAFTED, EXITING}
    assert {label: at.marker for label, at in drawn.items()} == {BASELINE: "s", DRAFTED: "o", SLOW: "o", EXITING: "^"}


@pytest.mark.parametrize("style", STYLES, ids=SIZES)
def test_the_frontier_goes_from_the_best_lossless_method_down_to_the_fastest(style: Style) -> None:
    band, below = pareto(usual(), style).axes
    fastest, (floor, ceiling), best = points(below)[EXITING], below.get_ylim(), speed(DRAFTED)
    assert has_line(band, [(best, 0), (best, band.get_ylim()[0])], "steps-pre")
    assert has_line(below, [(best, ceiling), (fastest.x, fastest.y), (fastest.x, floor)], "steps-pre")


def has_line(axes: Axes, corners: Sequence[tuple[float, float]], drawstyle: str = "default") -> bool:
    """Steps go down, or up, to the next point's height first."""
    paths = [np.asarray(line.get_xydata()) for line in axes.lines if line.get_drawstyle() == drawstyle]
    return any(path.shape == (len(corners), 2) and np.allclose(path, corners) for path in paths)


def test_without_several_lossless_methods_the_frontier_starts_at_the_left_edge() -> None:
    rows = [row for n in range(6) for row in (baseline_row(f"p{n}"), exiting_row(f"p{n}"))]
    (axes,) = pareto(groups_of(rows, RUN)).axes
    (left, _), (floor, _), fastest = axes.get_xlim(), axes.get_ylim(), points(axes)[EXITING]
    assert has_line(axes, [(left, 1), (1, 1), (fastest.x, fastest.y), (fastest.x, floor)], "steps-pre")


def test_the_title_is_the_finding() -> None:
    title, *_ = words_of(pareto(usual()))
    assert title.get_text() == f"two_model: {speed(DRAFTED):.2f}x, same answers"


def test_the_title_names_no_lossy_methods_where_there_are_none() -> None:
    broken = replace(drafted_row(), verdict="lossy", first_divergence=1)
    (group,) = groups_of([baseline_row(), broken], RUN)
    assert "lossy" not in panel_of(group, FidelityAxis(TOKEN_AGREEMENT)).title


def test_exact_methods_of_a_sampled_run_keep_their_claim_and_may_be_the_best() -> None:
    """They were crossed out as not confirmed, although sampled answers are never compared."""
    sampled: dict[str, Any] = {"verdict": "sampled", "first_divergence": None, "margin": None, "noise": None}
    rows = list[Row]()
    for prompt_id in ("p0", "p1", "p2", "p3", "p4", "p5"):
        drafted, wrong = drafted_row(prompt_id), replace(exiting_row(prompt_id), text="wrong")
        rows += [baseline_row(prompt_id), replace(drafted, **sampled), replace(wrong, **sampled)]
    suite = replace(KOALA, exact_answers={row.prompt_id: ("text",) for row in rows})
    (group,) = groups_of(rows, replace(RUN, temperature=0.7, suites=(suite,)))
    panel = panel_of(group, FidelityAxis(EXACT_MATCH))
    found = {dot.label: (dot.look, dot.best) for dot in panel.dots}
    assert found == {BASELINE: ("baseline", False), DRAFTED: ("claimed", True), EXITING: ("lossy", False)}
    assert "1.67x" in panel.title


def test_a_file_of_the_baseline_alone_has_a_panel_of_quality() -> None:
    """It ended with a traceback, because no method of that panel has scores."""
    answers = [(baseline_row(f"p{number}"), replace(exiting_row(f"p{number}"), text="mine")) for number in range(6)]
    scores = [one for usual, _ in answers for one in both_orders(usual.prompt_id, (6, 7), (6, 7))]
    judged = file_of([row for pair in answers for row in pair])
    other = replace(RUN, threads=2, methods=RUN.methods[:1])
    groups = compare([judged, file_of([usual for usual, _ in answers], other, "b.jsonl")], scores)
    panels = pareto(groups, quality="quality").axes
    assert [list(points(axes)) for axes in panels] == [[BASELINE, EXITING], [BASELINE]]


def check_words(figure: Figure, style: Style) -> None:
    """No name covers another, a marker or the frame, and none leaves the picture."""
    assert_readable(figure, style)
    for axes in figure.axes:
        frame = axes.get_window_extent().padded(0.1)
        for text in axes.texts:
            box = Text.get_window_extent(text)
            assert box.count_overlaps(markers_of(axes, style.marker * style.dpi / 72)) == 0
            assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1


@pytest.mark.parametrize("style", STYLES, ids=SIZES)
def test_names_of_a_few_methods_cover_nothing(style: Style) -> None:
    figure = pareto(usual(), style)
    check_words(figure, style)
    assert sorted(names(figure)) == sorted([BASELINE, "two_model", SLOW, EXITING])
    assert all(contrast(to_hex(text.get_color()), style.ground) >= 4.5 for text in words_of(figure))


@pytest.mark.slow
def test_panels_of_suites_share_one_key_and_their_axes() -> None:
    style, groups = SIZES["screen"], by_suite(many(2))
    figure = pareto(groups, style)
    check_words(figure, style)
    assert len(set(key(figure))) == len(key(figure))
    assert len({axes.get_xlim() for axes in figure.axes}) == len({axes.get_ylim() for axes in figure.axes[1::2]}) == 1
    for number, group in enumerate(groups):
        expected = {one.label: one.estimate(SPEEDUP).value for one in group.pooled.methods}
        drawn = points(figure.axes[2 * number]) | points(figure.axes[2 * number + 1])
        assert {label: at.x for label, at in drawn.items()} == pytest.approx(expected)


def test_a_name_is_enough_for_the_only_label_and_several_have_numbers() -> None:
    """early_exit and deed each have a lossless label and a lossy one: their markers differ."""
    items = {
        item.labels[0]: item for item in items_of([panel_of(group, FidelityAxis(TOKEN_AGREEMENT)) for group in many()])
    }
    assert (items[FOURTEEN[4]].name, items[FOURTEEN[4]].details) == ("early_exit", "")
    assert (items[FOURTEEN[9]].name, items[FOURTEEN[9]].details) == ("early_exit", "")
    assert (items[FOURTEEN[3]].name, items[FOURTEEN[3]].details) == ("medusa 1", "heads=2")
    assert (items[FOURTEEN[7]].name, items[FOURTEEN[7]].details) == ("lookahead 2", "defaults")


def test_a_curve_has_a_line_and_one_name_and_bars_only_where_no_method_beats_it() -> None:
    """Forty bars of 35 labels were spaghetti."""
    swept = [
        replace(RUN.methods[2], label=f"early_exit[threshold=0.{n}]", options={"threshold": n / 10}) for n in (1, 2, 3)
    ]
    rows = [baseline_row(f"p{number}") for number in range(6)]
    for number, each in product(range(6), range(3)):
        answer = exiting_row(f"p{number}", step_s=(0.5, 0.7, 1.5)[each] + 0.02 * number)
        rows.append(replace(answer, label=swept[each].label, first_divergence=2 + 2 * each + number % 2))
    figure = pareto(groups_of(rows, replace(RUN, methods=(RUN.methods[0], *swept))))
    (axes,) = figure.axes
    drawn = points(axes)
    assert has_line(axes, [(drawn[method.label].x, drawn[method.label].y) for method in swept])
    assert [drawn[method.label].across is not None for method in swept] == [True, True, False]
    assert "early_exit: threshold 0.1 to 0.3" in key(figure) and names(figure).count("early_exit") == 1
