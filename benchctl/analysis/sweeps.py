"""The best of many labels of one method, and what it is worth that it was chosen."""

from collections.abc import Iterator

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.fidelity import claims_exact
from benchctl.analysis.metrics import SPEEDUP

_FEWEST = 3  # two labels are a comparison, not a search


def best_of_sweeps(group: Group) -> Iterator[str]:
    """For each method of several exact labels the one whose speed-up has the highest lower bound, over all suites.

    Lossy labels have no best: the fastest is the one that loses most. They are a curve, for benchctl plot --pareto.
    """
    by_name: dict[str, list[MethodFigures]] = {}
    for method in group.pooled.methods:
        if claims_exact(method.exactness, group.run.temperature):
            by_name.setdefault(method.label_lines[0], []).append(method)
    for name, methods in by_name.items():
        found = [(interval.low, method) for method in methods if (interval := method.estimate(SPEEDUP).interval)]
        if len(found) < _FEWEST:
            continue
        best = max(found, key=lambda pair: pair[0])[1]
        estimate = best.estimate(SPEEDUP)
        assert estimate.value is not None and estimate.interval is not None
        yield (
            f"of {len(methods)} labels of {name} the best by the lower end of its interval is {best.label}: "
            f"{estimate.value:.2f}x [{estimate.interval.low:.2f}, {estimate.interval.high:.2f}]. It was chosen on "
            "these prompts, which flatters it: measure it again on others."
        )
