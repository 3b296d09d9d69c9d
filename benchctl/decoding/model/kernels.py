"""Weight products and norms, with the kernel chosen by the number of rows; baseline and methods share them.

On a CPU pre-transposed weights win for one row, weights packed by oneDNN for several, and on AMD's processors for one
too (figures: ``python -m benchmarks.rows``). Weights in float16 have one kernel, FBGEMM's packed
product. It is faster than float32 up to 64 rows, and as fast for 128. From 256 rows on a pass takes 2% longer, which is
not worth holding the weights twice.
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Copies in two layouts double the memory of the weights; above this the speed is not worth it.
_MAX_COPIED_BYTES = 1 << 31
_SMALL_WEIGHT = 1 << 17  # below, packing costs more per call than it saves for few rows
_FEW_ROWS = 8
_FEWEST_ROWS = 3  # up to here packing costs more for any weight that a cache holds
_LARGE_WEIGHT, _LARGE_INPUT = 1 << 18, 512  # from here on weights come from memory, and one row with one thread is few

_half_product = torch.ops.quantized.linear_dynamic_fp16.default._op  # without a look at each argument in Python


def _of_amd() -> bool:
    """Whether AMD made the processor: there MKL's plain product of one row takes a third longer than oneDNN's."""
    about = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (about.read_text() if about.exists() else platform.processor())


_AMD = _of_amd()
# Elsewhere oneDNN's products with AVX-512 take less time for four rows than for one to three.
_FULL_ROWS = 4 if torch.backends.cpu.get_cpu_capability() == "AVX512" and not _AMD else 1

Form = Literal["plain", "fast", "float16"]
"""How products hold weights: as they come, in the layouts of fast kernels too, or rounded to float16 and packed."""


class Linear:
    """y = x W^T + b for x [rows, in], W [out, in].

    In the form "float16" W is rounded; x, b, sums and y are float32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, form: Form = "fast") -> None:
        self.out_features, self.in_features = weight.shape
        weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.form, self._weight = form, None if form == "float16" else weight
        self._half: torch.ScriptObject | None = None
        self._transposed: Tensor | None = None
        self._packed: Tensor | None = None
        self._small = weight.numel() < _SMALL_WEIGHT
        self._large = weight.numel() >= _LARGE_WEIGHT and self.in_features >= _LARGE_INPUT
        if form == "float16":
            self._half = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), None)
        elif form == "fast" and weight.device.type == "cpu" and weight.dtype == torch.float32:
            # A copy also of weights that come transposed: a view of the file keeps all of it mapped. So would a bias.
            self._transposed = weight.t().clone(memory_format=torch.contiguous_format)
            if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
                self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            self._weight = self._transposed.t()  # a view: the original layout is not kept
        if bias is not None and (self._half is not None or self._transposed is not None):
            self.bias = bias.detach().clone()

    @property
    def weight(self) -> Tensor:
        """[out, in]; of float16 weights a new copy in float32."""
        return unpacked(self._half) if self._weight is None else self._weight

    @property
    def weight_bytes(self) -> int:
        """That a product with few rows reads."""
        return 2 * self.out_features * self.in_features if self._weight is None else self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if self._half is not None:
            # Otherwise torch asks the weights whether they override functions: two exceptions, 14 microseconds a call.
            with torch._C.DisableTorchFunctionSubclass():
                y: Tensor = _half_product(x, self._half)
            return y if self.bias is None else y.add_(self.bias)
        if self._transposed is None:
            return F.linear(x, self.weight, self.bias)
        # Few rows read the weights once either way: the plain product on transposed weights starts fastest.
        if self._packed is None or self._few(x.shape[0]):
            return torch.mm(x, self._transposed) if self.bias is None else torch.addmm(self.bias, x, self._transposed)
        rows = x.shape[0]
        padded = F.pad(x, (0, 0, 0, _FULL_ROWS - rows)) if self._large and rows < _FULL_ROWS else x
        packed: Tensor = torch.ops.mkldnn._linear_pointwise(padded, self._packed, self.bias, "none", [], "")
        return packed if padded is x else packed[:rows]

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + x W^T + b, in one call where the kernel can."""
        if self._half is not None:
            return self(x).add_(residual)
        if self._transposed is not None and self.bias is None and self._few(x.shape[0]):
            return torch.addmm(residual, x, self._transposed)
        return residual + self(x)

    def rows(self, ids: Tensor) -> Linear:
        """The product that gives the outputs ``ids`` [k], in their order, by a copy of their weights."""
        weight = self.weight
        ids = ids.to(weight.device)
        return self.like(weight[ids], None if self.bias is None else self.bias[ids], self.form)

    def like(self, weight: Tensor, bias: Tensor | None, form: Form) -> Linear:
        """A product of the same kind with other weights."""
        return Linear(weight, bias, form)

    def tail(self, start: int) -> Linear:
        """The product that gives the outputs from ``start`` on, by the same weights: only float16 ones are copied."""
        bias = None if self.bias is None else self.bias[start:]
        if self._weight is None:
            return Linear(self.weight[start:], bias, "float16")
        twin = copy.copy(self)
        twin.out_features, twin._weight, twin.bias = self.out_features - start, self._weight[start:], bias
        twin._transposed = None if self._transposed is None else self._transposed[:, start:]
        twin._packed = None
        return twin

    def _few(self, rows: int) -> bool:
        if _AMD:
            return rows <= _FEW_ROWS and self._small
        if self._large:
            return rows == 1 and torch.get_num_threads() == 1
        return rows <= _FEWEST_ROWS or (rows <= _FEW_ROWS and self._small)


def packed_bytes(weight: Tensor) -> int:
    """That a product in the form "float16" holds of a weight [out, in]: FBGEMM pads ``in`` to a multiple of 512."""
    out_features, in_features = weight.shape
    return 2 * out_features * -(-in_features // 512) * 512


class CappedLinear(Linear):
    """cap * tanh(y / cap) of the product's y: the LM head of Gemma 2."""

    def __init__(self, weight: Tensor, bias: Tensor | None, form: Form, cap: float) -> None:
        super().__init__(weight, bias, form)
        self.cap = cap

    def __call__(self, x: Tensor) -> Tensor:
        return capped(super().__call__(x), self.cap)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual + self(x)

    def like(self, weight: Tensor, bias: Tensor | None, form: Form) -> Linear:
        return CappedLinear(weight, bias, form, self.cap)


def capped(logits: Tensor, cap: float) -> Tensor:
    """cap * tanh(logits / cap)"""
    return torch.tanh(logits / cap) * cap


class Product(nn.Module):
    """A trained product for decoding, of rows [rows, in]."""

    def __init__(self, trained: nn.Linear, form: Form) -> None:
        super().__init__()
        self._linear = Linear(trained.weight, trained.bias, form)

    def forward(self, x: Tensor) -> Tensor:
        return self._linear(x)


def in_form(module: nn.Module, form: Form) -> None:
    """Let all products of a trained ``module`` hold their weights in this form, for decoding."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Product(child, form))
        else:
            in_form(child, form)


def unpacked(half: torch.ScriptObject | None) -> Tensor:
    """[out, in] float32 copy of packed float16 weights."""
    weight: Tensor = torch.ops.quantized.linear_unpack_fp16(half)[0]
    return weight


def may_copy(weight_bytes: int) -> bool:
    return weight_bytes <= _MAX_COPIED_BYTES


class Norm:
    """Root-mean-square norm over the last dimension, in float32 at least, as transformers does.

    A float32 ``gain`` multiplies half-precision rows before they are rounded, as Gemma's does.
    """

    def __init__(self, gain: Tensor, eps: float) -> None:
        self.gain, self.eps = gain.detach(), eps
        self._kind = torch.promote_types(gain.dtype, torch.float32)
        self._eps = torch.tensor([eps], dtype=self._kind, device=gain.device)
        self._share = 1.0 / gain.shape[-1]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.gain,)

    def holding(self, *tensors: Tensor) -> Norm:
        """A norm of the same kind with these in place of its ``tensors``."""
        return type(self)(*tensors, self.eps)  # type: ignore[call-arg, arg-type]

    def changed(self, change: Callable[[Tensor], Tensor]) -> Norm:
        return self.holding(*map(change, self.tensors))

    def scaled(self, gain: Tensor) -> Norm:
        """This norm, its result multiplied by ``gain`` [width]."""
        return self.changed(lambda tensor: tensor * gain)

    @staticmethod
    def stacked(norms: Sequence[Norm], per_head: bool = False) -> Norm:
        """One for x [norms, width] in which each row has a norm of its own; ``per_head``: x [norms, heads, width]."""
        stacks = map(torch.stack, zip(*(norm.tensors for norm in norms), strict=True))
        return norms[0].holding(*(stack.unsqueeze(1) if per_head else stack for stack in stacks))

    def __call__(self, x: Tensor) -> Tensor:
        wide = x if x.dtype is self._kind else x.to(self._kind)
        # x / sqrt(mean(x^2) + eps), with mean(x^2) = |x|^2 / width.
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._eps, length, length, value=self._share).rsqrt_()
        normed = wide.mul(scale)
        if wide is x:
            return normed.mul_(self.gain)
        if self.gain.dtype is not x.dtype:
            return normed.mul_(self.gain).to(x.dtype)
        return normed.to(x.dtype).mul_(self.gain)


class LayerNorm(Norm):
    """(x - mean) / sqrt(variance + eps) * gain + bias over the last dimension, rounded as torch's own is."""

    def __init__(self, gain: Tensor, bias: Tensor, eps: float) -> None:
        super().__init__(gain, eps)
        self.bias = bias.detach()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.gain, self.bias)

    def __call__(self, x: Tensor) -> Tensor:
        if self.gain.ndim == 1:
            return F.layer_norm(x, self.gain.shape, self.gain, self.bias, self.eps)
        return torch.addcmul(self.bias, F.layer_norm(x, x.shape[-1:], eps=self.eps), self.gain)  # stacked


class NoNorm(Norm):
    """Leaves x as it is, in a layer without a norm at this place."""

    def __init__(self) -> None:
        super().__init__(torch.ones(1), 0.0)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return ()

    def holding(self, *tensors: Tensor) -> NoNorm:
        return self

    def __call__(self, x: Tensor) -> Tensor:
        return x
