"""One token per target pass: the baseline every speed-up is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from benchctl.decoding.method import Context, Method, Step, one_token


@dataclass
class Autoregressive(Method):
    """Plain decoding of the target on the same loop, cache and kernels as every other method."""

    def step(self, context: Context) -> Step:
        return one_token(context)
