"""One token per target pass: the baseline of every speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchctl.decoding.batch import Batched
from benchctl.decoding.method import Context, Method, one_token
from benchctl.decoding.model.target import Target


@dataclass
class Autoregressive(Method, Batched):
    """Decode plainly, one token per target pass: the baseline of all methods."""

    supports_encoder_decoder = True
    needs_layers = False

    def step(self, context: Context) -> tuple[int]:
        return one_token(context)

    def layers_at(self, target: Target, new_tokens: int) -> Sequence[int]:
        return range(target.layers)
