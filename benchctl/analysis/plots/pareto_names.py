"""How methods are named in a Pareto plot: with words beside their dots where these fit, else with numbers and a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchctl.analysis.comparison import label_lines
from benchctl.analysis.html.plot import short_labels
from benchctl.analysis.plots.pareto_view import Dot, View, named_first

BADGE = "✓"  # stands before lossless methods, so that they are told without colour too
_NUMBERS = (24, 18, 14, 11, 8, 6, 4)  # how many a key may explain: one of more is no longer read
_MOST_WORDS = 16  # beside dots that are not in the band, and twice as many there


@dataclass(frozen=True)
class Names:
    """`words` are name and options of each method; `numbers` those that the key explains, if dots have numbers;
    with `only_best` a panel shows no numbers but of those that nothing beats there. `curves` is whether the key tells
    curves apart."""

    words: Mapping[str, tuple[str, ...]]
    numbers: Mapping[str, int] = field(default_factory=dict)
    only_best: bool = False
    curves: bool = True

    def in_band(self, dot: Dot) -> str:
        """Beside a dot of the band: on one line, without the interval, which can be seen there."""
        if self.numbers:
            return self._number(dot)
        return f"{badge(dot)}{' '.join(self.words[dot.label])}  {dot.speed}"

    def beside(self, dot: Dot) -> str:
        """Beside a dot elsewhere; with the speed-up in numbers, because bars hide each other there."""
        if self.numbers:
            return self._number(dot)
        name, *options = self.words[dot.label]
        return "\n".join([badge(dot) + name, *options, dot.speed_and_interval])

    def in_key(self, dot: Dot, with_speed: bool) -> str:
        """Of a numbered method; its speed-up, where there is but one panel."""
        speed = f"  {dot.speed}" if with_speed else ""
        return f"{self.numbers[dot.label]}  {badge(dot)}{' '.join(self.words[dot.label])}{speed}"

    def _number(self, dot: Dot) -> str:
        return "" if self.only_best and not dot.best else str(self.numbers.get(dot.label, ""))


def badge(dot: Dot) -> str:
    return f"{BADGE} " if dot.look == "lossless" else ""


def namings(views: Sequence[View], short: bool) -> Iterator[Names]:
    """Ways to name, the fuller first: all in words, in words without options that tell nothing apart (if `short`, only
    so), all by number, and fewer and fewer by number, then only those that nothing beats, last without telling curves
    apart. The baseline has no number."""
    order = list(dict.fromkeys(dot.label for view in views for dot in view.dots))
    full = {label: label_lines(label) for label in order}
    brief = {label: tuple(text.split(" ")) for label, text in short_labels(order).items()}
    if len(views) == 1 and len(views[0].free) <= _MOST_WORDS and len(views[0].band) <= 2 * _MOST_WORDS:
        if not short:
            yield Names(full)
        yield Names(brief)
    ranked = named_first(views)
    fewest = max(1, len({dot.label for view in views for dot in view.dots if dot.best and dot.label in ranked}))
    counts = {min(len(ranked), most) for most in _NUMBERS if most > fewest} | {fewest}
    words = brief if short else full
    for count in sorted(counts, reverse=True):
        yield Names(words, _numbered(order, ranked[:count]))
    leading = _numbered(order, ranked[:fewest])
    yield Names(words, leading, only_best=True)
    if any(view.swept for view in views):
        yield Names(words, leading, only_best=True, curves=False)


def _numbered(order: Sequence[str], told: Sequence[str]) -> dict[str, int]:
    """From 1, in the order of the run."""
    return {label: number for number, label in enumerate((one for one in order if one in told), 1)}
