"""The best of many labels of one method, and what it is worth that it was chosen."""

from collections.abc import Iterator, Sequence

from benchctl.analysis.frame.comparison import Group, MethodFigures
from benchctl.analysis.metrics.metric import SPEEDUP
from benchctl.analysis.stats.bootstrap import Interval
from benchctl.analysis.stats.winner import Contest, contest

_FEWEST = 3  # two labels are a comparison, not a search


def best_of_sweeps(group: Group, floor: float = 0.0) -> Iterator[str]:
    """For each method of several labels the one whose speed-up has the highest lower bound, over all suites, of those
    that no other one beats, and how many of them it may be no faster than: by the pairs of the contest that names the
    fastest of all methods, so that a table says one thing of two labels.

    Lossy labels have no best: the fastest is the one that loses most. They are a curve, for benchctl plot --pareto.
    """
    found = contest(group, floor)
    by_name: dict[str, list[MethodFigures]] = {}
    for method in found.methods:
        if method.estimate(SPEEDUP).interval:
            by_name.setdefault(method.label_lines[0], []).append(method)
    for name, labels in by_name.items():
        unbeaten = [method for method in labels if not found.is_beaten(method, labels)]
        if len(labels) >= _FEWEST and unbeaten:
            best = max(unbeaten, key=lambda method: _interval(method).low)
            yield (
                f"of {len(labels)} labels of {name} the best by the lower end of its interval is {best.label}: "
                f"{best.estimate(SPEEDUP).value or 0:.2f}x [{_interval(best).low:.2f}, {_interval(best).high:.2f}]. "
                f"{_told(found, best, labels)} It was chosen on these prompts, which flatters it: measure it again on "
                "others."
            )


def _interval(method: MethodFigures) -> Interval:
    interval = method.estimate(SPEEDUP).interval
    assert interval is not None
    return interval


def _told(found: Contest, best: MethodFigures, labels: Sequence[MethodFigures]) -> str:
    """What tells it from the other labels."""
    slower = sum((best.label, other.label) in found.beats for other in labels)
    return f"Of the {len(labels) - 1} others {slower} {'is' if slower == 1 else 'are'} slower beyond doubt."
