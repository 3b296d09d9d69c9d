"""The state of a fast tier: what it holds, what is loaded next, what is evicted, and what is counted.

No tensors, threads or time: the loader's thread (`tiers.Loader`) drives it, and tests can drive it by hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchctl.decoding.experts.policies import Key, Policy


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


@dataclass(frozen=True)
class Transfer:
    """An expert on its way into a slot; ``demanded`` if its layer waits for it, else fetched ahead."""

    key: Key
    slot: int
    demanded: bool


class FastTier:
    """``capacity`` slots. One transfer at a time; what is demanded goes before what is fetched ahead.

    The experts of the present visit stay until the next one, so that neither speed nor chance of the driver changes
    what is evicted. A visit that needs more than ``capacity`` (a long prompt) is a window moving over its experts in
    the order of computing. Fetching ahead never evicts what is itself still to be used; a demand may, as its last
    choice.
    """

    def __init__(self, capacity: int, policy: Policy) -> None:
        if capacity < 1:
            raise ValueError(f"a fast tier of {capacity} experts holds nothing")
        self.capacity = capacity
        self.prefill, self.decode = Counts(), Counts()
        self._policy = policy
        self._slots: dict[Key, int] = {}
        self._free = list(range(capacity))[::-1]
        self._flight: Transfer | None = None
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
        """Whether the expert has arrived."""
        return key in self._slots and not self._flies(key)

    def slot(self, key: Key) -> int:
        return self._slots[key]

    def need(self, layer: int, experts: Sequence[int]) -> None:
        """A pass has reached ``layer`` and needs ``experts``, in the order of computing."""
        self._passes += layer <= self._layer or not self._passes
        self._layer = layer
        keys = [Key(layer, expert) for expert in experts]
        if not self._policy.keeps:
            self._drop_used()
        self._count(keys)
        self._policy.reach(layer)
        for key in keys:
            if key in self._slots:
                self._policy.used(key)
        self._unused.difference_update(keys)
        self._queue = deque(key for key in self._queue if key.layer != layer)
        self._expected.pop(layer, None)
        self._visit = keys

    def want(self, layer: int, experts: Sequence[int]) -> None:
        """Fetch ``experts`` of a ``layer`` still to come in this pass ahead, the likeliest first.

        Said again of a layer, it takes the place of what was said before: what has not been fetched of that is not.
        """
        if layer <= self._layer:
            raise ValueError(f"layer {layer} is not ahead of layer {self._layer}, so nothing can be fetched ahead")
        keys = [Key(layer, expert) for expert in experts]
        self._expected[layer] = set(keys)
        self._queue = deque(key for key in self._queue if key.layer != layer)
        self._queue.extend(key for key in keys if key not in self._slots)

    def next(self) -> Transfer | None:
        """Begin the next transfer; None where nothing is asked for, or no slot can be had, or one is under way."""
        if self._flight is not None:
            return None
        for key in self._window():
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

    def _flies(self, key: Key) -> bool:
        return self._flight is not None and self._flight.key == key

    def _window(self) -> list[Key]:
        return self._visit[: self.capacity]

    def _count(self, keys: Collection[Key]) -> None:
        counts = self.counts
        counts.needed += len(keys)
        counts.ready += sum(map(self.holds, keys))
        counts.late += sum(key in self._queue or self._flies(key) for key in keys)
        expected = self._expected.get(self._layer)
        if expected is not None:
            counts.predicted += len(expected)
            counts.predicted_needed += len(expected.intersection(keys))
            counts.foreseeable += len(keys)

    def _begin(self, key: Key, demanded: bool) -> Transfer | None:
        if not self._free and not self._evict(demanded):
            return None
        if not demanded:
            self._queue.popleft()
            self._unused.add(key)
        self._slots[key] = self._free.pop()
        self._policy.loaded(key)
        if demanded:
            self._policy.used(key)
        self.counts.loads += 1
        self._flight = Transfer(key, self._slots[key], demanded)
        return self._flight

    def _evict(self, demanded: bool) -> bool:
        """Free a slot, if one can be had. There is no transfer under way."""
        window = self._window()
        waiting = set[Key]().union(*self._expected.values())
        candidates = [key for key in self._slots if key not in waiting and key not in window]
        if not candidates and demanded:
            candidates = [key for key in self._slots if key not in window]
        if not candidates:
            return False
        self._drop(self._policy.victim(candidates))
        return True

    def _drop(self, key: Key) -> None:
        self._free.append(self._slots.pop(key))
        self.counts.evicted_unused += key in self._unused
        self._unused.discard(key)

    def _drop_used(self) -> None:
        """Without a cache: let go all but what was fetched ahead for this visit or later ones."""
        waiting = set[Key]().union(*self._expected.values())
        for key in list(self._slots):
            if not self._flies(key) and not (key in self._unused and key in waiting):
                self._drop(key)
