"""One token per target pass: the baseline every speed-up is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from benchctl.decoding.method import Context, Method, Step


@dataclass
class Autoregressive(Method):
    """Plain decoding of the target on the same loop, cache and kernels as every other method."""

    def step(self, context: Context) -> Step:
        stream = context.stream
        stream.push(context.tokens[-1:])
        stream.advance()
        token = context.pick(stream.logits())
        stream.keep(range(1))
        return Step((token,), 0, 0, 1, (context.target.layers,))
