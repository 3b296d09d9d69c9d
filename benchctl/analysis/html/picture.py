"""The pictures of a report: the SVG that `benchctl plot` draws, as an element of a page."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from benchctl.analysis.comparison import Group
from benchctl.analysis.plots.axes import svg
from benchctl.analysis.plots.catalogue import Request, helps, plot
from benchctl.analysis.plots.style import style_of
from benchctl.errors import UserError

MAIN = "pareto"
_LEFT_OUT = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)  # the page has rules of its own
_ID = re.compile(r'( id="|url\(#|href="#)')


@dataclass(frozen=True)
class Picture:
    """`svg` is empty where these runs have no such picture, and `problem` is the reason."""

    title: str
    svg: str = ""
    problem: str = ""


def picture(name: str, group: Group, prefix: str, size: str = "screen") -> Picture:
    """The picture of this name of `benchctl plot`. `prefix` is different for each picture of a page."""
    title = helps()[name].rstrip(".")
    try:
        drawing = plot(name).draw((replace(group, differs=()),), Request(style_of(size=size)))
    except UserError as error:
        return Picture(title, problem=str(error))
    return Picture(title, embedded(svg(drawing.figure), prefix))


def other_pictures(group: Group, prefix: str) -> tuple[Picture, ...]:
    """The other pictures of results files, as far as these runs have them."""
    names = [name for name in helps() if name != MAIN and plot(name).reads_results]
    return tuple(found for name in names if (found := picture(name, group, f"{prefix}{name}-")).svg)


def embedded(document: str, prefix: str) -> str:
    """An SVG document as an element for a page. Its ids begin with `prefix`, because several pictures share a page."""
    element = _LEFT_OUT.sub("", document[document.index("<svg") :])
    return _ID.sub(rf"\g<1>{prefix}", element)
