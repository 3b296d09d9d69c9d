"""A report contains the pictures that `benchctl plot` draws, as elements of the page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from pages import usual_groups, usual_page

from benchctl.analysis.html.page import MAIN, embedded, other_pictures, picture
from benchctl.analysis.plots import acceptance, latency
from benchctl.analysis.plots.axes import svg
from benchctl.analysis.plots.catalogue import Request, helps, plot
from benchctl.analysis.plots.style import SIZES


def _texts(document: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(document).iter() if each.tag.endswith("text")]


def test_the_page_has_the_picture_that_plot_draws() -> None:
    groups = usual_groups()
    found = picture(MAIN, groups[0], "g1-")
    assert found.problem == "" and found.svg in usual_page()
    assert _texts(found.svg) == _texts(svg(plot(MAIN).draw(groups, Request(SIZES["screen"])).figure))


@pytest.mark.slow
def test_every_id_of_a_page_is_there_once_and_every_reference_has_its_id() -> None:
    page = usual_page()
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) > 10
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', page)) <= set(ids)
    assert page.count("<style") == 1 and "<metadata" not in page


def test_ids_get_a_prefix_and_texts_do_not() -> None:
    document = '<?xml version="1.0"?><svg><style>x</style><path id="a"/><use href="#a" style="fill:url(#a)"/>#a</svg>'
    assert embedded(document, "g1-") == '<svg><path id="g1-a"/><use href="#g1-a" style="fill:url(#g1-a)"/>#a</svg>'


@pytest.mark.slow
def test_other_pictures_are_drawn_where_the_runs_have_their_figures() -> None:
    """The usual rows have drafts and times, but no profile and no label with several values of an option."""
    names = {text.rstrip("."): name for name, text in helps().items()}
    assert [names[each.title] for each in other_pictures(usual_groups()[0], "g1-")] == ["acceptance", "latency"]


def test_a_picture_without_room_for_all_methods_keeps_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was left out without a word."""
    for plot_of in (acceptance, latency):
        monkeypatch.setattr(plot_of, "_MOST", {"screen": 0})
    found = other_pictures(usual_groups()[0], "g1-")
    titles = [helps()[name].rstrip(".") for name in ("acceptance", "latency")]
    assert [(each.title, each.svg, bool(each.problem)) for each in found] == [(title, "", True) for title in titles]
