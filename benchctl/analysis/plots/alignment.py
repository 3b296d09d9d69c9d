"""The early-alignment picture of M2R2 (arXiv 2502.02040): what each stream knows of the last layer, layer by layer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchctl.analysis.plots.axes import check_image, dress, new_figure, save, wrapped
from benchctl.analysis.plots.style import Mark, Style
from benchctl.errors import UserError

FACTS = "modules.json"
_COSINE = re.compile(r"cosine_(\d+)_(slow|accelerated|target)")
_GATE = re.compile(r"gate_(\d+)_(slow|accelerated|exit)")

SOURCES = ("slow", "exit", "accelerated")


@dataclass(frozen=True)
class Alignment:
    """What the folder of a method with two streams says of them, by layer.

    cosines     for slow, accelerated (with the last layer's state) and target (of the accelerated state with what it
                was to become): layer -> mean cosine
    agreements  for slow, exit and accelerated: gate -> share of tokens that agree with the last layer
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
        """First layer and gate of each interval: the accelerated stream starts from the slow one at each gate anew."""
        return list(zip((0, *self.gates), self.gates, strict=False))


def read_alignment(folder: Path) -> Alignment:
    """Raises UserError where the folder holds no modules, or those of a method without an accelerated stream."""
    file = folder / FACTS
    if not file.is_file():
        raise UserError(f"{folder}: holds no {FACTS}; name the folder that benchctl train m2r2 wrote.")
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        method, target = str(facts["method"]), facts["target"]
        name, layers = str(target["name"]), int(target["layers"])
        yardsticks = {str(key): float(value) for key, value in dict(facts["yardsticks"]).items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: cannot be read ({error!r}); train the modules anew.") from error
    cosines, agreements = _by_layer(_COSINE, yardsticks), _by_layer(_GATE, yardsticks)
    if not {"slow", "accelerated", "target"} <= set(cosines) or not set(SOURCES) <= set(agreements):
        raise UserError(
            f"{folder}: modules of {method} say nothing of two streams; name those of m2r2 or m2r2_dynamic."
        )
    return Alignment(folder, f"{method} on {name}", layers, cosines, agreements)


def _by_layer(pattern: re.Pattern[str], yardsticks: Mapping[str, float]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for name, value in yardsticks.items():
        if match := pattern.fullmatch(name):
            found.setdefault(match[2], {})[int(match[1])] = value
    return {kind: dict(sorted(values.items())) for kind, values in found.items()}


_MARKS = {"slow": -1, "exit": 1, "accelerated": 0, "target": 2}  # numbers of Style.mark; the slow state is in ink
_NAMES = {
    "slow": "slow state",
    "exit": "exit of equal size (LITE-style)",
    "accelerated": "accelerated state",
}
_ROW_INCHES = {"page": 3.3, "column": 5.4}
_BAR = 0.27


def plot_alignment(found: Sequence[Alignment], path: Path, style: Style | None = None) -> None:
    """A row for each folder: cosines layer by layer on the left, agreement at the gates on the right; in a column of a
    paper these stand below each other.

    Raises UserError where the picture cannot be written (see check_image).
    """
    check_image(path)
    save(draw_alignment(found, style or Style()), path)


def draw_alignment(found: Sequence[Alignment], style: Style) -> Figure:
    figure = new_figure(style, _ROW_INCHES.get(style.size, 0.0) * len(found))
    beside = style.size != "column"
    rows, columns = (len(found), 2) if beside else (2 * len(found), 1)
    for row, alignment in enumerate(found):
        _draw_cosines(figure.add_subplot(rows, columns, 2 * row + 1), alignment, style)
        _draw_gates(figure.add_subplot(rows, columns, 2 * row + 2), alignment, style)
    return figure


def _mark(style: Style, kind: str) -> Mark:
    number = _MARKS[kind]
    return Mark(style.ink, "s", "...", (0, (4, 1.5))) if number < 0 else style.mark(number)


def _draw_cosines(axes: Axes, found: Alignment, style: Style) -> None:
    slow, fast, target = (found.cosines[kind] for kind in ("slow", "accelerated", "target"))
    _line(axes, list(slow), list(slow.values()), "slow", style, "slow state, last layer's")
    for number, (first, gate) in enumerate(found.intervals):
        layers = range(first + 1, gate + 1)
        start = [first] if first in slow else []  # there the accelerated state is the slow one
        xs, ys = [*start, *layers], [*(slow[layer] for layer in start), *(fast[layer] for layer in layers)]
        hidden = "_" if number else ""  # one line of the legend for all intervals
        _line(axes, xs, ys, "accelerated", style, f"{hidden}accelerated state, last layer's")
        ys = [target[layer] for layer in layers]
        _line(axes, list(layers), ys, "target", style, f"{hidden}accelerated state, what it is to become")
    axes.set_title(_title(f"{found.title}, {found.layers} layers: early alignment", style), loc="left")
    axes.set_xlabel("layers run")
    axes.set_ylabel("mean cosine on held-out text")
    axes.set_xticks(sorted({*found.gates, 1}))
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


def _draw_gates(axes: Axes, found: Alignment, style: Style) -> None:
    for place, source in enumerate(SOURCES):
        xs = [number + (place - 1) * _BAR for number in range(len(found.gates))]
        shares = [found.agreements[source][gate] for gate in found.gates]
        mark = _mark(style, source)
        bars = axes.bar(
            xs,
            shares,
            width=_BAR * 0.92,
            color=mark.colour,
            edgecolor=style.ground,
            linewidth=0,
            hatch=mark.hatch,
            label=_NAMES[source],
        )
        texts = [f"{share:.2f}" for share in shares]
        axes.bar_label(bars, texts, fontsize=style.small, color=style.ink, padding=1.5)
    axes.set_xticks(range(len(found.gates)), [f"gate {gate}" for gate in found.gates])
    axes.set_ylim(0, 1.14)
    axes.set_ylabel("share of tokens that agree\nwith the last layer")
    axes.set_title(_title("next token said at each gate", style), loc="left")
    _finish(axes, style)


def _title(text: str, style: Style) -> str:
    return wrapped([text], style, style.title, style.width / (1 if style.size == "column" else 2) - 0.6)


def _finish(axes: Axes, style: Style) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=1, fontsize=style.small)
    dress(axes, style)
