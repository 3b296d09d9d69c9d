"""Which expert leaves a full fast tier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping
from typing import ClassVar, Final, Literal, NamedTuple, get_args

PolicyName = Literal["on_demand", "lru", "lfu", "least_stale"]


class Key(NamedTuple):
    """An expert of a layer."""

    layer: int
    expert: int


class Policy(ABC):
    """Chooses the expert to evict; it is called for every visit of a layer, every load and every use.

    keeps  whether an expert stays after its use; without, each is loaded every time it is needed
    """

    keeps: ClassVar[bool] = True

    def reach(self, layer: int) -> None:  # noqa: B027 optional
        """A pass has reached this layer; one that is not behind the last one begins a new pass."""

    def loaded(self, key: Key) -> None:  # noqa: B027 optional
        """An expert's transfer has begun."""

    def used(self, key: Key) -> None:  # noqa: B027 optional
        """The layer just reached needs this expert."""

    @abstractmethod
    def victim(self, candidates: Collection[Key]) -> Key:
        """The one of ``candidates`` to evict; they are never empty."""


class _Recency(Policy):
    """Remembers when each expert was last loaded or used."""

    def __init__(self) -> None:
        self._now = 0
        self._last: dict[Key, int] = {}

    def loaded(self, key: Key) -> None:
        self._now += 1
        self._last[key] = self._now

    def used(self, key: Key) -> None:
        self.loaded(key)


class Lru(_Recency):
    """Evicts what was loaded or used longest ago. Example: a b c used in this order, then a again: evicts b."""

    def victim(self, candidates: Collection[Key]) -> Key:
        return min(candidates, key=self._last.__getitem__)


class OnDemand(Lru):
    """No cache: nothing stays after its use. Only experts fetched ahead and not yet used can be in the way."""

    keeps = False


class Lfu(_Recency):
    """Evicts what was used least often since the generation began, evicted times included; of those the oldest."""

    def __init__(self) -> None:
        super().__init__()
        self._uses: Counter[Key] = Counter()

    def used(self, key: Key) -> None:
        super().used(key)
        self._uses[key] += 1

    def victim(self, candidates: Collection[Key]) -> Key:
        return min(candidates, key=lambda key: (self._uses[key], self._last[key]))


class LeastStale(_Recency):
    """Evicts stale experts first, and among equals the one whose layer comes up last.

    After Least-Stale of Hoang et al.: SpecMD: A Comprehensive Study On Speculative Expert Prefetching, 2026, arXiv
    2602.03921. Experts are current (touched in this pass over the layers) or stale (last touched in an earlier pass).
    Stale ones go first, and the order of the layers, not recency, shows what is needed next. Only the abstract and the
    introduction of the paper were at hand, so the order within each group is ours: by the distance from the present
    layer to theirs, around the end of the pass; of equal ones the one touched earliest goes. A prefetch touches.

    Example: three layers, layer 1 reached, experts of layers 0 and 2 stale: layer 2 comes next, so that of 0 goes.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self._layers, self._layer, self._pass = layers, -1, 0
        self._touched: dict[Key, int] = {}

    def reach(self, layer: int) -> None:
        self._pass += layer <= self._layer
        self._layer = layer

    def loaded(self, key: Key) -> None:
        super().loaded(key)
        self._touched[key] = self._pass

    def victim(self, candidates: Collection[Key]) -> Key:
        return min(candidates, key=self._rank)

    def _rank(self, key: Key) -> tuple[bool, int, int]:
        ahead = (key.layer - self._layer) % self._layers
        return self._touched[key] == self._pass, -ahead, self._last[key]


def policy_of(name: PolicyName, layers: int) -> Policy:
    """A fresh policy for a target of so many layers."""
    makers: Mapping[str, type[Policy]] = {"on_demand": OnDemand, "lru": Lru, "lfu": Lfu}
    return LeastStale(layers) if name == "least_stale" else makers[name]()


POLICIES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
