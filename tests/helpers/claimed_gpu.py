"""A GPU in name only: tensors whose numbers lie on the CPU, but which refuse to be mixed with those of the CPU.

It finds on any machine what would fail on a GPU: an index, a mask or a weight that was left on the host. Unlike torch's
fake tensors these hold numbers, so whole answers can be decoded and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

GPU = torch.device("cuda", 0)
# They take a tensor from one device to the other, or only look at it.
_CROSSING = frozenset({Tensor.copy_, Tensor.__setitem__, Tensor.__repr__})
_NEVER: tuple[Any, ...] = (Tensor.numpy, Tensor.__array__)


class OnGpu(Tensor):
    """A tensor that says it is on the GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # the mode does the work

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU


class MixedDevices(AssertionError):
    """What a GPU would refuse."""


class ClaimedGpu(TorchFunctionMode):
    """While it is entered, ``device="cuda"`` makes such tensors, and calls that mix them with others are refused.

    Refused are tensors of both devices in one call (a number of no dimensions may be on the CPU), a generator of the
    other device, and reading memory as the CPU's. An index from the CPU is counted: torch takes it, but every time the
    program waits until it is copied.
    """

    def __init__(self) -> None:
        super().__init__()
        self.host_indices = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is Tensor.to or func in (Tensor.cpu, Tensor.cuda):
            return self._move(func, args[0], [*args[1:], *named.values()])
        if func is torch._has_compatible_shallow_copy_type:
            return isinstance(args[0], OnGpu) == isinstance(args[1], OnGpu)  # nn.Module.to replaces what must move
        tensors = [each for each in _flat([args, named]) if isinstance(each, Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
        asked = named.get("device")
        if asked is not None and torch.device(asked).type == GPU.type:
            named["device"] = "cpu"
            return _tagged(func(*args, **named))
        if asked is not None and ours:
            raise MixedDevices(f"{func.__name__} of a GPU's tensor on {asked}")
        if not ours:
            return func(*args, **named)
        generator = named.get("generator")
        if func in _NEVER or (generator is not None and generator.device.type != GPU.type):
            raise MixedDevices(f"{func.__name__} needs the CPU")
        left = [tuple(tensor.shape) for tensor in tensors if not isinstance(tensor, OnGpu) and tensor.ndim]
        if left and func is Tensor.__getitem__ and isinstance(args[0], OnGpu):
            self.host_indices += 1
        elif left and func not in _CROSSING:
            raise MixedDevices(f"{func.__name__} of tensors on the GPU and {left} on the CPU")
        return _tagged(func(*args, **named))

    def _move(self, func: Callable[..., Any], tensor: Tensor, asked: Sequence[Any]) -> Tensor:
        """``to``, ``cpu`` and ``cuda``: as the first device or tensor in ``asked``, and in its last dtype."""
        like = next((each for each in asked if isinstance(each, Tensor)), None)
        place = next((each for each in asked if isinstance(each, str | torch.device)), like)
        dtypes = [each for each in asked if isinstance(each, torch.dtype)]
        dtype = (dtypes or [tensor.dtype if like is None else like.dtype])[-1]
        device: Any = {Tensor.cpu: "cpu", Tensor.cuda: GPU}.get(func, tensor if place is None else place)
        on_gpu = (device.device if isinstance(device, Tensor) else torch.device(device)).type == GPU.type
        return tensor.to(dtype).as_subclass(OnGpu if on_gpu else Tensor)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    else:
        yield value


def _tagged(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value if isinstance(value, OnGpu) else value.as_subclass(OnGpu)
    if isinstance(value, list | tuple):
        parts = [_tagged(each) for each in value]
        return type(value)(parts)  # a list, a tuple, or what max and topk return
    return value
