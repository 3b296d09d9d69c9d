"""T5, also v1.1 and Flan. Its encoder runs as transformers runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchctl.decoding.model.families.family import ACTIVATIONS, Family, Parts, fused
from benchctl.decoding.model.kernels import Form, Linear, Norm
from benchctl.decoding.model.layers import Attention, CrossAttention, Encoder, Layer, Mlp
from benchctl.errors import UserError


class T5(Family):
    types = ("t5",)
    has_encoder = True
    plain_layers = False

    def layers(self, config: Any) -> int:
        return int(config.num_decoder_layers)

    def kv_heads(self, config: Any) -> int:
        return int(config.num_heads)

    def head_dim(self, config: Any) -> int:
        return int(config.d_kv)

    def mlp_size(self, config: Any) -> int:
        return int(config.d_ff)

    def context_tokens(self, config: Any) -> int:
        """Positions that the configuration names, else the 512 that T5 was trained with: it knows distances only."""
        return int(getattr(config, "n_positions", None) or 512)

    def activation(self, config: Any) -> str:
        return str(config.dense_act_fn)

    def head_scale(self, config: Any) -> float:
        """The oldest T5 multiply what the head reads by width ** -0.5."""
        return float(config.d_model**-0.5) if getattr(config, "scale_decoder_outputs", False) else 1.0

    def read(self, model: Any, form: Form, release: bool = False, blocks: Sequence[Layer] = ()) -> Parts:
        decoder, config = model.decoder, model.config
        crosses = [_read_cross(block.layer[1], config, form) for block in decoder.block]
        blocks = [self._layer(block, cross, config, form) for block, cross in zip(decoder.block, crosses, strict=True)]
        tokens, embedding = self.context_tokens(config), model.shared.weight.detach()
        # [heads, distances] what T5 adds to the scores of rows so far apart: as the last of so many rows has it.
        last_row = decoder.block[0].layer[0].SelfAttention.compute_bias(1, tokens, past_seen_tokens=tokens - 1)
        biases = last_row[0, :, 0].detach().flip(-1).contiguous()
        last = decoder.final_layer_norm
        wide = torch.complex64 if embedding.dtype != torch.float64 else torch.complex128
        return Parts(
            embedding=embedding,
            embedding_scale=1.0,
            blocks=blocks,
            final_norm=Norm(last.weight * self.head_scale(config), last.variance_epsilon),
            lm_head=Linear(model.lm_head.weight, None, form),
            rotary=torch.ones(tokens, config.d_kv // 2, dtype=wide, device=embedding.device),
            encoder=Encoder(model.encoder, crosses, decoder_start(model), biases),
        )

    def _layer(self, block: Any, cross: CrossAttention, config: Any, form: Form) -> Layer:
        attention, module = block.layer[0].SelfAttention, block.layer[2].DenseReluDense
        # Gated (gate wi_0, up wi_1) or with one product before the activation. transformers keeps wo in float32 where
        # all else is float16; what overflows here is refused by the probe.
        inner, _ = fused(module, "wi", ("wi_0", "wi_1"))
        weight, _ = fused(attention, "qkv", ("q", "k", "v"))
        return Layer(
            attention_norm=_read_norm(block.layer[0]),
            attention=Attention(
                qkv=Linear(weight, None, form),
                out=Linear(attention.o.weight, None, form),
                heads=config.num_heads,
                kv_heads=config.num_heads,
                head_dim=config.d_kv,
                scale=1.0,
            ),
            mlp_norm=_read_norm(block.layer[2]),
            mlp=Mlp(
                Linear(inner, None, form),
                Linear(module.wo.weight.to(inner.dtype), None, form),
                ACTIVATIONS[self.activation(config)],
                gated=config.is_gated_act,
            ),
            cross=cross,
        )


def decoder_start(model: Any) -> int:
    """The token that the decoder's text begins with. Raises UserError where nothing says which that is."""
    for start in (model.generation_config.decoder_start_token_id, model.config.pad_token_id):
        if start is not None:
            return int(start)
    raise UserError(
        "no_decoder_start",
        "the model's configuration does not say which token its decoder begins with; add decoder_start_token_id, or "
        "pad_token_id, to its config.json",
    )


def _read_cross(layer: Any, config: Any, form: Form) -> CrossAttention:
    attention = layer.EncDecAttention
    both, _ = fused(attention, "kv", ("k", "v"))
    query, out = Linear(attention.q.weight, None, form), Linear(attention.o.weight, None, form)
    return CrossAttention(_read_norm(layer), query, Linear(both, None, form), out, config.num_heads)


def _read_norm(layer: Any) -> Norm:
    return Norm(layer.layer_norm.weight, layer.layer_norm.variance_epsilon)
