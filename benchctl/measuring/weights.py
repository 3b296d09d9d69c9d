"""Whether a target still has the weights that it was loaded with, and torch its threads: no method changes what it, or
the baseline, is measured on."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from benchctl.decoding.model.kernels import unpacked
from benchctl.decoding.model.target import Target
from benchctl.errors import UserError

Weight = Tensor | torch.ScriptObject
_SAMPLES = 128  # numbers of each tensor that are looked at after each generation


class WeightGuard:
    """Compares the tensors that a target computes with, all layouts of a weight included, with those at the start.

    Layouts that the target makes when they are first needed are left out: they come from the others.
    """

    def __init__(self, target: Target) -> None:
        self._target, self._threads = target, torch.get_num_threads()
        self._all, self._samples = self._checksums(), self._views()
        self._start = {dtype: torch.cat(views) for dtype, views in self._samples.items()}

    def check(self, culprit: str, *, sample: bool = False) -> None:
        """Raises UserError, naming who ran last, if a weight or torch's number of threads has changed.

        With ``sample`` some numbers of each tensor are compared, in about a millisecond, otherwise all.
        """
        if (threads := torch.get_num_threads()) != self._threads:
            raise UserError(
                "threads_changed",
                f"{culprit} changed the threads of torch from {self._threads} to {threads}, so the baseline would be "
                "measured with others. Leave them as they are, and measure again.",
            )
        if sample and all(torch.equal(torch.cat(self._samples[dtype]), start) for dtype, start in self._start.items()):
            return
        now = self._checksums()
        if changed := next((path for path, checksum in self._all.items() if now.get(path) != checksum), None):
            raise UserError(
                "weights_changed",
                f"{culprit} changed the weights of the target ({changed.lstrip('.')}), so nothing measured afterwards "
                "would be of this model. Let the method work on a copy (`Method.serve` may return a view), and measure "
                "again.",
            )

    def _views(self) -> dict[torch.dtype, list[Tensor]]:
        """By dtype, views of some numbers of each tensor, which show changes in place."""
        views: dict[torch.dtype, list[Tensor]] = {}
        for _, tensor in _tensors("", self._target, set()):
            if _is_plain(tensor):  # unpacking others takes too long for each generation
                values = _flat(tensor)
                views.setdefault(tensor.dtype, []).append(values[:: max(1, values.numel() // _SAMPLES)])
        return views

    def _checksums(self) -> dict[str, int]:
        checksums: dict[str, int] = {}
        for path, tensor in _tensors("", self._target, set()):
            values = _flat(tensor if _is_plain(tensor) else _read(tensor))
            checksums[path] = zlib.crc32(values.contiguous().view(torch.uint8).cpu().numpy().data)
        return checksums


def _is_plain(weight: Weight) -> TypeGuard[Tensor]:
    """Whether it is not packed for one kind of products."""
    return isinstance(weight, Tensor) and not weight.is_mkldnn


def _read(packed: Weight) -> Tensor:
    return packed.to_dense() if isinstance(packed, Tensor) else unpacked(packed)


def _flat(tensor: Tensor) -> Tensor:
    """The numbers in the order of their memory: a transposed layout is flattened without a copy."""
    return (tensor if tensor.is_contiguous() or tensor.ndim < 2 else tensor.mT).detach().reshape(-1)


def _tensors(path: str, value: object, seen: set[int]) -> Iterator[tuple[str, Weight]]:
    """All tensors within a target's attributes, each once, by where they are."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor | torch.ScriptObject):  # the latter are packed float16 weights
        yield path, value
        return
    inner: Iterable[tuple[object, object]] = ()
    if isinstance(value, nn.Module):  # of transformers
        inner = [*value.named_parameters(), *value.named_buffers()]
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    elif isinstance(value, dict):
        inner = list(value.items())
    elif is_dataclass(value) and not isinstance(value, type):
        inner = [(item.name, getattr(value, item.name)) for item in fields(value)]
    elif type(value).__module__.startswith("benchctl.decoding.model"):
        inner = list(vars(value).items())
    for name, item in inner:
        yield from _tensors(f"{path}.{name}", item, seen)
