"""Where experts live: a slow tier that has all of them, a fast one of a few slots, and a thread that moves them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from benchctl.decoding.experts.fast_tier import FastTier, Key, PolicyName, policy_of
from benchctl.decoding.model.layers import Experts, ExpertWeights, Layer
from benchctl.decoding.model.target import Target, TargetInfo


class Timer(Protocol):
    """Time for what has to wait, handed in from outside: decoding knows no clock of its own."""

    def now_s(self) -> float:
        """Seconds since an arbitrary moment; work queued on a device is not waited for."""

    def wait_until(self, moment_s: float) -> None:
        """Return at this moment, or at once if it has passed."""


class MemoryTier:
    """All experts of a target in host memory: on a CPU the target's own tensors, for a GPU pinned copies."""

    def __init__(self, experts: Mapping[int, Experts]) -> None:
        def on_host(weights: Tensor) -> Tensor:
            return weights if weights.device.type == "cpu" else weights.cpu().pin_memory()

        self._experts = {layer: (on_host(mixture.gate_up), on_host(mixture.down)) for layer, mixture in experts.items()}

    def read(self, key: Key) -> ExpertWeights:
        """The weights of an expert on the host; valid until the next call. Only the loader's thread calls this."""
        gate_up, down = self._experts[key.layer]
        return ExpertWeights(key.expert, gate_up[key.expert], down[key.expert])


class Slots:
    """gate_up [capacity, 2 f, width] and down [capacity, width, f] on the target's device.

    On a GPU copies run on a stream of their own, and wait for queued products that still read the slot.
    """

    def __init__(self, like: Experts, capacity: int) -> None:
        self._gate_up, self._down = (_slots(weights, capacity) for weights in (like.gate_up, like.down))
        self._device = like.gate_up.device
        on_gpu = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._read: dict[int, torch.cuda.Event] = {}
        self.expert_bytes = (self._gate_up.nbytes + self._down.nbytes) // capacity

    def fill(self, slot: int, weights: ExpertWeights) -> None:
        """Copy an expert into a slot; returns when it has arrived. Another thread may compute meanwhile."""
        if self._stream is None:
            self._gate_up[slot].copy_(weights.gate_up)
            self._down[slot].copy_(weights.down)
            return
        with torch.cuda.stream(self._stream):
            if slot in self._read:
                self._stream.wait_event(self._read.pop(slot))
            self._gate_up[slot].copy_(weights.gate_up, non_blocking=True)
            self._down[slot].copy_(weights.down, non_blocking=True)
        self._stream.synchronize()

    def weights(self, expert: int, slot: int) -> ExpertWeights:
        return ExpertWeights(expert, self._gate_up[slot], self._down[slot])

    def computed(self, slot: int) -> None:
        """The products that read this slot have been queued."""
        if self._stream is not None:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
            self._read[slot] = event


def _slots(experts: Tensor, capacity: int) -> Tensor:
    """[capacity, ...] in the memory layout of ``experts`` [experts, ...]: other copies take several times as long."""
    size, stride = (capacity, *experts.shape[1:]), experts.stride()
    return torch.empty_strided(size, stride, dtype=experts.dtype, device=experts.device)


class Loader:
    """A context manager with a thread that moves experts, one after another, while the caller computes.

    With ``bytes_per_s``, which takes a timer, a transfer ends bytes / bandwidth after it began, or later, and the next
    one begins then. Moments are computed, so a thread that wakes late delays nothing: the caller or the thread,
    whichever runs first, catches up. Functions of the tier's names raise RuntimeError if the thread has failed.
    """

    def __init__(
        self, tier: FastTier, slow: MemoryTier, slots: Slots, bytes_per_s: float | None, timer: Timer | None
    ) -> None:
        if bytes_per_s is not None and timer is None:
            raise ValueError("a limited bandwidth needs a timer")
        self._tier, self._slow, self._slots, self._timer = tier, slow, slots, timer
        self._transfer_s = 0.0 if bytes_per_s is None else slots.expert_bytes / bytes_per_s
        self._changed = threading.Condition()
        self._transfer: Key | None = None
        self._copied, self._ends_s = False, 0.0
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="expert loader", daemon=True)

    def __enter__(self) -> Loader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            ends_s = self._ends_s
        if self._timer is not None:
            self._timer.wait_until(ends_s)  # what has begun takes its time
        self._thread.join()

    def now_s(self) -> float:
        """Seconds of the timer; always 0 without one."""
        return 0.0 if self._timer is None else self._timer.now_s()

    def need(self, layer: int, experts: Sequence[int]) -> None:
        with self._changed:
            self._catch_up()
            self._tier.need(layer, experts)
            self._begin(self.now_s())

    def want(self, layer: int, experts: Sequence[int]) -> None:
        with self._changed:
            self._catch_up()
            self._tier.want(layer, experts)
            self._begin(self.now_s())

    def done(self, key: Key) -> None:
        """The products with these weights have been queued."""
        with self._changed:
            self._catch_up()
            self._slots.computed(self._tier.slot(key))
            self._tier.done(key)
            self._begin(self.now_s())

    def wait_for(self, key: Key) -> ExpertWeights:
        with self._changed:
            self._catch_up()
            if not self._tier.holds(key):
                started_s = self.now_s()
                while not self._tier.holds(key):
                    assert self._transfer is not None, "an expert that is needed is on its way, or behind one that is"
                    if self._copied and self._timer is not None:
                        ends_s = self._ends_s
                        self._changed.release()
                        try:
                            self._timer.wait_until(ends_s)
                        finally:
                            self._changed.acquire()
                    else:
                        self._changed.wait()
                    self._catch_up()
                self._tier.counts.stall_s += self.now_s() - started_s
            return self._slots.weights(key.expert, self._tier.slot(key))

    def _catch_up(self) -> None:
        """End the transfer whose moment has come, and begin the next as of that moment."""
        if self._error is not None:
            raise RuntimeError(f"the thread that loads experts failed: {self._error!r}") from self._error
        if self._transfer is not None and self._copied and self._ends_s <= self.now_s():
            self._tier.arrive()
            self._transfer, self._copied = None, False
            self._begin(self._ends_s)

    def _begin(self, moment_s: float) -> None:
        if self._transfer is not None or self._closed:
            return
        self._transfer = self._tier.next()
        if self._transfer is not None:
            self._ends_s = moment_s + self._transfer_s
            self._changed.notify_all()

    @torch.inference_mode()
    def _work(self) -> None:
        try:
            while (key := self._next()) is not None:
                self._slots.fill(self._tier.slot(key), self._slow.read(key))
                with self._changed:
                    self._copied = True
                    self._ends_s = max(self._ends_s, self.now_s())
                    self._catch_up()
                    self._changed.notify_all()
                    while self._copied and not self._closed:  # a waiting caller may see the end before this thread
                        self._changed.wait(max(self._ends_s - self.now_s(), 0.0))
                        self._catch_up()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next(self) -> Key | None:
        """Wait for a transfer that has begun but is not copied yet; None when closed without one."""
        with self._changed:
            while not self._closed and (self._transfer is None or self._copied):
                self._changed.wait()
            return None if self._copied else self._transfer


Predictor = Callable[[int, Tensor], Mapping[int, Sequence[int]]]
"""(layer, slow state [1, width]) -> by coming layer, nearest first, the experts to fetch ahead, the likeliest first.

Called at each layer of a pass of one row, when the layer's own experts are known and demanded but not yet computed:
the state is the residual that their answers will be added to. Layers that are not behind ``layer`` are an error.
"""


@dataclass(frozen=True)
class OffloadSettings:
    """Options of these names; see methods/expert_offload.py."""

    policy: PolicyName = "lru"
    capacity: int = 0
    bandwidth_mb_s: float = 0.0
    blocking: bool = False

    def __post_init__(self) -> None:
        if self.capacity < 0:
            raise ValueError(f"capacity is {self.capacity}; it must be at least the experts of a token, or 0")
        if self.bandwidth_mb_s < 0:
            raise ValueError(f"bandwidth_mb_s is {self.bandwidth_mb_s}; it must be positive, or 0 for no limit")

    def unsupported(self, target: TargetInfo) -> str | None:
        top_k = target.experts_per_token
        if not top_k:
            return "the target is dense; offloading takes a mixture of experts, for example OLMoE or Qwen3-MoE"
        if 0 < self.capacity < top_k:
            return f"capacity {self.capacity} is below the {top_k} experts a token needs; give capacity={top_k} or more"
        return None


def mixtures_of(target: Target) -> Mapping[int, Experts]:
    return {layer: block.mlp for layer, block in enumerate(target.blocks) if isinstance(block.mlp, Experts)}


def capacity_of(mixtures: Mapping[int, Experts], asked: int) -> int:
    """Experts that the fast tier holds: as many as ``asked``; for 0 a quarter of all, at least those of one token."""
    every = sum(mixture.router.shape[0] for mixture in mixtures.values())
    return min(asked or max(every // 4, *(mixture.top_k for mixture in mixtures.values())), every)


def rank_experts(block: Layer, state: Tensor, count: int) -> list[int]:
    """The experts that a layer's own norm and gate choose first for ``state`` [1, width], the likeliest first."""
    logits = block.gate_logits(state)
    ranked: list[int] = logits[0].topk(min(count, logits.shape[-1])).indices.tolist()
    return ranked


class OffloadsExperts(ABC):
    """Mix-in of a method that decodes on an `Offload`: ``class Mine(Method, OffloadsExperts)``, with a `serve`."""

    @abstractmethod
    def counters(self) -> Mapping[str, float]:
        """What the last generation counted, by name, see `Offload.counters`; read after `serve` has ended."""


class Offload:
    """The experts of a target in two tiers. Built once per run; each generation begins with an empty fast tier.

    view  the same target with every mixture of experts tiered; it runs only while it is served
    """

    def __init__(self, target: Target, settings: OffloadSettings) -> None:
        self._target, self._settings = target, settings
        mixtures = mixtures_of(target)
        self.top_k = max(mixture.top_k for mixture in mixtures.values())
        self.capacity = capacity_of(mixtures, settings.capacity)
        self._slow = MemoryTier(mixtures)
        self._slots = Slots(next(iter(mixtures.values())), self.capacity)
        self._tier: FastTier | None = None
        self._loader: Loader | None = None
        blocks = list(target.blocks)
        for layer, mixture in mixtures.items():
            blocks[layer] = replace(blocks[layer], mlp=replace(mixture, fetch=partial(self._fetch, layer)))
        self.view = target.with_blocks(blocks)

    @contextmanager
    def serve(self, timer: Timer | None, predictor: Predictor | None = None) -> Iterator[Target]:
        """The view, for one generation. Raises ValueError for a limited bandwidth without a timer."""
        tier = FastTier(self.capacity, policy_of(self._settings.policy, self._target.layers))
        self._tier, self._timed, self._predictor = tier, timer is not None, predictor
        rate = self._settings.bandwidth_mb_s * 1e6 or None
        with Loader(tier, self._slow, self._slots, rate, timer) as self._loader:
            try:
                yield self.view
            finally:
                self._loader = None

    def _fetch(self, layer: int, needed: Sequence[int], residual: Tensor) -> Iterator[ExpertWeights]:
        """Demand, predict and hand out the experts of a visit; with ``blocking`` as many as fit are loaded first."""
        loader = self._loader
        if loader is None:
            raise RuntimeError("nobody serves the experts of this view; run it inside serve()")
        loader.need(layer, needed)
        # Rows of a prompt together need nearly every expert: only single rows are predicted for.
        if self._predictor is not None and residual.shape[0] == 1:
            for ahead, experts in self._predictor(layer, residual).items():
                loader.want(ahead, tuple(experts))
        if self._settings.blocking:
            for expert in needed[: self.capacity]:
                loader.wait_for(Key(layer, expert))
        for expert in needed:
            yield loader.wait_for(Key(layer, expert))
            loader.done(Key(layer, expert))

    def counters(self) -> Mapping[str, float]:
        """What the last generation counted while decoding, see `fast_tier.Counts`; the prompt's as prefill_...

        Also expert_bytes and, for a throttled link, bandwidth_mb_s. Without a timer there is no stall_s.
        """
        if self._tier is None:
            return {}
        counts, prefill = dict(self._tier.decode.as_numbers()), self._tier.prefill
        counts |= {"prefill_loads": float(prefill.loads), "prefill_stall_s": prefill.stall_s}
        if not self._timed:
            counts = {name: value for name, value in counts.items() if not name.endswith("stall_s")}
        if self._settings.bandwidth_mb_s:
            counts["bandwidth_mb_s"] = self._settings.bandwidth_mb_s
        return {**counts, "expert_bytes": float(self._slots.expert_bytes)}


def next_gate(target: Target, count: int) -> Predictor:
    """Predicts, from the present slow state, what the next layer's own norm and gate would choose: ``count`` experts.

    Dense layers in between are passed over.

    Eliseev, Mazur: Fast Inference of Mixture-of-Experts Language Models with Offloading, 2023, arXiv 2312.17238.
    """

    following = dict(pairwise(sorted(mixtures_of(target))))

    def predict(layer: int, residual: Tensor) -> Mapping[int, Sequence[int]]:
        ahead = following.get(layer)
        return {} if ahead is None else {ahead: rank_experts(target.blocks[ahead], residual, count)}

    return predict
