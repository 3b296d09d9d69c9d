"""The Pareto plot of a report: the SVG that `benchctl plot` draws, fit to stand in a page.

The page's policy forbids style attributes, so they become attributes of their own. Ids get a prefix, because several
pictures share a page. Colours stay those of the light theme in the SVG, and `dark_rules` turns them dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from xml.etree import ElementTree

from benchctl.analysis.comparison import Group, SuiteFigures
from benchctl.analysis.metrics.faithfulness import TARGET_AGREEMENT, TOKEN_AGREEMENT
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.plots.axes import svg
from benchctl.analysis.plots.fidelity_axis import FidelityAxis
from benchctl.analysis.plots.pareto import draw_pareto
from benchctl.analysis.plots.style import Style, style_of

_LEFT_OUT = ("metadata", "style")  # elements: the style is in report.css
_LEFT_OUT_ATTRIBUTES = ("width", "height", "version", "font-family")


@dataclass(frozen=True)
class Picture:
    """One suite; `missing` are the methods without figures to draw."""

    suite: str
    title: str
    description: str
    svg: str
    missing: tuple[str, ...]


def pictures(number: int, group: Group) -> tuple[Picture, ...]:
    """A picture for each suite of the group with this number, all suites together first; none for runs without
    fidelity, as sampled ones."""
    metric = fidelity_of(group)
    return tuple(_pictures(number, group, metric)) if metric else ()


def pooled_first(group: Group) -> tuple[SuiteFigures, ...]:
    """All suites together, then each suite; a single suite once."""
    return (group.pooled, *group.suites[:-1])


def fidelity_of(group: Group) -> Metric | None:
    """The first of token agreement and target agreement that every method with a speed-up has."""
    methods = [
        method
        for method in group.pooled.methods
        if not method.is_baseline and method.estimate(SPEEDUP).value is not None
    ]
    for metric in (TOKEN_AGREEMENT, TARGET_AGREEMENT):
        if methods and all(method.estimate(metric).value is not None for method in methods):
            return metric
    return None


def _pictures(number: int, group: Group, metric: Metric) -> Iterator[Picture]:
    axis = FidelityAxis(metric)
    for index, figures in enumerate(pooled_first(group)):
        drawn = tuple(
            method
            for method in figures.methods
            if method.estimate(SPEEDUP).value is not None
            and (method.is_baseline or method.estimate(metric).value is not None)
        )
        title = group.title(figures)
        description = f"Speed-up against {metric.label}, {title}"
        missing = tuple(method.label for method in figures.methods if method not in drawn)
        if not any(method.is_baseline for method in drawn):
            yield Picture(figures.suite, title, description, "", missing)
            continue
        # All suites together keep the names of the suites in the title.
        suites = (*(group.suites[:-1] if not index else ()), replace(figures, methods=drawn))
        figure = draw_pareto([replace(group, suites=suites, differs=())], axis, style_of())
        yield Picture(figures.suite, title, description, embedded(svg(figure), f"g{number}s{index}-"), missing)


def embedded(document: str, prefix: str) -> str:
    """An SVG document of matplotlib as an element for a page. Ids begin with `prefix`; ids that nothing refers to are
    dropped. A part with the id `method-N-..` gets data-method="N"."""
    root = ElementTree.fromstring(document)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', document))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for child in [child for child in element if child.tag.rpartition("}")[2] in _LEFT_OUT]:
            element.remove(child)
        attributes = dict(_attributes(element, used, prefix))
        element.attrib.clear()
        element.attrib.update(attributes)
        element.tail = None
        if element.tag not in ("text", "tspan"):
            element.text = None
    return ElementTree.tostring(root, encoding="unicode")


def _attributes(element: ElementTree.Element, used: set[str], prefix: str) -> Iterator[tuple[str, str]]:
    for qualified, value in element.attrib.items():
        name = qualified.rpartition("}")[2]
        if name == "id":
            if method := re.fullmatch(r"method-(\d+)-.*", value):
                yield "data-method", method[1]
            if value in used:
                yield "id", prefix + value
        elif name == "href":
            yield "href", f"#{prefix}{value.removeprefix('#')}"
        elif name == "style":
            pairs = (pair.partition(":") for pair in value.split(";"))
            yield from (
                (key.strip(), text.strip()) for key, _, text in pairs if key.strip() not in _LEFT_OUT_ATTRIBUTES
            )
        elif name == "d":
            yield "d", _short(" ".join(value.split()))
        elif name not in _LEFT_OUT_ATTRIBUTES:
            yield name, _short(value).replace("url(#", f"url(#{prefix}")


def _short(numbers: str) -> str:
    """Coordinates with two decimals."""
    return re.sub(r"\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}", numbers)


def dark_rules() -> str:
    """CSS that turns the colours of a light picture into those of a dark one."""
    pairs = dict(zip(_colours(style_of("light")), _colours(style_of("dark")), strict=True))
    rules = "".join(
        f'.picture [{name}="{light.lower()}"]{{{name}:{dark.lower()}}}'
        for light, dark in pairs.items()
        for name in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark){{{rules}}}"


def _colours(style: Style) -> list[str]:
    plain = [style.ground, style.ink, style.muted, style.grid, *style.colours]
    return [*plain, *map(style.faded, (style.ink, *style.colours)), style.faded(style.colours[0], 0.08)]
