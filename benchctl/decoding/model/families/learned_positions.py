"""GPT-2 and OPT: a learned row for each position is added to the embeddings, and nothing is rotated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchctl.decoding.model.families.layer_norms import LayerNorms
from benchctl.decoding.model.kernels import Form
from benchctl.decoding.model.layers import Layer
from benchctl.errors import UserError


class LearnedPositions(LayerNorms):
    """The table of positions ends where the context ends."""

    def activation(self, config: Any) -> str:
        return str(config.activation_function)

    def rotated(self, model: Any) -> int:
        return 0

    def tables(self, model: Any, positions: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        angles = torch.complex128 if dtype == torch.float64 else torch.complex64
        pairs = self.head_dim(model.config) // 2
        return (torch.ones(positions, pairs, dtype=angles, device=model.get_input_embeddings().weight.device),)


class Gpt2(LearnedPositions):
    """GPT-2, whose modules hold weights as [in, out]."""

    types = ("gpt2",)

    def mlp_size(self, config: Any) -> int:
        return int(config.n_inner or 4 * config.hidden_size)

    def stack(self, model: Any) -> Any:
        return model.base_model.h

    def final_norm(self, model: Any) -> nn.LayerNorm:
        return model.base_model.ln_f  # type: ignore[no-any-return]

    def positions(self, model: Any) -> Tensor:
        return model.base_model.wpe.weight.detach()  # type: ignore[no-any-return]

    def attention_module(self, layer: Any) -> Any:
        attention = layer.attn
        return SimpleNamespace(
            qkv_proj=_turned(attention.c_attn), o_proj=_turned(attention.c_proj), scaling=attention.scaling
        )

    def read_layer(self, model: Any, index: int, form: Form) -> Layer:
        layer = self.stack(model)[index]
        return Layer(
            attention_norm=self.read_norm(layer.ln_1),
            attention=self.read_attention(model, index, form),
            mlp_norm=self.read_norm(layer.ln_2),
            mlp=self.two_products(_turned(layer.mlp.c_fc), _turned(layer.mlp.c_proj), model.config, form),
        )


class Opt(LearnedPositions):
    """OPT, but for the variant with norms behind the sub-layers (350m)."""

    types = ("opt",)

    def mlp_size(self, config: Any) -> int:
        return int(config.ffn_dim)

    def check(self, config: Any) -> None:
        super().check(config)
        for name, needed in (
            ("do_layer_norm_before", True),
            ("word_embed_proj_dim", config.hidden_size),
            ("_remove_final_layer_norm", False),
        ):
            if (found := getattr(config, name)) != needed:
                message = (
                    f"OPT with {name} {found} is not supported, since its layers or its head differ; choose a model "
                    f"whose {name} is {needed}, as all OPT models but 350m"
                )
                raise UserError("unsupported_opt", message)

    def stack(self, model: Any) -> Any:
        return model.base_model.decoder.layers

    def final_norm(self, model: Any) -> nn.LayerNorm:
        return _affine(model.base_model.decoder.final_layer_norm, model.base_model.decoder.embed_positions.weight)

    def positions(self, model: Any) -> Tensor:
        table = model.base_model.decoder.embed_positions
        return table.weight.detach()[table.offset :]  # type: ignore[no-any-return]

    def attention_module(self, layer: Any) -> Any:
        names = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "out_proj": "o_proj", "scaling": "scaling"}
        return SimpleNamespace(**{ours: getattr(layer.self_attn, theirs) for theirs, ours in names.items()})

    def read_layer(self, model: Any, index: int, form: Form) -> Layer:
        layer = self.stack(model)[index]
        return Layer(
            attention_norm=self.read_norm(_affine(layer.self_attn_layer_norm, layer.fc1.weight)),
            attention=self.read_attention(model, index, form),
            mlp_norm=self.read_norm(_affine(layer.final_layer_norm, layer.fc1.weight)),
            mlp=self.two_products(layer.fc1, layer.fc2, model.config, form),
        )


def _affine(norm: nn.LayerNorm, like: Tensor) -> nn.LayerNorm:
    """The norm itself, or one with gain 1 and bias 0, of the kind of ``like``, in place of one without both."""
    if norm.elementwise_affine:
        return norm
    return nn.LayerNorm(norm.normalized_shape, norm.eps, device=like.device, dtype=like.dtype).requires_grad_(False)


def _turned(module: Any) -> Any:
    """A module that holds its weight as [in, out], with a view of it as [out, in]."""
    return SimpleNamespace(weight=module.weight.detach().t(), bias=module.bias)
