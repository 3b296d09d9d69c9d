"""Gemma: the gain of a norm is 1 plus its weight."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from benchctl.decoding.model.families.family import Family, read_norm
from benchctl.decoding.model.kernels import Norm


class Gemma(Family):
    types = ("gemma",)

    def read_norm(self, module: Any, order: Tensor | None = None) -> Norm:
        return read_norm(module, order, offset=1.0)
