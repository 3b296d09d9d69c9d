"""What a report draws is what `benchctl plot` draws, fit to stand in a page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fixtures_records import BASELINE, DRAFTED, EXITING, RUN, baseline_row, drafted_row, failed, usual_rows
from pages import TWO_SUITES, groups_of, two_suites, usual_groups, usual_page

from benchctl.analysis.comparison import POOLED
from benchctl.analysis.html.page import spreads
from benchctl.analysis.html.picture import dark_rules, pictures
from benchctl.analysis.names import short_labels
from benchctl.analysis.plots.axes import svg
from benchctl.analysis.plots.fidelity_axis import FidelityAxis
from benchctl.analysis.plots.pareto import draw_pareto
from benchctl.analysis.plots.style import style_of


def _words(document: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(document).iter() if each.tag.endswith("text")]


def test_the_page_has_the_picture_that_plot_draws() -> None:
    (group,) = usual_groups()
    (picture,) = pictures(1, group)
    assert _words(picture.svg) == _words(svg(draw_pareto([group], FidelityAxis(), style_of())))
    assert "✓ lossless" in _words(picture.svg) and picture.missing == ()


@pytest.mark.slow
def test_a_picture_needs_nothing_but_the_page() -> None:
    """No style attribute, which the policy forbids, no address outside, and every id once, in all pictures together."""
    page = usual_page()
    (picture,) = pictures(1, usual_groups()[0])
    assert picture.svg in page
    assert "style=" not in picture.svg and "<style" not in picture.svg and "http" not in picture.svg
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) > 10
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', page)) <= set(ids)


def test_what_belongs_to_a_method_can_be_hidden_with_it() -> None:
    (picture,) = pictures(1, usual_groups()[0])
    assert set(re.findall(r'data-method="(\d+)"', picture.svg)) == {"0", "1", "2"}
    (group,) = usual_groups()
    names = {f"{number}": method.name for number, method in enumerate(group.methods)}
    root = ElementTree.fromstring(picture.svg)
    for part in root.iter("g"):
        words = " ".join(part.itertext()).strip()
        if "data-method" in part.attrib and words:
            assert names[part.attrib["data-method"]].split("_")[0] in words


def test_every_colour_of_a_picture_has_a_dark_one() -> None:
    (picture,) = pictures(1, usual_groups()[0])
    colours = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{6})"', picture.svg))
    assert len(colours) > 5
    assert {colour for colour in colours if f'[fill="{colour}"]' not in dark_rules()} == set()


@pytest.mark.slow
def test_each_suite_has_a_picture(tmp_path: Path) -> None:
    (group,) = groups_of(tmp_path, two_suites(), TWO_SUITES)
    found = pictures(1, group)
    assert [picture.suite for picture in found] == [POOLED, "koala", "mt-bench"]
    assert [any("koala, mt-bench: 40 prompts" in word for word in _words(each.svg)) for each in found] == [1, 0, 0]


@pytest.mark.slow
def test_a_method_without_figures_on_a_suite_is_named_with_its_picture(tmp_path: Path) -> None:
    rows = [row for row in two_suites() if row.label != EXITING or row.suite == "koala"]
    rows += [failed(row) for row in two_suites() if row.label == EXITING and row.suite == "mt-bench"]
    (group,) = groups_of(tmp_path, rows, TWO_SUITES)
    assert [picture.missing for picture in pictures(1, group)] == [(), (), (EXITING,)]


def test_sampled_runs_have_no_picture(tmp_path: Path) -> None:
    rows = [replace(row, verdict=None if row.label == BASELINE else "sampled", first_divergence=None, margin=None,
                    noise=None) for row in usual_rows()]  # fmt: skip
    (group,) = groups_of(tmp_path, rows, replace(RUN, temperature=0.5))
    assert pictures(1, group) == ()


def test_short_labels_keep_the_options_that_differ() -> None:
    assert short_labels(["m[a=1,b=2]", "m[a=1,b=3]", "n[a=1]"]) == {
        "m[a=1,b=2]": "m b=2",
        "m[a=1,b=3]": "m b=3",
        "n[a=1]": "n",
    }


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
    assert found[DRAFTED].quantiles_ms == pytest.approx((2, 6, 11, 16, 20))  # two tokens a step
    assert (found[BASELINE].tpot, found[BASELINE].generations) == ("11.00", 21)
