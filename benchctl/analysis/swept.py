"""Labels of one method as lines: along an option that they differ in, a line for all that they differ in besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchctl.analysis.chosen import chosen
from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.metrics import ACCEPTANCE_RATE, BLOCK_EFFICIENCY, SPEEDUP, TOKEN_AGREEMENT, Metric
from benchctl.errors import UserError
from benchctl.records import MethodInfo, Scalar

_LEFT_OUT = "–"  # an option that another version of the method does not have


@dataclass(frozen=True)
class Line:
    """Labels that differ in the swept option alone, by its value; `title` says what sets them apart from other lines,
    "" where there is no other."""

    title: str
    points: Mapping[Scalar, MethodFigures]


@dataclass(frozen=True)
class Sweep:
    """`values` of the option, in their order: of numbers, or as they were measured. `beside` is what is told beside the
    speed-up: what a lossy method loses, or what the steps of one that drafts yield; None for others."""

    group: Group
    name: str
    option: str
    values: tuple[Scalar, ...]
    lines: tuple[Line, ...]
    beside: Metric | None

    @property
    def methods(self) -> tuple[MethodFigures, ...]:
        """Those of all lines."""
        return tuple(method for line in self.lines for method in line.points.values())

    @property
    def is_numeric(self) -> bool:
        return _all_numbers(self.values)


def sweeps(groups: Sequence[Group], wanted: Sequence[str] = (), option: str = "") -> tuple[Sweep, ...]:
    """The sweep of one method in each of `groups` that has measured it: of the first of the `wanted` ones (see chosen)
    of which any group has labels that differ in an option. It goes along `option` or, if not given, along the number
    among its options that has most values, or along another option where no number differs.

    Raises UserError where no method was swept, and for an option in which its labels do not differ.
    """
    labels = chosen(groups, wanted)
    names = swept_names(groups, labels)
    if not names:
        whose = " ".join(wanted) or "any method"
        raise UserError(
            f"{groups[0].files[0].path}: has no labels of {whose} that differ in an option. Measure some: "
            "benchctl run --sweep 'two_model[draft_tokens=2|4|8]'."
        )
    by_group = [(group, _by_name(group, labels).get(names[0], [])) for group in groups]
    swept = [(group, methods) for group, methods in by_group if _differing(methods)]
    return tuple(_sweep(group, methods, option) for group, methods in swept)


def swept_names(groups: Sequence[Group], labels: Sequence[str]) -> tuple[str, ...]:
    """The methods of which any group has measured several of `labels`."""
    found = (name for group in groups for name, methods in _by_name(group, labels).items() if _differing(methods))
    return tuple(dict.fromkeys(found))


def _sweep(group: Group, methods: Sequence[MethodInfo], option: str) -> Sweep:
    options = _differing(methods)
    if option and option not in options:
        raise UserError(
            f"--by {option}: the labels of {methods[0].name} do not differ in it. They do in: {' '.join(options)}."
        )
    along = option or max(options, key=lambda each: (_all_numbers(options[each]), len(options[each])))
    values = options[along]
    figures = {method.label: method for method in group.pooled.methods}
    return Sweep(
        group=group,
        name=methods[0].name,
        option=along,
        values=tuple(sorted(values, key=_order)) if _all_numbers(values) else values,
        lines=_lines(methods, along, [each for each in options if each != along], figures),
        beside=_beside([figures[method.label] for method in methods]),
    )


def _by_name(group: Group, labels: Sequence[str]) -> dict[str, list[MethodInfo]]:
    """The methods of these labels that have a speed-up, by their names, as `labels` has them."""
    told = {method.label for method in group.pooled.methods if method.estimate(SPEEDUP).value is not None}
    infos = {method.label: method for method in group.methods if method.label in told}
    found: dict[str, list[MethodInfo]] = {}
    for label in labels:
        if label in infos and label != group.run.baseline:
            found.setdefault(infos[label].name, []).append(infos[label])
    return found


def _differing(methods: Sequence[MethodInfo]) -> dict[str, tuple[Scalar, ...]]:
    """The values of each option that has several, as the labels have them in turn."""
    names = dict.fromkeys(name for method in methods for name in method.options)
    values = {name: tuple(dict.fromkeys(_value(method, name) for method in methods)) for name in names}
    return {name: found for name, found in values.items() if len(found) > 1}


def _lines(
    methods: Sequence[MethodInfo], along: str, others: Sequence[str], figures: Mapping[str, MethodFigures]
) -> tuple[Line, ...]:
    found: dict[tuple[Scalar, ...], dict[Scalar, MethodFigures]] = {}
    for method in methods:
        key = tuple(_value(method, name) for name in others)
        found.setdefault(key, {})[_value(method, along)] = figures[method.label]
    return tuple(
        Line(", ".join(f"{name}={text(value)}" for name, value in zip(others, key, strict=True)), points)
        for key, points in sorted(found.items(), key=lambda item: [_order(value) for value in item[0]])
    )


def _beside(methods: Sequence[MethodFigures]) -> Metric | None:
    if any(method.exactness == "lossy" for method in methods):
        return (
            TOKEN_AGREEMENT if any(method.estimate(TOKEN_AGREEMENT).value is not None for method in methods) else None
        )
    drafts = any(method.estimate(ACCEPTANCE_RATE).value is not None for method in methods)
    return BLOCK_EFFICIENCY if drafts else None


def text(value: Scalar) -> str:
    """A value of an option as labels write it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _value(method: MethodInfo, name: str) -> Scalar:
    return method.options.get(name, _LEFT_OUT)


def _all_numbers(values: Sequence[Scalar]) -> bool:
    return all(map(_is_number, values))


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order(value: Scalar) -> tuple[bool, float, str]:
    """Numbers by their size, before all else in alphabetical order."""
    return (False, float(value), "") if isinstance(value, int | float) else (True, 0.0, text(value))
