"""T5: a decoder without rotations whose layers look at what an encoder made of the prompt.

Raffel et al.: Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, 2020, arXiv
1910.10683. The encoder reads the prompt once; the decoder's own text begins with one start token. Positions are known
only by how far apart two rows are: a bias of the self-attention, the same in every layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchctl.decoding.model.families import ACTIVATIONS, Parts, activation_name, context_tokens
from benchctl.decoding.model.kernels import Linear, Norm
from benchctl.decoding.model.layers import Attention, CrossAttention, Encoder, Layer, Mlp, distance_biases
from benchctl.errors import UserError


def read_t5(model: Any, fast: bool) -> Parts:
    """A T5 model (also v1.1 and Flan) as what a target is made of. Its encoder runs as transformers runs it."""
    decoder, config = model.decoder, model.config
    crosses = [_read_cross(block.layer[1], config, fast) for block in decoder.block]
    blocks = [_read_layer(block, cross, config, fast) for block, cross in zip(decoder.block, crosses, strict=True)]
    tokens, embedding = context_tokens(config), model.shared.weight.detach()
    table = decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.detach()
    biases = distance_biases(table, tokens, config.relative_attention_max_distance)
    last = decoder.final_layer_norm
    wide = torch.complex64 if embedding.dtype != torch.float64 else torch.complex128
    return Parts(
        embedding=embedding,
        embedding_scale=1.0,
        blocks=blocks,
        final_norm=Norm(last.weight * head_scale(config), last.variance_epsilon),
        lm_head=Linear(model.lm_head.weight, None, fast),
        rotary=torch.ones(tokens, config.d_kv // 2, dtype=wide, device=embedding.device),
        encoder=Encoder(model.encoder, crosses, decoder_start(model), biases),
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


def head_scale(config: Any) -> float:
    """The oldest T5 multiply what the head reads by width ** -0.5: here that is part of the final norm."""
    return float(config.d_model**-0.5) if getattr(config, "scale_decoder_outputs", False) else 1.0


def _read_layer(block: Any, cross: CrossAttention, config: Any, fast: bool) -> Layer:
    attention = block.layer[0].SelfAttention
    weight = torch.cat([module.weight.detach() for module in (attention.q, attention.k, attention.v)])
    return Layer(
        attention_norm=_read_norm(block.layer[0]),
        attention=Attention(
            qkv=Linear(weight, None, fast),
            out=Linear(attention.o.weight, None, fast),
            heads=config.num_heads,
            kv_heads=config.num_heads,
            head_dim=config.d_kv,
            scale=1.0,
        ),
        mlp_norm=_read_norm(block.layer[2]),
        mlp=_read_mlp(block.layer[2].DenseReluDense, config, fast),
        cross=cross,
    )


def _read_cross(layer: Any, config: Any, fast: bool) -> CrossAttention:
    attention = layer.EncDecAttention
    both: Tensor = torch.cat([attention.k.weight.detach(), attention.v.weight.detach()])
    query, out = Linear(attention.q.weight, None, fast), Linear(attention.o.weight, None, fast)
    return CrossAttention(_read_norm(layer), query, Linear(both, None, fast), out, config.num_heads)


def _read_norm(layer: Any) -> Norm:
    return Norm(layer.layer_norm.weight, layer.layer_norm.variance_epsilon)


def _read_mlp(module: Any, config: Any, fast: bool) -> Mlp:
    """Gated (gate wi_0, up wi_1) or with one product before the activation."""
    parts = (module.wi_0, module.wi_1) if config.is_gated_act else (module.wi,)
    weight = torch.cat([part.weight.detach() for part in parts])
    # transformers keeps wo in float32 where all else is float16; what overflows here is refused by the probe.
    down = Linear(module.wo.weight.to(weight.dtype), None, fast)
    return Mlp(Linear(weight, None, fast), down, ACTIVATIONS[activation_name(config)], gated=config.is_gated_act)
