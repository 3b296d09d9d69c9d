"""Mixtures of experts: OLMoE, Mixtral, Qwen2-MoE and Qwen3-MoE, gpt-oss."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchctl.decoding.model.families.family import ACTIVATIONS, Family, LayerTypes, read_mlp, read_norm
from benchctl.decoding.model.kernels import Form, Norm
from benchctl.decoding.model.layers import Attention, Experts, Mlp, gated


class Mixture(Family):
    """Layers have a router and experts in place of an MLP."""

    def has_experts(self, config: Any, index: int) -> bool:
        return True

    def read_mlp(self, module: Any, config: Any, form: Form) -> Mlp | Experts:
        if not hasattr(module, "experts"):
            return super().read_mlp(module, config, form)
        return Experts(
            router=module.gate.weight.detach(),
            gate_up=module.experts.gate_up_proj.detach(),
            down=module.experts.down_proj.detach(),
            inner=gated(ACTIVATIONS[self.activation(config)]),
            top_k=int(config.num_experts_per_tok),
            renormalise=getattr(module.gate, "norm_topk_prob", True),
        )


class Mixtral(Mixture):
    types = ("mixtral",)

    def window(self, config: Any, index: int) -> int | None:
        return config.sliding_window  # type: ignore[no-any-return]


class Olmoe(Mixture):
    """OLMoE: queries, keys and values are clipped."""

    types = ("olmoe",)

    def read_attention(self, model: Any, index: int, form: Form) -> Attention:
        return replace(super().read_attention(model, index, form), clip=model.config.clip_qkv)


class Qwen3Moe(Mixture):
    """Qwen3-MoE: some layers may have a dense MLP; either all layers have the window of the configuration, or none."""

    types = ("qwen3_moe",)

    def has_experts(self, config: Any, index: int) -> bool:
        sparse = config.num_experts > 0 and (index + 1) % config.decoder_sparse_step == 0
        return sparse and index not in config.mlp_only_layers

    def window(self, config: Any, index: int) -> int | None:
        return config.sliding_window  # type: ignore[no-any-return]


class Qwen2Moe(Qwen3Moe):
    """Qwen2-MoE: every row also goes to a shared expert; a list names the layers with a window."""

    types = ("qwen2_moe",)

    def window(self, config: Any, index: int) -> int | None:
        return config.sliding_window if config.layer_types[index] == "sliding_attention" else None

    def read_mlp(self, module: Any, config: Any, form: Form) -> Mlp | Experts:
        mlp = super().read_mlp(module, config, form)
        if isinstance(mlp, Mlp):
            return mlp
        shared = read_mlp(module.shared_expert, ACTIVATIONS[self.activation(config)], form)
        return replace(mlp, shared=shared, shared_gate=module.shared_expert_gate.weight.detach())


class GptOss(Mixture, LayerTypes):
    """gpt-oss: attention has sinks, and experts have biases."""

    types = ("gpt_oss",)
    training_attention = "eager"

    def read_attention(self, model: Any, index: int, form: Form) -> Attention:
        sinks = self.stack(model)[index].self_attn.sinks.detach()
        return replace(super().read_attention(model, index, form), sinks=sinks)

    def read_norm(self, module: Any, order: Tensor | None = None) -> Norm:
        return read_norm(module, order, wide=True)

    def read_mlp(self, module: Any, config: Any, form: Form) -> Experts:
        experts, router = module.experts, module.router
        return Experts(
            router=router.weight.detach(),
            gate_up=experts.gate_up_proj.detach().mT,
            down=experts.down_proj.detach().mT,
            inner=partial(_clamped_swiglu, alpha=experts.alpha, limit=experts.limit),
            top_k=router.top_k,
            renormalise=True,  # a softmax over the chosen experts alone
            router_bias=router.bias.detach(),
            gate_up_bias=experts.gate_up_proj_bias.detach(),
            down_bias=experts.down_proj_bias.detach(),
        )


def _clamped_swiglu(joined: Tensor, alpha: float, limit: float) -> Tensor:
    """(up + 1) * gate * sigmoid(alpha * gate) of a joined product [rows, 2 f] with gate and up by turns, bounded."""
    gate, up = joined[..., ::2].clamp(max=limit), joined[..., 1::2].clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(alpha * gate)
