"""The layers, or drafted blocks, of each token of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from shlex import quote
from typing import Final, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Rectangle

from benchctl.analysis.comparison import Group, chosen
from benchctl.analysis.frame.answer_rows import Decoders, Place, pieces, rows_at
from benchctl.analysis.frame.build import pair
from benchctl.analysis.plots.axes import dress, new_panels
from benchctl.analysis.plots.catalogue import Drawing, Plot, Request
from benchctl.analysis.plots.style import Style
from benchctl.analysis.plots.words import broken_label, line_inches, wrapped
from benchctl.analysis.stats.bootstrap import Interval, bootstrap
from benchctl.analysis.stats.estimates import levels
from benchctl.errors import UserError
from benchctl.records.schema import Row

Kind = Literal["layers", "block"]

_SHARE = 0.25  # of the answers must reach a position: those that do are the long ones, and few tell no spread
_FEWEST = 2  # and so many, to tell a spread


@dataclass(frozen=True)
class Answer:
    """A number for each token, the first of them prefill's; `texts` are None where tokens are not known as text."""

    place: Place
    numbers: tuple[int, ...]
    texts: tuple[str, ...] | None


@dataclass(frozen=True)
class ByPosition:
    """The mean at a position (from 0) over the answers that reach it, and how many these are. Of blocks it is tokens
    per step there: a plain mean would count a block once for each of its tokens, and long ones so more often."""

    position: int
    mean: float
    interval: Interval | None
    answers: int


@dataclass(frozen=True)
class Depths:
    """`means` end where too few answers go on; `answers` are those that they are of."""

    label: str
    kind: Kind
    answer: Answer
    means: tuple[ByPosition, ...]
    answers: int


def depths(group: Group, label: str, prompt: str, decoders: Decoders) -> Depths:
    """What the tokens took that `label` gave to `prompt` ("" for the first one), in its first turn and repeat, and what
    those of all its answers took in the mean.

    Raises UserError for a method that ran all layers for every token and drafted nothing, and for a prompt that it has
    not answered.
    """
    pairs = pair(group.frame, label, group.run.baseline)
    kind = kind_of(pairs)
    if kind is None:
        others = " ".join(with_depths(group, chosen([group])))
        instead = f"Name another --method, of {others}." if others else "Measure one that drafts, or leaves layers out."
        raise UserError(
            f"{group.files[0].path}: {label} has no token that ran fewer layers than the target has, and no drafts, so "
            f"there is nothing to draw. {instead}"
        )
    places = _places(pairs, label)
    rows = rows_at(group.files, set(places))
    place = _place_of(places, prompt, label)
    decode = decoders(group.files[place.file].run)
    found = pieces(rows[place], range(1, len(rows[place].token_ids)), decode) if decode else None
    numbers = {each: numbers_of(row, kind) for each, row in rows.items()}
    answer = Answer(place, numbers[place], None if found is None else tuple(found))
    return Depths(label, kind, answer, _means(pairs, [numbers[each] for each in places], kind), len(rows))


def with_depths(group: Group, labels: Sequence[str]) -> tuple[str, ...]:
    """Those of `labels` with depths or blocks to show."""
    return tuple(label for label in labels if kind_of(pair(group.frame, label, group.run.baseline)) is not None)


def kind_of(pairs: pd.DataFrame) -> Kind | None:
    """What to show of a method's tokens; None where all of them took the same."""
    if (pairs["drafted_tokens"] > 0).any():
        return "block"
    return "layers" if (pairs["depth_layers"] != pairs["full_layers"]).any() else None


def numbers_of(row: Row, kind: Kind) -> tuple[int, ...]:
    """For each token of the answer. Prefill commits its token alone; a token may carry layers that were caught up for
    earlier ones.

    Steps that committed 1 and 3 tokens: 1, 1, 3, 3, 3.
    """
    return row.layers if kind == "layers" else (1, *(count for count in row.committed for _ in range(count)))


def _places(pairs: pd.DataFrame, label: str) -> list[Place]:
    names = ("file", "suite", "prompt_id", "turn", "repeat", "session")
    return [
        Place(int(file), suite, prompt_id, int(turn), label, int(repeat), int(session))
        for file, suite, prompt_id, turn, repeat, session in zip(*(pairs[name] for name in names), strict=True)
    ]


def _place_of(places: Sequence[Place], prompt: str, label: str) -> Place:
    """The first one, of the first turn where it has one."""
    found = [place for place in places if prompt in ("", place.prompt_id)]
    if not found:
        known = list(dict.fromkeys(place.prompt_id for place in places))
        more = f" and {len(known) - 5} more" if len(known) > 5 else ""
        raise UserError(f"--prompt {prompt}: {label} has no answer to it. It has: {' '.join(known[:5])}{more}.")
    return min((place for place in found if place.prompt_id == found[0].prompt_id), key=lambda place: place.turn)


def _means(pairs: pd.DataFrame, numbers: Sequence[Sequence[int]], kind: Kind) -> tuple[ByPosition, ...]:
    """`numbers` [pairs] of tokens. A token of a block of n is the n-th part of a step: tokens over the sum of these
    parts are tokens per step. Prefill's token is of no step."""
    longest = max(map(len, numbers))
    reached = np.array([[position < len(each) for position in range(longest)] for each in numbers], dtype=np.float64)
    values = np.array([[*each, *[0] * (longest - len(each))] for each in numbers], dtype=np.float64)
    enough = max(_FEWEST, ceil(_SHARE * len(numbers)))
    kept = reached.sum(axis=0) >= min(enough, len(numbers))
    kept[:2] = True  # prefill's token, and one of a step at least
    reached, values = reached[:, kept], values[:, kept]
    steps = np.divide(1, values, out=np.zeros_like(values), where=values > 0)
    tops, bottoms = (reached, steps) if kind == "block" else (values, reached)
    intervals = bootstrap(tops, bottoms, levels(pairs))
    means = tops.sum(axis=0) / bottoms.sum(axis=0)
    found = (
        ByPosition(position, float(mean), interval, int(count))
        for position, (mean, interval, count) in enumerate(zip(means, intervals, reached.sum(axis=0), strict=True))
    )
    return tuple(each for each in found if each.position or kind == "layers")


_FONT: Final = "monospace"
_ADVANCE = 0.602  # of a character of that font, in heights of the font
_GUTTER = 5.0  # characters, left of each line, for its first position
_PAD = 0.7  # characters around a text in its cell
_GAP = 0.5  # characters between cells
_MOST_LINES: Final = {"screen": 14, "column": 14, "slide": 5}
_MEANS_INCHES: Final = {"screen": 2.0, "column": 1.6, "slide": 2.3}  # inches of height
_SIGNS: Final = {"\n": "↵", "\r": "↵", "\t": "⇥"}
_UNKNOWN = "□"  # for what the font does not have
_LEAST = 0.06  # of a colour's strength, for the smallest number


@dataclass(frozen=True)
class Cell:
    """A token with its position, in lines and characters, and its width."""

    line: int
    left: float
    width: float
    text: str
    number: int


def draw(groups: Sequence[Group], request: Request) -> Drawing:
    """The layers of each token of an answer, or the blocks of a method that drafts, and their mean by position over all
    answers. Shows the first of the chosen methods that has either.

    Raises UserError as `depths` does, and for more groups than there is room for.
    """
    style = request.style
    labels = chosen(groups, request.methods)
    fitting = dict.fromkeys(label for group in groups for label in with_depths(group, labels))
    label, *others = [label for label in labels if label in fitting] or labels[:1]
    shown_groups = [group for group in groups if with_depths(group, [label])] or groups[:1]
    by_group = [(group, depths(group, label, request.prompt, request.decoders)) for group in shown_groups]
    laid_out = [cells(each, _characters(style)) for _, each in by_group]
    shown = [[cell for cell in line if cell.line < _MOST_LINES[style.size]] for line in laid_out]
    heights = [_cells_height(each, style) + _MEANS_INCHES[style.size] for each in shown]
    figure, panels = new_panels(shown_groups, style, heights)
    notes = []
    for panel, (group, each), kept in zip(panels, by_group, shown, strict=True):
        _draw(panel, each, kept, style)
        notes += _notes(group, each, kept)
    if others:
        notes.append(f"the picture is of {label}. It could be of: --method {', '.join(map(quote, others))}.")
    return Drawing(figure, notes)


PLOT = Plot(draw, options=("suites", "methods", "prompt"))


def cells(found: Depths, most: float) -> list[Cell]:
    """The tokens of an answer in lines of up to `most` characters, those of one block side by side without a gap."""
    numbers, answer = found.answer.numbers, found.answer
    texts = [_shown(text) for text in answer.texts] if answer.texts else [""] * len(numbers)
    starts = set(_starts(numbers)) if found.kind == "block" else set(range(len(numbers)))
    laid: list[Cell] = []
    line, left = 0, _GUTTER
    for index, (text, number) in enumerate(zip(texts, numbers, strict=True)):
        width = max(len(text), len(str(number))) + _PAD
        left += _GAP if index in starts and left > _GUTTER else 0.0
        if left + width > most:
            line, left = line + 1, _GUTTER
        laid.append(Cell(line, left, width, text, number))
        left += width
    return laid


def _starts(blocks: Sequence[int]) -> list[int]:
    """Where each block begins: 1 1 3 3 3 2 2 -> 0 1 2 5."""
    found, at = [], 0
    while at < len(blocks):
        found.append(at)
        at += blocks[at]
    return found


def _characters(style: Style) -> float:
    """Of a line as wide as the picture."""
    return style.width * 0.95 * 72 / (style.small * _ADVANCE)


def _notes(group: Group, found: Depths, kept: Sequence[Cell]) -> list[str]:
    notes, numbers = [], found.answer.numbers
    if len(kept) < len(numbers):
        notes.append(f"the picture shows the first {len(kept)} of {len(numbers)} tokens.")
    more = sum(number > group.run.target.layers for number in numbers) if found.kind == "layers" else 0
    if more:
        notes.append(
            f"{more} of {len(numbers)} tokens have more layers than the target's {group.run.target.layers}: their own, "
            "and those caught up for earlier tokens."
        )
    if found.answer.texts is None:
        notes.append("the target's tokenizer is not at hand, so tokens have numbers and no text.")
    return notes


def _cells_height(kept: Sequence[Cell], style: Style) -> float:
    return (kept[-1].line + 1) * _line_inches(kept, style) + 2.4 * line_inches(style)


def _line_inches(kept: Sequence[Cell], style: Style) -> float:
    """A token's text stands above its number."""
    return line_inches(style) * (2.6 if any(cell.text for cell in kept) else 1.4)


def _draw(part: SubFigure, found: Depths, kept: Sequence[Cell], style: Style) -> None:
    above = _cells_height(kept, style)
    top, bottom = part.subplots(2, 1, height_ratios=(above, _MEANS_INCHES[style.size]))
    _draw_cells(top, found, kept, style)
    _draw_means(bottom, found, style)


def _draw_cells(axes: Axes, found: Depths, kept: Sequence[Cell], style: Style) -> None:
    low, high = min(found.answer.numbers), max(found.answer.numbers)
    with_text = any(cell.text for cell in kept)
    firsts = {cell.line: place for place, cell in reversed(list(enumerate(kept, 1)))}
    for line, first in firsts.items():
        axes.text(_GUTTER - 1, line + 0.45, str(first), ha="right", va="center", fontsize=style.small,
                  color=style.muted, family=_FONT)  # fmt: skip
    for cell in kept:
        strength = _LEAST + (1 - _LEAST) * (cell.number - low) / max(high - low, 1)
        ground = style.faded(style.colours[0], strength)
        ink = max((style.ink, style.ground), key=lambda colour: _contrast(colour, ground))
        axes.add_patch(Rectangle((cell.left, cell.line), cell.width, 0.9, facecolor=ground, linewidth=style.line * 0.3,
                                 edgecolor=style.muted))  # fmt: skip
        middle = cell.left + cell.width / 2
        for height, said in ((0.26, cell.text), (0.67, str(cell.number))) if with_text else ((0.45, str(cell.number)),):
            axes.text(middle, cell.line + height, said, ha="center", va="center", fontsize=style.small, color=ink,
                      family=_FONT)  # fmt: skip
    axes.set_xlim(0, _characters(style))
    axes.set_ylim(kept[-1].line + 1, 0)
    axes.axis("off")
    place = found.answer.place
    what = {"layers": "layers run for each token", "block": "tokens that the token's step committed"}[found.kind]
    label = broken_label(found.label, style.text, 0.9 * style.width)
    title = wrapped([f"answer to {place.prompt_id} of {place.suite}: {what}"], style, style.text, 0.9 * style.width)
    axes.set_title(f"{label}\n{title}", loc="left", fontsize=style.text, color=style.ink)


def _draw_means(axes: Axes, found: Depths, style: Style) -> None:
    mark = style.mark(0)
    positions = [each.position + 1 for each in found.means]
    band = {each.position + 1: each.interval for each in found.means if each.interval}
    lows, highs = [each.low for each in band.values()], [each.high for each in band.values()]
    axes.fill_between(list(band), lows, highs, color=style.faded(mark.colour, 0.3), linewidth=0)
    axes.plot(positions, [each.mean for each in found.means], color=mark.colour, linewidth=style.line)
    own = dict(enumerate(found.answer.numbers, 1))
    dots = [position for position in positions if position in own]
    axes.plot(dots, [own[position] for position in dots], ".", color=style.ink, markersize=style.marker * 0.6, zorder=3)
    axes.set_ylim(0, 1.06 * max(*(each.mean for each in found.means), *highs, *(own[position] for position in dots)))
    axes.set_xlim(0.5, positions[-1] + 0.5)
    axes.set_xlabel("token of the answer (the first is prefill's)")
    axes.set_ylabel({"layers": "layers run", "block": "tokens per step"}[found.kind])
    dress(axes, style)
    fewest = min(each.answers for each in found.means)
    said = (
        f"mean of {found.answers} answers, {fewest} of which go on to the end (band: 95% interval; dots: answer above)"
    )
    title = wrapped([said], style, style.small, 0.85 * style.width)
    axes.set_title(title, loc="left", fontsize=style.small, color=style.ink)


def _shown(text: str) -> str:
    """A token's text as it can be drawn: line ends and characters that the font lacks as signs."""
    signs = (_SIGNS.get(character, character) for character in text)
    shown = "".join(
        sign if sign == " " or (sign.isprintable() and ord(sign) in _known()) else _UNKNOWN for sign in signs
    )
    return shown if shown.strip() else "␣" * len(shown)


@cache
def _known() -> frozenset[int]:
    return frozenset(get_font(findfont(_FONT)).get_charmap())


def _contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG 2 has it."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
