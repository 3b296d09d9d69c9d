"""Where experts live: a slow tier that has all of them, a fast one of a few slots, and a thread that moves them."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from benchctl.decoding.experts.fast_tier import Counts, FastTier, Key, Transfer
from benchctl.decoding.model.layers import Experts, ExpertWeights


class Timer(Protocol):
    """Time for what has to wait, handed in from outside: decoding knows no clock of its own."""

    def now_s(self) -> float:
        """Seconds since an arbitrary moment; work queued on a device is not waited for."""

    def wait_until(self, moment_s: float) -> None:
        """Return at this moment, or at once if it has passed."""


class SlowTier(ABC):
    """All experts of a target, somewhere that computing does not read from."""

    @abstractmethod
    def read(self, key: Key) -> ExpertWeights:
        """The weights of an expert on the host; valid until the next call. Only the loader's thread calls this."""


class MemoryTier(SlowTier):
    """Host memory: on a CPU the target's own tensors, for a GPU pinned copies."""

    def __init__(self, experts: Mapping[int, Experts]) -> None:
        def on_host(weights: Tensor) -> Tensor:
            return weights if weights.device.type == "cpu" else weights.cpu().pin_memory()

        self._gate_up = {layer: on_host(mixture.gate_up) for layer, mixture in experts.items()}
        self._down = {layer: on_host(mixture.down) for layer, mixture in experts.items()}

    def read(self, key: Key) -> ExpertWeights:
        return ExpertWeights(key.expert, self._gate_up[key.layer][key.expert], self._down[key.layer][key.expert])


class FileTier(SlowTier):
    """A memory-mapped safetensors file of its own, in the numbers the target computes in, deleted with this object.

    The operating system keeps what was read lately in memory. The speed of the disk itself shows only where the file
    is larger than the free memory; otherwise give a bandwidth.
    """

    def __init__(self, experts: Mapping[int, Experts]) -> None:
        folder = tempfile.mkdtemp(prefix="benchctl-experts-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / "experts.safetensors"
        tensors: dict[str, Tensor] = {}
        for layer, mixture in experts.items():
            tensors[f"{layer}.gate_up"] = mixture.gate_up.detach().cpu().contiguous()
            tensors[f"{layer}.down"] = mixture.down.detach().cpu().contiguous()
        save_file(tensors, path)
        self._file: Any = safe_open(path, framework="pt")

    def read(self, key: Key) -> ExpertWeights:
        one = slice(key.expert, key.expert + 1)
        gate_up, down = (self._file.get_slice(f"{key.layer}.{name}")[one][0] for name in ("gate_up", "down"))
        return ExpertWeights(key.expert, gate_up, down)


class Slots:
    """The fast tier's memory: gate_up [capacity, 2 f, width] and down [capacity, width, f] on the target's device.

    On a GPU copies run on a stream of their own. A slot that a long prompt reuses within one layer may still be read
    by products queued before; the copy waits for those alone.
    """

    def __init__(self, like: Experts, capacity: int) -> None:
        self._gate_up = like.gate_up.new_empty((capacity, *like.gate_up.shape[1:]))
        self._down = like.down.new_empty((capacity, *like.down.shape[1:]))
        self._device = like.gate_up.device
        on_gpu = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._read: dict[int, torch.cuda.Event] = {}
        sizes = (weights.element_size() * weights[0].numel() for weights in (self._gate_up, self._down))
        self.expert_bytes = sum(sizes)

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


@dataclass(frozen=True)
class Link:
    """The way from the slow tier to the fast one; ``bytes_per_s`` None is as fast as the machine copies."""

    slow: SlowTier
    slots: Slots
    bytes_per_s: float | None = None


class Loader:
    """A thread that moves experts over a link, one after another, while the caller computes.

    With a bandwidth, a transfer ends bytes / bandwidth after it began, or later, and the next one begins then. These
    moments are computed, so a thread that wakes late does not delay the transfers behind. The caller or the thread,
    whichever runs first, ends what is over and begins what follows: every choice is made as of its moment.

    Example: experts of 1 MB at 2 MB/s that are demanded at 0.0 s and 0.1 s arrive at 0.5 s and 1.0 s.

    Use as a context manager: leaving it ends the thread, after the transfer under way.
    """

    def __init__(self, tier: FastTier, link: Link, timer: Timer | None = None) -> None:
        if link.bytes_per_s is not None and timer is None:
            raise ValueError("a link of limited bandwidth needs a timer")
        self._tier, self._link, self._timer = tier, link, timer
        self._changed = threading.Condition()
        self._transfer: Transfer | None = None
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

    @property
    def counts(self) -> Counts:
        return self._tier.counts

    def need(self, layer: int, experts: Sequence[int]) -> None:
        """See FastTier.need; raises RuntimeError if the thread has failed."""
        with self._changed:
            self._catch_up()
            self._tier.need(layer, experts)
            self._begin(self.now_s())

    def want(self, layer: int, experts: Sequence[int]) -> None:
        """See FastTier.want."""
        with self._changed:
            self._catch_up()
            self._tier.want(layer, experts)
            self._begin(self.now_s())

    def done(self, key: Key) -> None:
        """See FastTier.done; the products with these weights have been queued."""
        with self._changed:
            self._catch_up()
            self._link.slots.computed(self._tier.slot(key))
            self._tier.done(key)
            self._begin(self.now_s())

    def wait_for(self, key: Key) -> ExpertWeights:
        """The weights of a needed expert, once they are there. Raises RuntimeError if the thread has failed."""
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
            return self._link.slots.weights(key.expert, self._tier.slot(key))

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
            rate = self._link.bytes_per_s
            self._ends_s = moment_s + (0.0 if rate is None else self._link.slots.expert_bytes / rate)
            self._changed.notify_all()

    @torch.inference_mode()
    def _work(self) -> None:
        try:
            while (transfer := self._next()) is not None:
                self._link.slots.fill(transfer.slot, self._link.slow.read(transfer.key))
                self._finish()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next(self) -> Transfer | None:
        """Wait for a transfer that has begun but is not copied yet; None when closed without one."""
        with self._changed:
            while not self._closed and (self._transfer is None or self._copied):
                self._changed.wait()
            return None if self._copied else self._transfer

    def _finish(self) -> None:
        """The copy is there; the transfer ends at its moment, which a waiting caller may see before this thread."""
        with self._changed:
            self._copied = True
            self._ends_s = max(self._ends_s, self.now_s())
            self._catch_up()
            self._changed.notify_all()
            while self._copied and not self._closed:
                self._changed.wait(max(self._ends_s - self.now_s(), 0.0))
                self._catch_up()
