"""What a cell of a table shows, and which cells stand together; the only place that knows how numbers look."""

from collections.abc import Callable
from dataclasses import dataclass

from benchctl.analysis.frame.comparison import Estimate, MethodFigures
from benchctl.analysis.metrics.metric import Metric

NONE = "–"


@dataclass(frozen=True)
class Column:
    title: str
    cell: Callable[[MethodFigures], str]


@dataclass(frozen=True)
class Block:
    """Columns that belong together and fit into 80 characters."""

    title: str
    columns: tuple[Column, ...]


def number(metric: Metric, pattern: str, scale: float = 1) -> Callable[[MethodFigures], str]:
    def cell(method: MethodFigures) -> str:
        value = method.estimate(metric).value
        return NONE if value is None else pattern.format(value * scale)

    return cell


def ratio(metric: Metric) -> Callable[[MethodFigures], str]:
    """How many times the baseline's, with its interval."""

    def cell(method: MethodFigures) -> str:
        estimate = method.estimate(metric)
        if method.is_baseline or estimate.value is None:
            return "baseline" if method.is_baseline else NONE
        interval = estimate.interval
        spread = "n/a" if interval is None else f"{interval.low:.2f}, {interval.high:.2f}"
        return f"{estimate.value:.2f}x [{spread}]"

    return cell


def share(metric: Metric, pattern: str) -> Callable[[MethodFigures], str]:
    return lambda method: spread(method.estimate(metric), pattern)


def spread(estimate: Estimate, pattern: str) -> str:
    """A value with its interval."""
    if estimate.value is None:
        return NONE
    interval = estimate.interval
    ends = "n/a" if interval is None else f"{interval.low:{pattern}}, {interval.high:{pattern}}"
    return f"{estimate.value:{pattern}} [{ends}]"
