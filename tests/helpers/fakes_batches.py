"""A method for batches whose depth falls with the count of new tokens, as plain as can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from benchctl.decoding.batch import Batched
from benchctl.decoding.method import Context, Method, Step
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

    def step(self, context: Context) -> Step:
        new_tokens = len(context.tokens) - context.prompt_tokens
        layers = self.layers_at(context.target, new_tokens)
        return Step((context.pick(self._run(context, context.tokens[-1:], layers)),), 0, 0, 1, (len(layers),))

    def layers_at(self, target: Target, new_tokens: int) -> Sequence[int]:
        layers = [layer for layer in range(target.layers) if layer != self.dropped]
        return layers if new_tokens < self.later else [layers[0], *layers[2:]]

    def _run(self, context: Context, tokens: Sequence[int], layers: Sequence[int]) -> Tensor:
        target, cache, base = context.target, context.stream.cache, len(context.tokens) - len(tokens)
        layout, x = target.layout(base, range(base, base + len(tokens))), target.embed(tokens)
        for layer in range(target.layers):
            if layer in layers:
                x = target.run(x, cache, layer, layer + 1, layout)
            else:
                cache.skip(layer, base + len(tokens) - 1)
        return target.head(x[-1:])
