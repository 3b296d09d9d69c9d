"""The early-alignment picture of M2R2 (arXiv 2502.02040): what each stream knows of the last layer, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchctl.analysis.alignment import SOURCES, Alignment
from benchctl.analysis.plots import check_image, save

_WIDTH_INCHES, _HEIGHT_INCHES, _DPI = 9.4, 3.9, 160
_COLOURS = {"slow": "#000000", "exit": "#D55E00", "accelerated": "#0072B2", "target": "#009E73"}
_NAMES = {
    "slow": "slow state",
    "exit": "exit of equal size (LITE-style)",
    "accelerated": "accelerated state",
}
_BAR = 0.27


def plot_alignment(found: Sequence[Alignment], path: Path) -> None:
    """A row for each folder: cosines layer by layer on the left, agreement at the gates on the right.

    Raises UserError where the picture cannot be written (see check_image).
    """
    check_image(path)
    figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES * len(found)), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    for row, alignment in enumerate(found):
        _draw_cosines(figure.add_subplot(len(found), 2, 2 * row + 1), alignment)
        _draw_gates(figure.add_subplot(len(found), 2, 2 * row + 2), alignment)
    save(figure, path)


def _draw_cosines(axes: Axes, found: Alignment) -> None:
    slow, fast, target = (found.cosines[kind] for kind in ("slow", "accelerated", "target"))
    axes.plot(list(slow), list(slow.values()), "o--", color=_COLOURS["slow"], label="slow state, last layer's", ms=4)
    for number, (first, gate) in enumerate(found.intervals):
        layers = range(first + 1, gate + 1)
        start = [first] if first in slow else []  # there the accelerated state is the slow one
        xs, ys = [*start, *layers], [*(slow[layer] for layer in start), *(fast[layer] for layer in layers)]
        hidden = "_" if number else ""  # one line of the legend for all intervals
        name = f"{hidden}accelerated state, last layer's"
        axes.plot(xs, ys, "^-", color=_COLOURS["accelerated"], ms=5, label=name)
        ys, name = [target[layer] for layer in layers], f"{hidden}accelerated state, what it is to become"
        axes.plot(list(layers), ys, "s:", color=_COLOURS["target"], ms=3.5, label=name)
    axes.set_title(f"{found.title}, {found.layers} layers: early alignment", fontsize=9.5, loc="left")
    axes.set_xlabel("layers run")
    axes.set_ylabel("mean cosine on held-out text")
    axes.set_xticks(sorted({*found.gates, 1}))
    _finish(axes)


def _draw_gates(axes: Axes, found: Alignment) -> None:
    for place, source in enumerate(SOURCES):
        xs = [number + (place - 1) * _BAR for number in range(len(found.gates))]
        shares = [found.agreements[source][gate] for gate in found.gates]
        bars = axes.bar(xs, shares, width=_BAR * 0.92, color=_COLOURS[source], label=_NAMES[source])
        axes.bar_label(bars, [f"{share:.2f}" for share in shares], fontsize=7.5, padding=1.5)
    axes.set_xticks(range(len(found.gates)), [f"gate {gate}" for gate in found.gates])
    axes.set_ylim(0, 1.12)
    axes.set_ylabel("share of tokens that agree\nwith the last layer")
    axes.set_title("next token said at each gate", fontsize=9.5, loc="left")
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.grid(color="#EEEEEE", zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8, frameon=False)
