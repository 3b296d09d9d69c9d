"""Llama and the models that differ from it in windows, biases, activations or the order of weights only."""

from __future__ import annotations

from typing import Any

from benchctl.decoding.model.families.family import ACTIVATIONS, Family
from benchctl.decoding.model.kernels import Form, Linear
from benchctl.decoding.model.layers import Mlp


class Llama(Family):
    types = ("llama",)


class Mistral(Family):
    """Mistral and Phi-3: every layer has the window of the configuration."""

    types = ("mistral", "phi3")

    def window(self, config: Any, index: int) -> int | None:
        return config.sliding_window  # type: ignore[no-any-return]


class Qwen(Family):
    """Qwen2 and Qwen3: a list in the configuration names the layers with a window."""

    types = ("qwen2", "qwen3")

    def window(self, config: Any, index: int) -> int | None:
        return config.sliding_window if config.layer_types[index] == "sliding_attention" else None


class SeedOss(Family):
    """Seed-OSS: biases of queries, keys and values, and of the result where the configuration has them."""

    types = ("seed_oss",)


class Ernie(Family):
    """ERNIE 4.5: rotated pairs are adjacent."""

    types = ("ernie4_5",)
    adjacent = True


class Arcee(Family):
    """Arcee: one product before the activation, no gate."""

    types = ("arcee",)
    plain_layers = False

    def read_mlp(self, module: Any, config: Any, form: Form) -> Mlp:
        up, down = (Linear(part.weight, part.bias, form) for part in (module.up_proj, module.down_proj))
        return Mlp(up, down, ACTIVATIONS[self.activation(config)], gated=False)
