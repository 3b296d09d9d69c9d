"""How early m2r2's two streams align; FILES are folders of its modules.

The early-alignment picture of M2R2 (arXiv 2502.02040): how close each stream is to the last layer, layer by layer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchctl.analysis.comparison import Group
from benchctl.analysis.plots.axes import dress, new_figure
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.style import Mark, Style, wrapped
from benchctl.errors import UserError

FACTS = "modules.json"
_COSINE = re.compile(r"cosine_(\d+)_(slow|accelerated|target)")
_GATE = re.compile(r"gate_(\d+)_(slow|accelerated|exit)")

SOURCES = ("slow", "exit", "accelerated")


@dataclass(frozen=True)
class Alignment:
    """What the folder of a method with two streams contains about them, by layer.

    cosines     layer -> mean cosine: of the slow and the accelerated state with the last layer's, and of the
                accelerated state with its training target ("target")
    agreements  gate -> share of tokens that agree with the last layer, for slow, exit and accelerated
    """

    folder: Path
    title: str
    layers: int
    cosines: Mapping[str, Mapping[int, float]]
    agreements: Mapping[str, Mapping[int, float]]

    @property
    def gates(self) -> tuple[int, ...]:
        return tuple(sorted(self.agreements["accelerated"]))

    @property
    def intervals(self) -> Sequence[tuple[int, int]]:
        """First layer and gate of each interval: at each gate the accelerated stream starts again from the slow one."""
        return list(zip((0, *self.gates), self.gates, strict=False))


def read_alignment(folder: Path) -> Alignment:
    """Raises UserError where the folder holds no modules, or those of a method without an accelerated stream."""
    file = folder / FACTS
    if not file.is_file():
        raise UserError("no_modules", f"{folder}: holds no {FACTS}; name the folder that benchctl train m2r2 wrote.")
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        method, target = str(facts["method"]), facts["target"]
        name, layers = str(target["name"]), int(target["layers"])
        yardsticks = {str(key): float(value) for key, value in dict(facts["yardsticks"]).items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            "unreadable_modules", f"{file}: cannot be read ({error!r}); train the modules again."
        ) from error
    cosines, agreements = _by_layer(_COSINE, yardsticks), _by_layer(_GATE, yardsticks)
    if not {"slow", "accelerated", "target"} <= set(cosines) or not set(SOURCES) <= set(agreements):
        raise UserError(
            "no_stream_figures",
            f"{folder}: modules of {method} have no figures of two streams; name those of m2r2 or m2r2_dynamic.",
        )
    return Alignment(folder, f"{method} on {name}", layers, cosines, agreements)


def _by_layer(pattern: re.Pattern[str], yardsticks: Mapping[str, float]) -> dict[str, dict[int, float]]:
    by_kind: dict[str, dict[int, float]] = {}
    for name, value in yardsticks.items():
        if match := pattern.fullmatch(name):
            by_kind.setdefault(match[2], {})[int(match[1])] = value
    return {kind: dict(sorted(values.items())) for kind, values in by_kind.items()}


_MARKS = {"slow": -1, "exit": 1, "accelerated": 0, "target": 2}  # numbers of Style.mark; the slow state is in ink
_NAMES = {
    "slow": "slow state",
    "exit": "exit of equal size (LITE-style)",
    "accelerated": "accelerated state",
}
_ROW_INCHES = {"screen": 3.3, "column": 5.4}
_BAR_WIDTH = 0.27


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """A row for each folder of modules in `request.paths`. Raises UserError as `read_alignment` does."""
    if not request.paths:
        raise UserError("no_folders", "name the folders of trained modules to plot, as benchctl train m2r2 wrote them.")
    return Drawing(draw_alignment([read_alignment(folder) for folder in request.paths], request.style))


PLOT = Plot(draw, reads_results=False)


def draw_alignment(alignments: Sequence[Alignment], style: Style) -> Figure:
    """Cosines by layer on the left, agreement at the gates on the right; in a column of a paper below each other."""
    figure = new_figure(style, _ROW_INCHES.get(style.size, 0.0) * len(alignments))
    side_by_side = style.size != "column"
    rows, columns = (len(alignments), 2) if side_by_side else (2 * len(alignments), 1)
    for row, alignment in enumerate(alignments):
        _draw_cosines(figure.add_subplot(rows, columns, 2 * row + 1), alignment, style)
        _draw_gates(figure.add_subplot(rows, columns, 2 * row + 2), alignment, style)
    return figure


def _mark(style: Style, kind: str) -> Mark:
    number = _MARKS[kind]
    return Mark(style.ink, "s", "...", (0, (4, 1.5))) if number < 0 else style.mark(number)


def _draw_cosines(axes: Axes, alignment: Alignment, style: Style) -> None:
    slow, fast, target = (alignment.cosines[kind] for kind in ("slow", "accelerated", "target"))
    _line(axes, list(slow), list(slow.values()), "slow", style, "slow state, last layer's")
    for number, (first, gate) in enumerate(alignment.intervals):
        layers = range(first + 1, gate + 1)
        start = [first] if first in slow else []  # there the accelerated state is the slow one
        xs, ys = [*start, *layers], [*(slow[layer] for layer in start), *(fast[layer] for layer in layers)]
        hidden = "_" if number else ""  # one line of the legend for all intervals
        _line(axes, xs, ys, "accelerated", style, f"{hidden}accelerated state, last layer's")
        ys = [target[layer] for layer in layers]
        _line(axes, list(layers), ys, "target", style, f"{hidden}accelerated state, what it is to become")
    axes.set_title(_title(f"{alignment.title}, {alignment.layers} layers: early alignment", style), loc="left")
    axes.set_xlabel("layers run")
    axes.set_ylabel("mean cosine on held-out text")
    axes.set_xticks(sorted({*alignment.gates, 1}))
    _finish(axes, style)


def _line(axes: Axes, xs: Sequence[float], ys: Sequence[float], kind: str, style: Style, name: str) -> None:
    mark = _mark(style, kind)
    axes.plot(
        xs,
        ys,
        marker=mark.marker,
        linestyle=mark.dashes,
        color=mark.colour,
        markersize=style.marker * 0.7,
        linewidth=style.line,
        label=name,
    )


def _draw_gates(axes: Axes, alignment: Alignment, style: Style) -> None:
    for index, source in enumerate(SOURCES):
        xs = [number + (index - 1) * _BAR_WIDTH for number in range(len(alignment.gates))]
        shares = [alignment.agreements[source][gate] for gate in alignment.gates]
        mark = _mark(style, source)
        bars = axes.bar(
            xs,
            shares,
            width=_BAR_WIDTH * 0.92,
            color=mark.colour,
            edgecolor=style.ground,
            linewidth=0,
            hatch=mark.hatch,
            label=_NAMES[source],
        )
        texts = [f"{share:.2f}" for share in shares]
        axes.bar_label(bars, texts, fontsize=style.small, color=style.ink, padding=1.5)
    axes.set_xticks(range(len(alignment.gates)), [f"gate {gate}" for gate in alignment.gates])
    axes.set_ylim(0, 1.14)
    axes.set_ylabel("share of tokens that agree\nwith the last layer")
    axes.set_title(_title("next token said at each gate", style), loc="left")
    _finish(axes, style)


def _title(text: str, style: Style) -> str:
    return wrapped([text], style, style.title, style.width / (1 if style.size == "column" else 2) - 0.6)


def _finish(axes: Axes, style: Style) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=1, fontsize=style.small)
    dress(axes, style)
