"""One speed-up from several machines, whose times themselves are never put together."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import geometric_mean, stdev

from benchctl.analysis.comparison import Group, differences
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.stats.intervals import LEVEL, Interval, critical

_OF_MACHINE = frozenset({"cpu", "gpu"})


@dataclass(frozen=True)
class Pooled:
    """The speed-up of a method on several machines: the geometric mean of ``each``, and its interval.

    ``of`` names the first file of groups that differ by machine alone.

    Machines are a level of their own: the interval is Student's t over the logarithms of their speed-ups. It is of the
    mean over machines like these; a single one may lie outside. Two machines make it very wide.
    """

    of: str
    label: str
    each: tuple[float, ...]

    @property
    def value(self) -> float:
        return geometric_mean(self.each)

    @property
    def interval(self) -> Interval:
        half_width = critical(LEVEL, len(self.each) - 1) * stdev(map(log, self.each)) / sqrt(len(self.each))
        return Interval(self.value * exp(-half_width), self.value * exp(half_width))


def _other_machine(one: Group, other: Group) -> bool:
    """Whether all files of one group differ from all of the other by machine, and by nothing else."""
    found = [{each.field for each in differences(ours.run, theirs.run)} for ours in one.files for theirs in other.files]
    return all(fields and fields <= _OF_MACHINE for fields in found)


def by_machine(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups, those together that differ by machine alone."""
    found: list[list[Group]] = []
    for group in groups:
        for others in found:
            if all(_other_machine(one, group) for one in others):
                others.append(group)
                break
        else:
            found.append([group])
    return found


def pooled_speedups(groups: Sequence[Group]) -> tuple[Pooled, ...]:
    """Of each label that was measured on several machines and with equal settings; highest first."""
    pooled = []
    for alike in by_machine(groups):
        found: dict[str, list[float]] = {}
        for method in (method for group in alike for method in group.pooled.methods):
            value = method.estimate(SPEEDUP).value
            if not method.is_baseline and not method.refused and value:
                found.setdefault(method.label, []).append(value)
        of = str(alike[0].files[0].path)
        each = [Pooled(of, label, tuple(values)) for label, values in found.items() if len(values) > 1]
        pooled += sorted(each, key=lambda one: -one.value)
    return tuple(pooled)
