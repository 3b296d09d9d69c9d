"""Llama and the models that differ from it in windows, biases or joined products only."""

from __future__ import annotations

from typing import Any

from benchctl.decoding.model.families.family import Family


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
