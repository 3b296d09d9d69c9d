"""Granite: factors of the embedding, of attention scores, of each sub-layer's result and of the logits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchctl.decoding.model.families.family import Family
from benchctl.decoding.model.kernels import Form
from benchctl.decoding.model.layers import Layer


class Granite(Family):
    types = ("granite",)
    plain_layers = False

    def embedding_scale(self, model: Any) -> float:
        return float(model.config.embedding_multiplier)

    def head_scale(self, config: Any) -> float:
        return 1.0 / float(config.logits_scaling)

    def read_layer(self, model: Any, index: int, form: Form) -> Layer:
        layer = super().read_layer(model, index, form)
        scaled = partial(torch.mul, other=float(model.config.residual_multiplier))
        return replace(layer, attention=replace(layer.attention, post=scaled), mlp=replace(layer.mlp, post=scaled))
