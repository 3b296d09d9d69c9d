"""Models with a norm behind each sub-layer: OLMo 2 and 3, EXAONE 4, GLM-4. Gemma 2 and 3 are in gemma.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchctl.decoding.model.families.family import Family, LayerTypes, read_norm
from benchctl.decoding.model.kernels import Form, NoNorm, Norm
from benchctl.decoding.model.layers import Layer


def behind(family: Family, model: Any, index: int, form: Form, *names: str) -> Layer:
    """Layer ``index`` with norms of these four names: before and behind attention, before and behind the MLP.

    An empty name stands for no norm.
    """
    module, config = family.stack(model)[index], model.config
    norms = [family.read_norm(getattr(module, name)) if name else NoNorm() for name in names]
    attention = family.read_attention(model, index, form)
    mlp = family.read_mlp(module.mlp, config, form)
    return Layer(norms[0], replace(attention, post=norms[1]), norms[2], replace(mlp, post=norms[3]))


class Glm4(Family):
    types = ("glm4",)
    plain_layers = False
    adjacent = True

    def read_layer(self, model: Any, index: int, form: Form) -> Layer:
        names = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
        return behind(self, model, index, form, *names)


class Olmo2(Family):
    """OLMo 2: queries and keys have norms over all heads, and sub-layers none before them."""

    types = ("olmo2",)
    plain_layers = False

    def read_layer(self, model: Any, index: int, form: Form) -> Layer:
        return behind(self, model, index, form, "", "post_attention_layernorm", "", "post_feedforward_layernorm")

    def read_norm(self, module: Any, order: Tensor | None = None) -> Norm:
        return read_norm(module, order, wide=True)


class Olmo3(LayerTypes, Olmo2):
    """OLMo 3: some layers have a window, and rotate differently."""

    types = ("olmo3",)


class Exaone4(LayerTypes):
    """EXAONE 4: where some layers have a window, the others have no positions."""

    types = ("exaone4",)

    def rope(self, config: Any, index: int) -> int:
        return int(config.sliding_window is not None and config.layer_types[index] != "sliding_attention")

    def tables(self, model: Any, positions: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        rotary = self.rotary(model, positions, dtype)
        return rotary, torch.ones_like(rotary)

    def read_layer(self, model: Any, index: int, form: Form) -> Layer:
        return behind(self, model, index, form, "", "post_attention_layernorm", "", "post_feedforward_layernorm")
