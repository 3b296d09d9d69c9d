"""Gemma, Gemma 2 and Gemma 3: the gain of a norm is 1 plus its weight."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from benchctl.decoding.model.families.family import Family, LayerTypes, read_norm
from benchctl.decoding.model.families.post_norms import behind
from benchctl.decoding.model.kernels import Form, Norm
from benchctl.decoding.model.layers import Layer


class Gemma(Family):
    types = ("gemma",)

    def read_norm(self, module: Any, order: Tensor | None = None) -> Norm:
        return read_norm(module, order, offset=1.0)


class Gemma3(LayerTypes, Gemma):
    """Gemma 3: norms before and behind each sub-layer; layers with a window have a rotary table of their own."""

    types = ("gemma3_text",)

    def activation(self, config: Any) -> str:
        return str(config.hidden_activation)

    def head_cap(self, config: Any) -> float | None:
        return config.final_logit_softcapping  # type: ignore[no-any-return]

    def read_layer(self, model: Any, index: int, form: Form) -> Layer:
        attention, mlp = ("input_layernorm", "post_attention_layernorm"), ("pre_feedforward_layernorm",)
        return behind(self, model, index, form, *attention, *mlp, "post_feedforward_layernorm")


class Gemma2(Gemma3):
    """Gemma 2: attention scores and logits have a bound."""

    types = ("gemma2",)
    training_attention = "eager"  # the only one that heeds the bound

    def softcap(self, config: Any) -> float | None:
        return config.attn_logit_softcapping  # type: ignore[no-any-return]
