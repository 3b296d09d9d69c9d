"""Attention over the whole texts of a lesson at once, documents apart: what training does in place of a cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.model.layers import Attention, project
from benchctl.decoding.modules.trainable import Lesson


class TextAttention:
    """Each token of a lesson sees those before it in its document, itself included, within the layer's window."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson
        self._rotary = lesson.rotary(lesson.positions.flatten()).unsqueeze(1)
        self._visible: dict[int | None, Tensor] = {}

    def project(
        self, attention: Attention, normed: Tensor, adapt: Callable[[Tensor], None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries, and keys with values, of ``normed`` [rows * n, width]; see layers.project."""
        return project(attention, normed, self._rotary, adapt)

    def mix(self, attention: Attention, queries: Tensor, held: Tensor, absent: Tensor | None = None) -> Tensor:
        """[rows, n, queries] what queries take from the values of ``held``, both as project gives them.

        Tokens where ``absent`` [rows, n] is true are seen by nobody but themselves.
        """
        rows, n = self._lesson.tokens.shape
        keys, values = held.view(2, attention.kv_heads, rows, n, -1).transpose(1, 2).to(queries.dtype)
        mixed = F.scaled_dot_product_attention(
            queries.view(rows, n, attention.heads, -1).transpose(1, 2),
            keys,
            values,
            attn_mask=self._mask(attention.window, absent),
            scale=attention.scale,
            enable_gqa=attention.heads != attention.kv_heads,
        )
        return mixed.transpose(1, 2).flatten(2)

    def _mask(self, window: int | None, absent: Tensor | None) -> Tensor:
        """[rows, 1, n, n] which tokens each may see."""
        if window not in self._visible:
            documents, positions = self._lesson.documents, self._lesson.positions
            visible = (documents[:, :, None] == documents[:, None, :]).tril()
            if window is not None:
                visible = visible & (positions[:, :, None] - positions[:, None, :] < window)
            self._visible[window] = visible[:, None]
        visible = self._visible[window]
        if absent is None:
            return visible
        itself = torch.eye(visible.shape[-1], dtype=torch.bool, device=visible.device)
        return visible & (itself | ~absent[:, None, None])
