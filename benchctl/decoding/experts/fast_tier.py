"""The state of a fast tier, without tensors, threads or time: held, loaded next, evicted by a policy, counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal, NamedTuple

PolicyName = Literal["on_demand", "lru", "lfu", "least_stale"]


class Key(NamedTuple):
    """An expert of a layer."""

    layer: int
    expert: int


class Policy(ABC):
    """Chooses the expert to evict; it is called for every visit of a layer, every load and every use."""

    keeps: ClassVar[bool] = True  # whether an expert stays after its use; otherwise each use loads it

    def __init__(self) -> None:
        self._now = 0
        self._last: dict[Key, int] = {}  # when each expert was last loaded or used

    def reach(self, layer: int) -> None:  # noqa: B027 optional
        """A pass has reached this layer; one that is not behind the last one begins a new pass."""

    def loaded(self, key: Key) -> None:
        """An expert's transfer has begun."""
        self._now += 1
        self._last[key] = self._now

    def used(self, key: Key) -> None:
        """The layer just reached needs this expert."""
        self.loaded(key)

    @abstractmethod
    def victim(self, candidates: Collection[Key]) -> Key:
        """The one of ``candidates`` to evict; they are never empty."""


class Lru(Policy):
    """Evicts what was loaded or used longest ago."""

    def victim(self, candidates: Collection[Key]) -> Key:
        return min(candidates, key=self._last.__getitem__)


class OnDemand(Lru):
    """No cache: nothing stays after its use. Only experts fetched ahead and not yet used can be in the way."""

    keeps = False


class Lfu(Policy):
    """Evicts what was used least often since the generation began, evicted times included; of those the oldest."""

    def __init__(self) -> None:
        super().__init__()
        self._uses: Counter[Key] = Counter()

    def used(self, key: Key) -> None:
        super().used(key)
        self._uses[key] += 1

    def victim(self, candidates: Collection[Key]) -> Key:
        return min(candidates, key=lambda key: (self._uses[key], self._last[key]))


class LeastStale(Policy):
    """Evicts stale experts first (not touched in this pass over the layers), then those whose layer comes up last.

    After Least-Stale of Hoang et al.: SpecMD: A Comprehensive Study On Speculative Expert Prefetching, 2026, arXiv
    2602.03921. Only its abstract and introduction were at hand, so the order within each group is ours: by the distance
    from the present layer to theirs, around the end of the pass, then the one touched earliest. A prefetch touches.
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
        def rank(key: Key) -> tuple[bool, int, int]:
            return self._touched[key] == self._pass, -((key.layer - self._layer - 1) % self._layers), self._last[key]

        return min(candidates, key=rank)


def policy_of(name: PolicyName, layers: int) -> Policy:
    if name == "least_stale":
        return LeastStale(layers)
    return {"on_demand": OnDemand, "lru": Lru, "lfu": Lfu}[name]()


@dataclass
class Counts:
    """Sums over the visits of layers: how often experts were needed, and how it stood with them then.

    needed            experts needed, counted at each visit
    ready             of those, in the fast tier at the moment of need
    late              of those, requested ahead but not yet there
    loads             transfers begun
    evicted_unused    experts fetched ahead and evicted before any use, wrongly predicted ones included
    predicted         experts predicted for visits that had a prediction
    predicted_needed  of those, needed
    foreseeable       experts needed at visits that had a prediction
    stall_s           seconds that the computation waited for experts
    """

    needed: int = 0
    ready: int = 0
    late: int = 0
    loads: int = 0
    evicted_unused: int = 0
    predicted: int = 0
    predicted_needed: int = 0
    foreseeable: int = 0
    stall_s: float = 0.0

    def as_numbers(self) -> Mapping[str, float]:
        return {name: float(value) for name, value in asdict(self).items()}


class FastTier:
    """``capacity`` slots, one transfer at a time; what is demanded goes before what is fetched ahead.

    Experts of the present visit stay until the next one. So without fetching ahead, timing never changes what is
    evicted. A visit that needs more than ``capacity`` is a window moving over its experts in the order of computing.
    Fetching ahead never evicts what is still to be used; a demand may, as its last choice.
    """

    def __init__(self, capacity: int, policy: Policy) -> None:
        if capacity < 1:
            raise ValueError(f"a fast tier of {capacity} experts holds nothing")
        self.capacity = capacity
        self.prefill, self.decode = Counts(), Counts()
        self._policy = policy
        self._slots: dict[Key, int] = {}
        self._free = list(range(capacity))[::-1]
        self._flight: Key | None = None
        self._queue: deque[Key] = deque()
        self._expected: dict[int, set[Key]] = {}  # by layers not yet reached in this pass
        self._unused: set[Key] = set()
        self._visit: list[Key] = []
        self._layer, self._passes = -1, 0

    @property
    def counts(self) -> Counts:
        """Those of the present phase: the first pass is prefill."""
        return self.prefill if self._passes <= 1 else self.decode

    def holds(self, key: Key) -> bool:
        return key in self._slots and key != self._flight

    def slot(self, key: Key) -> int:
        return self._slots[key]

    def need(self, layer: int, experts: Sequence[int]) -> None:
        """A pass has reached ``layer`` and needs ``experts``, in the order of computing."""
        self._passes += layer <= self._layer or not self._passes
        self._layer = layer
        keys = [Key(layer, expert) for expert in experts]
        if not self._policy.keeps:  # let go all but what was fetched ahead for this visit or later ones
            waiting = set[Key]().union(*self._expected.values())
            for key in list(self._slots):
                if key != self._flight and not (key in self._unused and key in waiting):
                    self._drop(key)
        counts, expected = self.counts, self._expected.get(layer)
        counts.needed += len(keys)
        counts.ready += sum(map(self.holds, keys))
        counts.late += sum(key in self._queue or key == self._flight for key in keys)
        if expected is not None:
            counts.predicted += len(expected)
            counts.predicted_needed += len(expected.intersection(keys))
            counts.foreseeable += len(keys)
        self._policy.reach(layer)
        for key in keys:
            if key in self._slots:
                self._policy.used(key)
        self._unused.difference_update(keys)
        self._queue = deque(key for key in self._queue if key.layer != layer)
        self._expected.pop(layer, None)
        self._visit = keys

    def want(self, layer: int, experts: Sequence[int]) -> None:
        """Fetch ``experts`` of a coming ``layer`` ahead, the likeliest first, in place of those wanted before."""
        if layer <= self._layer:
            raise ValueError(f"layer {layer} is not ahead of layer {self._layer}, so nothing can be fetched ahead")
        keys = [Key(layer, expert) for expert in experts]
        self._expected[layer] = set(keys)
        self._queue = deque(key for key in self._queue if key.layer != layer)
        self._queue.extend(key for key in keys if key not in self._slots)

    def next(self) -> Key | None:
        """Begin the next transfer; None where nothing is asked for, or no slot can be had, or one is under way."""
        if self._flight is not None:
            return None
        for key in self._visit[: self.capacity]:
            if key not in self._slots:
                return self._begin(key, demanded=True)
        while self._queue:
            if self._queue[0] not in self._slots:
                return self._begin(self._queue[0], demanded=False)
            self._queue.popleft()
        return None

    def arrive(self) -> None:
        """The transfer under way is complete."""
        self._flight = None

    def done(self, key: Key) -> None:
        """An expert of the present visit has been computed; with more of them than slots its own is free to go."""
        if len(self._visit) > self.capacity:
            self._visit.remove(key)

    def _begin(self, key: Key, demanded: bool) -> Key | None:
        if not self._free:
            window = self._visit[: self.capacity]
            waiting = set[Key]().union(*self._expected.values())
            candidates = [key for key in self._slots if key not in waiting and key not in window]
            if not candidates and demanded:
                candidates = [key for key in self._slots if key not in window]
            if not candidates:
                return None
            self._drop(self._policy.victim(candidates))
        if not demanded:
            self._queue.popleft()
            self._unused.add(key)
        self._slots[key] = self._free.pop()
        self._policy.loaded(key)
        if demanded:
            self._policy.used(key)
        self.counts.loads += 1
        self._flight = key
        return key

    def _drop(self, key: Key) -> None:
        self._free.append(self._slots.pop(key))
        self.counts.evicted_unused += key in self._unused
        self._unused.discard(key)
