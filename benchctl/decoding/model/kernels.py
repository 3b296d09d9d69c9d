"""Weight products and norms, with the kernel chosen by the number of rows; baseline and methods share them.

On a CPU pre-transposed weights win for one row, weights packed by oneDNN for several (figures: ``make bench``).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# Copies in two layouts double the memory of the weights; above this the speed is not worth it.
_MAX_COPIED_BYTES = 1 << 31
_SMALL_WEIGHT = 1 << 17  # below, packing costs more per call than it saves for few rows
_FEW_ROWS = 8
_FEWEST_ROWS = 3  # up to here packing costs more for any weight


class Linear:
    """y = x W^T + b for x [rows, in], W [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, fast: bool = True) -> None:
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else bias.detach()
        self.weight = weight.detach()
        self._transposed: Tensor | None = None
        self._packed: Tensor | None = None
        self._small = weight.numel() < _SMALL_WEIGHT
        if fast and weight.device.type == "cpu" and weight.dtype == torch.float32:
            self._transposed = self.weight.t().contiguous()
            if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
                self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight)
            self.weight = self._transposed.t()  # a view: the original layout is not kept

    def __call__(self, x: Tensor) -> Tensor:
        if self._transposed is None:
            return F.linear(x, self.weight, self.bias)
        # Few rows read the weights once either way: the plain product on transposed weights starts fastest.
        if self._packed is None or self._few(x.shape[0]):
            return torch.mm(x, self._transposed) if self.bias is None else torch.addmm(self.bias, x, self._transposed)
        packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return packed

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + x W^T + b, in one call where the kernel can."""
        if self._transposed is not None and self.bias is None and self._few(x.shape[0]):
            return torch.addmm(residual, x, self._transposed)
        return residual + self(x)

    def rows(self, ids: Tensor) -> Linear:
        """The product that gives the outputs ``ids`` [k], in their order, by a copy of their weights."""
        ids = ids.to(self.weight.device)
        bias = None if self.bias is None else self.bias[ids]
        return Linear(self.weight[ids], bias, self._transposed is not None)

    def tail(self, start: int) -> Linear:
        """The product that gives the outputs from ``start`` on, by the same weights: nothing is copied."""
        twin = copy.copy(self)
        twin.out_features, twin.weight = self.out_features - start, self.weight[start:]
        twin.bias = None if self.bias is None else self.bias[start:]
        twin._transposed = None if self._transposed is None else self._transposed[:, start:]
        twin._packed = None
        return twin

    def _few(self, rows: int) -> bool:
        return rows <= _FEWEST_ROWS or (rows <= _FEW_ROWS and self._small)


def may_copy(weight_bytes: int) -> bool:
    return weight_bytes <= _MAX_COPIED_BYTES


class Norm:
    """Root-mean-square norm over the last dimension, in float32 at least, as transformers does.

    A float32 ``gain`` multiplies half-precision rows before they are rounded, as Gemma's does.
    """

    def __init__(self, gain: Tensor, eps: float) -> None:
        self.gain = gain.detach()
        self._kind = torch.promote_types(gain.dtype, torch.float32)
        self._eps = torch.tensor([eps], dtype=self._kind, device=gain.device)
        self._share = 1.0 / gain.shape[-1]

    @classmethod
    def stacked(cls, norms: Sequence[Norm]) -> Norm:
        """One for x [norms, width] in which each row has a norm of its own."""
        return cls(torch.stack([norm.gain for norm in norms]), float(norms[0]._eps))

    def scaled(self, gain: Tensor) -> Norm:
        """This norm with its gain multiplied by ``gain`` [width]."""
        return Norm(self.gain * gain, float(self._eps))

    def __call__(self, x: Tensor) -> Tensor:
        wide = x if x.dtype is self._kind else x.to(self._kind)
        # x / sqrt(mean(x^2) + eps), with mean(x^2) = |x|^2 / width.
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._eps, length, length, value=self._share).rsqrt_()
        normed = wide.mul(scale)
        if self.gain.dtype is not x.dtype:
            return normed.mul_(self.gain).to(x.dtype)
        return normed.to(x.dtype).mul_(self.gain)
