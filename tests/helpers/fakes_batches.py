"""A method for batches whose depth falls with the count of new tokens, as plain as can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from benchctl.decoding.batch import Batched
from benchctl.decoding.method import Context, Method
from benchctl.decoding.model.target import Target


@dataclass
class Shallower(Method, Batched):
    """Prompts run every layer but ``dropped``; of the others a step drops the second one more, later on."""

    dropped: int = 1
    later: int = 4

    exactness = "lossy"
    reason = "it leaves layers out"

    def start(self, context: Context) -> int:
        return context.pick(self._run(context, context.tokens, self.layers_at(context.target, 0)))

    def step(self, context: Context) -> tuple[int]:
        layers = self.layers_at(context.target, context.new_tokens)
        return (context.pick(self._run(context, context.tokens[-1:], layers)),)

    def layers_at(self, target: Target, new_tokens: int) -> Sequence[int]:
        layers = [layer for layer in range(target.layers) if layer != self.dropped]
        return layers if new_tokens < self.later else [layers[0], *layers[2:]]

    def _run(self, context: Context, tokens: Sequence[int], layers: Sequence[int]) -> Tensor:
        stream = context.stream
        stream.push(tokens)
        for layer in range(stream.target.layers):
            if layer in layers:
                stream.advance(layer + 1)
            else:
                stream.pass_by(layer, layer + 1)
        logits = stream.logits(stream.rows - 1)
        stream.keep(range(stream.rows))
        return logits
