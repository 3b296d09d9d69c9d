"""GPT-NeoX (Pythia) and Phi (Phi-1, Phi-2): norms that subtract the mean, biases, MLPs without a gate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from torch import Tensor, nn

from benchctl.decoding.model.families.family import ACTIVATIONS, Family
from benchctl.decoding.model.kernels import Form, LayerNorm, Linear
from benchctl.decoding.model.layers import Layer, Mlp


class LayerNorms(Family):
    """Models whose norms subtract the mean, with an MLP of two products; each query head has a key head of its own."""

    plain_layers: ClassVar[bool] = False

    def kv_heads(self, config: Any) -> int:
        return self.heads(config)

    def head_dim(self, config: Any) -> int:
        return int(config.hidden_size // self.heads(config))

    def read_norm(self, module: Any, order: Tensor | None = None) -> LayerNorm:
        # Clones, since views of the file would keep all of it mapped.
        gain, bias = module.weight.detach().clone(), module.bias.detach().clone()
        return LayerNorm(gain, bias, module.eps) if order is None else LayerNorm(gain[order], bias[order], module.eps)

    def two_products(self, inner: Any, outer: Any, config: Any, form: Form) -> Mlp:
        """outer(act(inner(x)))"""
        first, second = (Linear(each.weight, each.bias, form) for each in (inner, outer))
        return Mlp(first, second, ACTIVATIONS[self.activation(config)], gated=False)


class GptNeox(LayerNorms):
    """GPT-NeoX and Pythia: one product gives the queries, keys and values, head by head."""

    types = ("gpt_neox",)

    def final_norm(self, model: Any) -> nn.LayerNorm:
        return model.base_model.final_layer_norm  # type: ignore[no-any-return]

    def attention_module(self, layer: Any) -> Any:
        attention = layer.attention
        dim, joined = attention.head_size, attention.query_key_value

        def by_kind(parameter: Tensor | None) -> Tensor | None:
            """Rows [heads, (query, key, value), head_dim] as [(query, key, value), heads, head_dim]."""
            if parameter is None:
                return None
            by_head = parameter.detach().view(-1, 3, dim, *parameter.shape[1:])
            return by_head.transpose(0, 1).reshape(parameter.shape)

        qkv = SimpleNamespace(weight=by_kind(joined.weight), bias=by_kind(joined.bias))
        return SimpleNamespace(qkv_proj=qkv, o_proj=attention.dense, scaling=attention.scaling)

    def read_layer(self, model: Any, index: int, form: Form) -> Layer:
        layer = self.stack(model)[index]
        return Layer(
            attention_norm=self.read_norm(layer.input_layernorm),
            attention=self.read_attention(model, index, form),
            mlp_norm=self.read_norm(layer.post_attention_layernorm),
            mlp=self.two_products(layer.mlp.dense_h_to_4h, layer.mlp.dense_4h_to_h, model.config, form),
            parallel=bool(model.config.use_parallel_residual),
        )


class Phi(LayerNorms):
    """Phi-1 and Phi-2: attention and MLP read one norm of the same residual."""

    types = ("phi",)

    def kv_heads(self, config: Any) -> int:
        return int(config.num_key_value_heads)

    def final_norm(self, model: Any) -> nn.LayerNorm:
        return model.base_model.final_layernorm  # type: ignore[no-any-return]

    def attention_module(self, layer: Any) -> Any:
        attention = layer.self_attn
        names = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "dense": "o_proj", "scaling": "scaling"}
        if attention.qk_layernorm:
            names |= {"q_layernorm": "q_norm", "k_layernorm": "k_norm"}
        return SimpleNamespace(**{ours: getattr(attention, theirs) for theirs, ours in names.items()})

    def read_layer(self, model: Any, index: int, form: Form) -> Layer:
        layer = self.stack(model)[index]
        norm = self.read_norm(layer.input_layernorm)
        return Layer(
            attention_norm=norm,
            attention=self.read_attention(model, index, form),
            mlp_norm=norm,
            mlp=self.two_products(layer.mlp.fc1, layer.mlp.fc2, model.config, form),
            parallel=True,
        )
