"""Which labels are one curve: a lossy method run several times, with one number among its options changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchctl.records.schema import MethodInfo

_FEWEST = 3  # two points are no curve
_FIRST = "threshold"  # where options have several numbers that would each make a curve


@dataclass(frozen=True)
class Curve:
    """`labels` in the order of the option that they differ in; `title` is what they have in common, and that option."""

    labels: tuple[str, ...]
    title: str


def curves(methods: Sequence[MethodInfo]) -> tuple[Curve, ...]:
    """The curves among these methods, each of which is on one at most; options that labels leave out count too."""
    left, found = list(methods), []
    for option in _numbers(methods):
        for alike in _alike(left, option):
            if len({method.options[option] for method in alike}) >= _FEWEST:
                left = [method for method in left if method not in alike]
                found.append(_curve(alike, option))
    order = {method.label: place for place, method in enumerate(methods)}
    return tuple(sorted(found, key=lambda curve: min(order[label] for label in curve.labels)))


def _numbers(methods: Sequence[MethodInfo]) -> list[str]:
    names = {name for method in methods for name, value in method.options.items() if _is_number(value)}
    return sorted(names, key=lambda name: (name != _FIRST, name))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _alike(methods: Sequence[MethodInfo], option: str) -> list[list[MethodInfo]]:
    """Methods of one name and of equal options but for `option`."""
    groups: dict[object, list[MethodInfo]] = {}
    for method in methods:
        if _is_number(method.options.get(option)):
            groups.setdefault((method.name, _others(method.options, option)), []).append(method)
    return list(groups.values())


def _others(options: Mapping[str, object], option: str) -> frozenset[tuple[str, str]]:
    return frozenset((name, repr(value)) for name, value in options.items() if name != option)


def _curve(methods: Sequence[MethodInfo], option: str) -> Curve:
    ordered = sorted(methods, key=lambda method: float(str(method.options[option])))
    said = max((method.label for method in methods), key=len)
    name, _, options = said.partition("[")
    common = [part for part in options.rstrip("]").split(",") if part and not part.startswith(f"{option}=")]
    return Curve(tuple(method.label for method in ordered), f"{' '.join([name, *common])}, by {option}")
