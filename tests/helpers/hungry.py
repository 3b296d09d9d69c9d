"""Methods that ask for more memory than any machine has: the errors are torch's and Python's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchctl.decoding.method import Context, Method, one_token
from benchctl.decoding.model.target import Target

_BYTES = 1 << 55


@dataclass
class HungryAtFirst(Method):
    """Its preparation asks."""

    def prepare(self, target: Target) -> None:
        torch.empty(_BYTES, dtype=torch.uint8)

    def step(self, context: Context) -> tuple[int]:
        return one_token(context)


@dataclass
class HungryLater(Method):
    """Each answer to a long prompt asks."""

    def step(self, context: Context) -> tuple[int]:
        if context.prompt_tokens > 40:
            bytearray(_BYTES)
        return one_token(context)
