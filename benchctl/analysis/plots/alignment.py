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
from benchctl.analysis.plots.style import DASHES, Style
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


_NAMES = {
    "slow": "slow state",
    "exit": "separate exit of equal size (as in LITE)",
    "accelerated": "accelerated state",
    "target": "accelerated state vs. its training target",
}
_HATCHES = {"slow": "...", "exit": "///", "accelerated": ""}
_MARKERS = {"slow": "s", "accelerated": "o", "target": "^"}
_ROW_INCHES = {"screen": 2.9, "column": 3.0}
_BAR_WIDTH = 0.27


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """A row for each folder of modules in `request.paths`. Raises UserError as `read_alignment` does."""
    if not request.paths:
        raise UserError("no_folders", "name the folders of trained modules to plot, as benchctl train m2r2 wrote them.")
    if len(request.paths) > 1 and request.style.size != "screen":
        raise UserError("too_many_panels", "this size has room for one folder: name one, or use --size screen.")
    return Drawing(draw_alignment([read_alignment(folder) for folder in request.paths], request.style))


PLOT = Plot(draw, reads_results=False)


def draw_alignment(alignments: Sequence[Alignment], style: Style) -> Figure:
    """Cosines by layer on the left, agreement at the gates on the right."""
    figure = new_figure(style, _ROW_INCHES[style.size] * len(alignments))
    for row, alignment in enumerate(alignments):
        _draw_cosines(figure.add_subplot(len(alignments), 2, 2 * row + 1), alignment, style)
        _draw_gates(figure.add_subplot(len(alignments), 2, 2 * row + 2), alignment, style)
    title = "How early hidden states agree with the last layer"
    figure.suptitle(title, x=0.01, ha="left", fontsize=style.title, fontweight="bold", color=style.ink)
    lines, bars = (axes.get_legend_handles_labels()[0] for axes in figure.axes[:2])
    key = [*lines, next(bar for bar in bars if bar.get_label() == _NAMES["exit"])]
    figure.legend(handles=key, loc="outside lower center", ncols=1 if style.size == "column" else 2, frameon=False,
                  fontsize=style.small, labelcolor=style.ink, labelspacing=0.2)  # fmt: skip
    return figure


def _colour(style: Style, kind: str) -> str:
    """The training target has the colour of the accelerated state, and the exit that of early_exit."""
    return {"slow": style.muted, "exit": style.colour_of("early_exit")}.get(kind, style.colour_of("m2r2"))


def _draw_cosines(axes: Axes, alignment: Alignment, style: Style) -> None:
    slow, fast, target = (alignment.cosines[kind] for kind in ("slow", "accelerated", "target"))
    _line(axes, slow, "slow", style, named=True)
    for number, (first, gate) in enumerate(alignment.intervals):
        layers = range(first + 1, gate + 1)
        start = {first: slow[first]} if first in slow else {}  # there the accelerated state is the slow one
        _line(axes, start | {layer: fast[layer] for layer in layers}, "accelerated", style, named=not number)
        _line(axes, {layer: target[layer] for layer in layers}, "target", style, named=not number)
    axes.set_xlabel("layers run")
    axes.set_ylabel("mean cosine, held-out text")
    axes.set_xticks(sorted({*alignment.gates, 1}))
    dress(axes, style)
    axes.set_title(f"{alignment.title}, {alignment.layers} layers", loc="left", fontsize=style.small, color=style.muted)


def _line(axes: Axes, cosines: Mapping[int, float], kind: str, style: Style, *, named: bool) -> None:
    """One line of the legend is enough for all intervals."""
    other = "" if kind == "target" else " vs. last layer"
    axes.plot(
        list(cosines), list(cosines.values()), marker=_MARKERS[kind], color=_colour(style, kind), linewidth=style.line,
        linestyle=DASHES[2 if kind == "target" else 0], markersize=style.marker * 0.7,
        label=f"{_NAMES[kind]}{other}" if named else "_",
    )  # fmt: skip


def _draw_gates(axes: Axes, alignment: Alignment, style: Style) -> None:
    for index, source in enumerate(SOURCES):
        xs = [number + (index - 1) * _BAR_WIDTH for number in range(len(alignment.gates))]
        shares = [alignment.agreements[source][gate] for gate in alignment.gates]
        bars = axes.bar(xs, shares, width=_BAR_WIDTH * 0.92, color=_colour(style, source), edgecolor=style.ground,
                        linewidth=0, hatch=_HATCHES[source], label=_NAMES[source])  # fmt: skip
        if style.size != "column":  # there numbers would lie on each other
            texts = [f"{share:.2f}" for share in shares]
            axes.bar_label(bars, texts, fontsize=style.small, color=style.ink, padding=1.5)
    axes.set_xticks(range(len(alignment.gates)), [f"layer {gate}" for gate in alignment.gates])
    axes.set_ylim(0, 1.0)
    axes.set_ylabel("next tokens equal to\nthe last layer's, held-out text")
    dress(axes, style)
