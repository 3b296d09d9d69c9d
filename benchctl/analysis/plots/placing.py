"""Where labels go beside their points: off each other, off the points, inside the picture. Pure geometry."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_AWAY = np.array([14.0, 24, 40, 60, 85, 110, 140, 180])  # from the point to the edge of its label
_ASIDE = np.array([0.0, 0.3, -0.3, 0.6, -0.6, 1.0, -1.0])  # of the label's middle, in widths of the label
_SHORT = 4.0  # heights: a label less wide than that, such as a number, goes as far aside as one of that width
_ASKEW_COST = 0.6  # of a unit aside: a label straight above or below its point is plainly that point's
_COVER_COST = 1e3  # of a unit of covered area, so that any longer way is better
_CROSS_COST = 1e5  # of a point of a line that lies under something
_LINE = np.linspace(0.1, 0.9, 7)
_CHOICES = 60  # of the places around a point: those that cost least if no other label is in the way
_ORDERS = 30
_ROUNDS = 5


@dataclass(frozen=True)
class Box:
    """A rectangle; y grows upwards."""

    left: float
    bottom: float
    right: float
    top: float


@dataclass(frozen=True)
class Label:
    """A text of `width` x `height` that belongs to the point (x, y)."""

    x: float
    y: float
    width: float
    height: float

    def line_end(self, place: Box) -> tuple[float, float]:
        """Where a line from the point meets the label at `place`."""
        return min(max(self.x, place.left), place.right), min(max(self.y, place.bottom), place.top)


def place(labels: Sequence[Label], obstacles: Sequence[Box], area: Box, unit: float = 1.0) -> tuple[Box, ...]:
    """A box for each label: near its point, above or below, within `area`, off obstacles, other labels and their lines.
    Distances are meant for points 15 x `unit` wide.

    Where there is no room, little is covered. Labels choose one after the other, and again when all have chosen; the
    best of some orders, drawn with a fixed seed, counts. So the same labels always get the same places.
    """
    everywhere = [_Places.around(label, unit) for label in labels]
    costs = [_cost_alone(label, own, obstacles, area) for label, own in zip(labels, everywhere, strict=True)]
    cheapest = [np.argsort(cost, kind="stable")[:_CHOICES] for cost in costs]
    places = [own.only(kept) for own, kept in zip(everywhere, cheapest, strict=True)]
    alone = [cost[kept] for cost, kept in zip(costs, cheapest, strict=True)]
    between = {(i, j): _cost_between(places[i], places[j]) for i, j in combinations(range(len(labels)), 2)}
    between |= {(j, i): cost.T for (i, j), cost in between.items()}
    rng = np.random.default_rng(0)
    orders = [rng.permutation(len(labels)) for _ in range(_ORDERS)]
    chosen = min((_choose(order, alone, between) for order in orders), key=lambda found: _total(found, alone, between))
    return tuple(Box(*own.boxes[chosen[index]].tolist()) for index, own in enumerate(places))


@dataclass(frozen=True)
class _Places:
    """The places a label may take: `boxes` [K, 4] as in Box, `lines` [K, P, 2] from its point to them, as points."""

    boxes: Array
    lines: Array
    remoteness: Array

    @classmethod
    def around(cls, label: Label, unit: float) -> "_Places":
        away, aside, side = (grid.ravel() for grid in np.meshgrid(_AWAY * unit, _ASIDE, [1.0, -1.0], indexing="ij"))
        reach = max(label.width, _SHORT * label.height)
        shift = np.column_stack([aside * reach, side * (away + label.height / 2)])
        half = np.array([label.width, label.height]) / 2
        boxes = np.concatenate([shift - half, shift + half], axis=1)
        way = np.clip(0.0, boxes[:, :2], boxes[:, 2:])
        point = np.array([label.x, label.y])
        remoteness = np.hypot(way[:, 0], way[:, 1]) + _ASKEW_COST * np.abs(shift[:, 0])
        return cls(boxes + np.tile(point, 2), point + way[:, None] * _LINE[:, None], remoteness)

    def only(self, kept: NDArray[np.int64]) -> "_Places":
        return _Places(self.boxes[kept], self.lines[kept], self.remoteness[kept])


def _cost_alone(label: Label, own: _Places, obstacles: Sequence[Box], area: Box) -> Array:
    """What each place of a label costs, whatever the other labels do; [K]."""
    boxes = np.array([_row(box) for box in obstacles]).reshape(-1, 4)
    point = np.array([[label.x, label.y]])
    foreign = boxes[~_inside(point, boxes)[0]]
    covered = _shared_areas(own.boxes, boxes).sum(axis=1)
    outside = label.width * label.height - _shared_areas(own.boxes, np.array([_row(area)]))[:, 0]
    crossed = _inside(own.lines, foreign).sum(axis=(1, 2))
    return np.asarray(own.remoteness + _COVER_COST * (covered + outside) + _CROSS_COST * crossed)


def _cost_between(one: _Places, other: _Places) -> Array:
    """What each place of one label costs for each place of another; [K, K]."""
    covered = _shared_areas(one.boxes, other.boxes)
    crossed = _inside(one.lines, other.boxes).sum(axis=1) + _inside(other.lines, one.boxes).sum(axis=1).T
    return np.asarray(_COVER_COST * covered + _CROSS_COST * crossed)


def _choose(order: NDArray[np.int64], alone: list[Array], between: dict[tuple[int, int], Array]) -> dict[int, int]:
    """The place each label takes when they choose in `order`, and then again until none moves."""
    chosen: dict[int, int] = {}
    for _ in range(_ROUNDS):
        before = dict(chosen)
        for label in map(int, order):
            costs = [between[label, other][:, taken] for other, taken in chosen.items() if other != label]
            chosen[label] = int(np.argmin(sum(costs, alone[label])))
        if chosen == before:
            break
    return chosen


def _total(chosen: dict[int, int], alone: list[Array], between: dict[tuple[int, int], Array]) -> float:
    pairs = combinations(chosen, 2)
    shared = sum(float(between[one, other][chosen[one], chosen[other]]) for one, other in pairs)
    return shared + sum(float(alone[label][taken]) for label, taken in chosen.items())


def _row(box: Box) -> tuple[float, float, float, float]:
    return box.left, box.bottom, box.right, box.top


def _shared_areas(ones: Array, others: Array) -> Array:
    """[K, 4] and [L, 4] -> [K, L]."""
    left, bottom, right, top = ones.T[:, :, None]
    wide = np.minimum(right, others[:, 2]) - np.maximum(left, others[:, 0])
    high = np.minimum(top, others[:, 3]) - np.maximum(bottom, others[:, 1])
    return np.asarray(np.maximum(wide, 0) * np.maximum(high, 0))


def _inside(points: Array, boxes: Array) -> NDArray[np.bool_]:
    """Which of points [..., 2] lie in which of boxes [L, 4]; [..., L]."""
    x, y = points[..., 0, None], points[..., 1, None]
    left, bottom, right, top = boxes.T
    return np.asarray((x >= left) & (x <= right) & (y >= bottom) & (y <= top))
