"""Mixtures of experts: OLMoE and Mixtral."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchctl.decoding.model.families.family import ACTIVATIONS, Family
from benchctl.decoding.model.kernels import Form
from benchctl.decoding.model.layers import Attention, Experts


class Mixture(Family):
    """Every layer has a router and experts in place of an MLP."""

    def mlp_size(self, config: Any) -> int:
        return 0

    def experts_per_token(self, config: Any) -> int:
        return int(config.num_experts_per_tok)

    def read_mlp(self, module: Any, config: Any, form: Form) -> Experts:
        return Experts(
            router=module.gate.weight.detach(),
            gate_up=module.experts.gate_up_proj.detach(),
            down=module.experts.down_proj.detach(),
            act=ACTIVATIONS[self.activation(config)],
            top_k=self.experts_per_token(config),
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
