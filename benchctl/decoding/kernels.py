"""Weight products and norms, with the kernel chosen by the number of rows.

On a CPU the usual ``F.linear`` is far from the fastest product for the few rows of a decode step: pre-transposed
weights win for one row, weights packed by oneDNN for several (figures: ``make bench``). Baseline and methods share these
kernels, so neither gains from the other's weakness.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Copies in two layouts double the memory of the weights; above this the speed is not worth it.
_MAX_COPIED_BYTES = 1 << 31
_SMALL_WEIGHT = 1 << 17  # below, packing costs more per call than it saves for few rows
_FEW_ROWS = 8


class Linear:
    """y = x W^T + b for x [rows, in], W [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, fast: bool = True) -> None:
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else bias.detach()
        self.weight = weight.detach()
        self._transposed: Tensor | None = None
        self._packed: Tensor | None = None
        if fast and weight.device.type == "cpu" and weight.dtype == torch.float32:
            self._transposed = self.weight.t().contiguous()
            if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
                self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight)
            self.weight = self._transposed.t()  # a view: the original layout is not kept

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if self._transposed is None:
            return F.linear(x, self.weight, self.bias)
        few = rows <= _FEW_ROWS and self._transposed.numel() < _SMALL_WEIGHT
        if rows == 1 or few or self._packed is None:
            if self.bias is None:
                return torch.mm(x, self._transposed)
            return torch.addmm(self.bias, x, self._transposed)
        packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return packed


def may_copy(weight_bytes: int) -> bool:
    """Whether weights of this size may be held in two layouts."""
    return weight_bytes <= _MAX_COPIED_BYTES


class Norm:
    """Root-mean-square norm over the last dimension; half precision is computed in float32, as transformers does."""

    def __init__(self, gain: Tensor, eps: float) -> None:
        self.gain = gain.detach()
        self._half = gain.dtype in (torch.float16, torch.bfloat16)
        kind = torch.float32 if self._half else gain.dtype
        self._eps = torch.tensor([eps], dtype=kind, device=gain.device)
        self._share = 1.0 / gain.shape[-1]

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float() if self._half else x
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._eps, length, length, value=self._share).rsqrt_()
        return (wide * scale).to(x.dtype) * self.gain
