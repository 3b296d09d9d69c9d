"""From a transformers model to the structures of layers.py: one reader for all Llama-like families, one for T5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.model.kernels import Form, Linear, Norm
from benchctl.decoding.model.layers import Attention, CrossAttention, Encoder, Experts, Layer, Mlp
from benchctl.errors import UserError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "olmoe", "mixtral")
MIXTURES = ("olmoe", "mixtral")  # those of them with experts; a stray field of a configuration makes none
ENCODER_DECODERS = ("t5",)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


@dataclass(frozen=True)
class Parts:
    """What a target is made of."""

    embedding: Tensor
    embedding_scale: float
    blocks: list[Layer]
    final_norm: Norm
    lm_head: Linear
    rotary: Tensor
    encoder: Encoder | None = None


def check_family(config: Any) -> None:
    """UserError unless the configuration is of a family, and of a variant, this forward reproduces."""
    known = (*FAMILIES, *ENCODER_DECODERS)
    if config.model_type not in known:
        message = f"models of type {config.model_type!r} are not supported; known: {', '.join(known)}"
        raise UserError("unknown_family", message)
    if getattr(config, "quantization_config", None):
        raise UserError("quantised_checkpoint", "quantised checkpoints are not supported; name the unquantised model")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "dynamic":
        message = "rope type 'dynamic' is not supported: its keys change with the length of the text"
        raise UserError("unsupported_rope", message)
    if getattr(config, "use_bidirectional_attention", None):
        message = "bidirectional attention is not supported: such a model does not generate text"
        raise UserError("unsupported_attention", message)
    if activation_name(config) not in ACTIVATIONS:
        message = f"activation {activation_name(config)!r} is not supported; known: {', '.join(ACTIVATIONS)}"
        raise UserError("unsupported_activation", message)


def context_tokens(config: Any) -> int:
    """Positions the model can take; long-rope models are used within their original, unscaled context.

    T5, which knows distances only, takes what its configuration names, else the 512 tokens it was trained with.
    """
    if config.model_type in ENCODER_DECODERS:
        return int(getattr(config, "n_positions", None) or 512)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return int(rope.get("original_max_position_embeddings") or config.original_max_position_embeddings)
    return int(config.max_position_embeddings)


def rotary_table(model: Any, positions: int, dtype: torch.dtype) -> Tensor:
    """[positions, head_dim / 2] complex rotations, taken from the model's own module; 1 where a pair is not rotated."""
    like = model.model.embed_tokens.weight.new_empty(0, dtype=dtype)
    return rotations(model.model.rotary_emb, model.config, positions, like)


def rotations(rotary_emb: Any, config: Any, positions: int, like: Tensor) -> Tensor:
    """The same table by transformers' module for this configuration, where and as ``like`` is."""
    wide = like.dtype if like.dtype in (torch.float32, torch.float64) else torch.float32
    probe = torch.zeros(1, dtype=wide, device=like.device)
    cos, sin = rotary_emb(probe, torch.arange(positions, device=like.device)[None])
    pairs = cos.shape[-1] // 2
    table = torch.complex(cos[0, :, :pairs], sin[0, :, :pairs])
    return torch.cat((table, table.new_ones(positions, head_dim(config) // 2 - pairs)), dim=-1)


def read_parts(model: Any, form: Form, release: bool = False) -> Parts:
    """A decoder-only ``model`` as parts; products hold weights in the ``form``.

    With ``release`` each layer of ``model`` is freed as soon as it is read, so that no more than one layer is held in
    both forms. Where the form copies all weights, nothing keeps their file mapped. ``model`` cannot run afterwards.
    """
    body, embedding = model.model, model.model.embed_tokens.weight.detach()
    if release and form == "fast" and embedding.device.type == "cpu" and embedding.dtype == torch.float32:
        embedding = embedding.clone()  # a view of the file would keep all of it mapped

    def read(index: int) -> Layer:
        layer = read_layer(model, index, form)
        if release:
            body.layers[index] = torch.nn.Identity()
        return layer

    return Parts(
        embedding=embedding,
        embedding_scale=float(getattr(body.embed_tokens, "scalar_embed_scale", 1.0)),
        blocks=list(map(read, range(len(body.layers)))),
        final_norm=read_norm(body.norm, model.config),
        lm_head=Linear(model.lm_head.weight, model.lm_head.bias, form),
        rotary=rotary_table(model, context_tokens(model.config), embedding.dtype),
    )


def read_norm(module: Any, config: Any, order: Tensor | None = None) -> Norm:
    gain = module.weight.detach().clone()  # a view of the file would keep all of it mapped
    if config.model_type == "gemma":
        gain = gain.to(torch.promote_types(gain.dtype, torch.float32)) + 1.0  # 1 + w rounded to bfloat16 is too coarse
    eps = getattr(module, "eps", None) or module.variance_epsilon
    return Norm(gain if order is None else gain[order], eps)


def read_layer(model: Any, index: int, form: Form) -> Layer:
    layer, config, mlp = model.model.layers[index], model.config, model.model.layers[index].mlp
    return Layer(
        attention_norm=read_norm(layer.input_layernorm, config),
        attention=read_attention(layer.self_attn, config, index, form, 2 * model.model.rotary_emb.inv_freq.numel()),
        mlp_norm=read_norm(layer.post_attention_layernorm, config),
        mlp=_read_experts(mlp, config) if hasattr(mlp, "experts") else read_mlp(mlp, config, form),
    )


def head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def read_attention(module: Any, config: Any, index: int, form: Form, rotated: int) -> Attention:
    """Of a ``module`` named as in transformers, whose first ``rotated`` values of each head are rotated."""
    heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, head_dim(config)
    # The two halves of each rotated pair come side by side: 0, r/2, 1, r/2 + 1, ... then the rest.
    halves = zip(range(rotated // 2), range(rotated // 2, rotated), strict=True)
    order = [*(index for pair in halves for index in pair), *range(rotated, width)]
    # Rows of the fused product: queries and keys interleaved within each head, values as they are.
    turned = torch.arange((heads + kv_heads) * width).view(-1, width)[:, order].flatten()
    rows = torch.cat((turned, torch.arange(turned.numel(), turned.numel() + kv_heads * width)))
    weight, bias = _fused(module, "qkv_proj", ("q_proj", "k_proj", "v_proj"))
    per_head = hasattr(module, "q_norm") and module.q_norm.weight.shape[0] == width

    def head_norm(name: str, copies: int) -> Norm | None:
        index = torch.arange(copies * width).view(copies, -1)[:, order].flatten()
        return read_norm(getattr(module, name), config, index) if hasattr(module, name) else None

    return Attention(
        qkv=Linear(weight[rows], None if bias is None else bias[rows], form),
        out=Linear(module.o_proj.weight, module.o_proj.bias, form),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        scale=float(getattr(module, "scaling", width**-0.5)),
        query_norm=head_norm("q_norm", 1 if per_head else heads),
        key_norm=head_norm("k_norm", 1 if per_head else kv_heads),
        norm_per_head=per_head,
        clip=config.clip_qkv if config.model_type == "olmoe" else None,
        window=_window(config, index),
    )


def _window(config: Any, index: int) -> int | None:
    """Sliding window of a layer: Qwen heeds its list of layer types, Mistral and kin only the width, others neither."""
    if config.model_type in ("qwen2", "qwen3"):
        return config.sliding_window if config.layer_types[index] == "sliding_attention" else None
    return config.sliding_window if config.model_type in ("mistral", "mixtral", "phi3") else None


def _fused(module: Any, whole: str, parts: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of projections that share their input, whether the model holds them as one or apart."""
    modules = [getattr(module, whole)] if hasattr(module, whole) else [getattr(module, part) for part in parts]
    weight = torch.cat([m.weight.detach() for m in modules])
    if all(m.bias is None for m in modules):
        return weight, None
    return weight, torch.cat([m.bias.detach() for m in modules])


def decoder_layers(config: Any) -> int:
    encodes = config.model_type in ENCODER_DECODERS
    return int(config.num_decoder_layers if encodes else config.num_hidden_layers)


def experts_per_token(config: Any) -> int:
    return int(config.num_experts_per_tok) if config.model_type in MIXTURES else 0


def activation_name(config: Any) -> str:
    return str(config.dense_act_fn if config.model_type in ENCODER_DECODERS else config.hidden_act)


def read_mlp(module: Any, config: Any, form: Form) -> Mlp:
    weight, bias = _fused(module, "gate_up_proj", ("gate_proj", "up_proj"))
    down = Linear(module.down_proj.weight, module.down_proj.bias, form)
    return Mlp(Linear(weight, bias, form), down, ACTIVATIONS[activation_name(config)])


def _read_experts(module: Any, config: Any) -> Experts:
    return Experts(
        router=module.gate.weight.detach(),
        gate_up=module.experts.gate_up_proj.detach(),
        down=module.experts.down_proj.detach(),
        act=ACTIVATIONS[activation_name(config)],
        top_k=config.num_experts_per_tok,
        renormalise=getattr(module.gate, "norm_topk_prob", True),
    )


def read_t5(model: Any, form: Form) -> Parts:
    """A T5 model (also v1.1 and Flan) as parts. Its encoder runs as transformers runs it."""
    decoder, config = model.decoder, model.config
    crosses = [_read_cross(block.layer[1], config, form) for block in decoder.block]
    blocks = [_read_t5_layer(block, cross, config, form) for block, cross in zip(decoder.block, crosses, strict=True)]
    tokens, embedding = context_tokens(config), model.shared.weight.detach()
    # [heads, distances] what T5 adds to the scores of rows so far apart: as the last of so many rows has it.
    last_row = decoder.block[0].layer[0].SelfAttention.compute_bias(1, tokens, past_seen_tokens=tokens - 1)
    biases = last_row[0, :, 0].detach().flip(-1).contiguous()
    last = decoder.final_layer_norm
    wide = torch.complex64 if embedding.dtype != torch.float64 else torch.complex128
    return Parts(
        embedding=embedding,
        embedding_scale=1.0,
        blocks=blocks,
        final_norm=Norm(last.weight * head_scale(config), last.variance_epsilon),
        lm_head=Linear(model.lm_head.weight, None, form),
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


def _read_t5_layer(block: Any, cross: CrossAttention, config: Any, form: Form) -> Layer:
    attention, module = block.layer[0].SelfAttention, block.layer[2].DenseReluDense
    # Gated (gate wi_0, up wi_1) or with one product before the activation. transformers keeps wo in float32 where all
    # else is float16; what overflows here is refused by the probe.
    inner, _ = _fused(module, "wi", ("wi_0", "wi_1"))
    weight, _ = _fused(attention, "qkv", ("q", "k", "v"))
    return Layer(
        attention_norm=_read_t5_norm(block.layer[0]),
        attention=Attention(
            qkv=Linear(weight, None, form),
            out=Linear(attention.o.weight, None, form),
            heads=config.num_heads,
            kv_heads=config.num_heads,
            head_dim=config.d_kv,
            scale=1.0,
        ),
        mlp_norm=_read_t5_norm(block.layer[2]),
        mlp=Mlp(
            Linear(inner, None, form),
            Linear(module.wo.weight.to(inner.dtype), None, form),
            ACTIVATIONS[activation_name(config)],
            gated=config.is_gated_act,
        ),
        cross=cross,
    )


def _read_cross(layer: Any, config: Any, form: Form) -> CrossAttention:
    attention = layer.EncDecAttention
    both, _ = _fused(attention, "kv", ("k", "v"))
    query, out = Linear(attention.q.weight, None, form), Linear(attention.o.weight, None, form)
    return CrossAttention(_read_t5_norm(layer), query, Linear(both, None, form), out, config.num_heads)


def _read_t5_norm(layer: Any) -> Norm:
    return Norm(layer.layer_norm.weight, layer.layer_norm.variance_epsilon)
