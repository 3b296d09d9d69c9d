"""How a model of transformers becomes the structures of layers.py: what all decoder-only families share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.model.kernels import Form, Linear, Norm
from benchctl.decoding.model.layers import Attention, Encoder, Experts, Layer, Mlp
from benchctl.errors import UserError

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
    """Everything that a target computes with.

    rotary     [positions, head_dim / 2] complex rotations
    positions  [positions, width] that are added to the embeddings of tokens at these positions, if any
    """

    embedding: Tensor
    embedding_scale: float
    blocks: list[Layer]
    final_norm: Norm
    lm_head: Linear
    rotary: Tensor
    encoder: Encoder | None = None
    positions: Tensor | None = None


class Family:
    """Models of transformers whose layers are read alike; the methods here read Llama's.

    A family is a subclass in a file of this package, found by its name. It overrides the methods whose answer differs.

    types        model types of transformers' configurations
    has_encoder  whether an encoder reads the prompt
    plain_layers whether each layer computes what Llama's does: norm, attention, sum, norm, gated MLP or experts, sum
    """

    types: ClassVar[tuple[str, ...]] = ()
    has_encoder: ClassVar[bool] = False
    plain_layers: ClassVar[bool] = True

    # Facts that the configuration contains.

    def layers(self, config: Any) -> int:
        return int(config.num_hidden_layers)

    def heads(self, config: Any) -> int:
        return int(config.num_attention_heads)

    def kv_heads(self, config: Any) -> int:
        return int(getattr(config, "num_key_value_heads", None) or self.heads(config))

    def head_dim(self, config: Any) -> int:
        return int(getattr(config, "head_dim", None) or config.hidden_size // self.heads(config))

    def mlp_size(self, config: Any) -> int:
        """Inner width of a dense MLP; 0 for a mixture of experts."""
        return int(config.intermediate_size)

    def experts_per_token(self, config: Any) -> int:
        """Experts that a token goes to in a layer; 0 for a dense model."""
        return 0

    def context_tokens(self, config: Any) -> int:
        """Positions the model can take; long-rope models are used within their original, unscaled context."""
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":
            return int(rope.get("original_max_position_embeddings") or config.original_max_position_embeddings)
        return int(config.max_position_embeddings)

    def activation(self, config: Any) -> str:
        return str(config.hidden_act)

    def window(self, config: Any, index: int) -> int | None:
        """Tokens that a row of layer ``index`` sees, itself included; None for all."""
        return None

    def check(self, config: Any) -> None:
        """Raises UserError for a variant that this forward does not reproduce."""
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "dynamic":
            message = "rope type 'dynamic' is not supported: its keys change with the length of the text"
            raise UserError("unsupported_rope", message)
        if getattr(config, "use_bidirectional_attention", None):
            message = "bidirectional attention is not supported: such a model does not generate text"
            raise UserError("unsupported_attention", message)
        if (name := self.activation(config)) not in ACTIVATIONS:
            message = f"activation {name!r} is not supported; known: {', '.join(ACTIVATIONS)}"
            raise UserError("unsupported_activation", message)

    # Weights that the model of transformers holds.

    def read(self, model: Any, form: Form, release: bool = False) -> Parts:
        """A decoder-only ``model`` as parts; products hold weights in the ``form``.

        With ``release`` each layer of ``model`` is freed as soon as it is read, so that no more than one layer is held
        in both forms. Where the form copies all weights, nothing keeps their file mapped. ``model`` cannot run
        afterwards.
        """
        stack, embed, head = self.stack(model), model.get_input_embeddings(), model.get_output_embeddings()
        embedding, positions = embed.weight.detach(), self.positions(model)
        if release and form == "fast" and embedding.device.type == "cpu" and embedding.dtype == torch.float32:
            # A view of the file would keep all of it mapped.
            embedding, positions = embedding.clone(), None if positions is None else positions.clone()

        def read(index: int) -> Layer:
            layer = self.read_layer(model, index, form)
            if release:
                stack[index] = torch.nn.Identity()
            return layer

        return Parts(
            embedding=embedding,
            embedding_scale=float(getattr(embed, "scalar_embed_scale", 1.0)),
            blocks=list(map(read, range(len(stack)))),
            final_norm=self.read_norm(self.final_norm(model)),
            lm_head=Linear(head.weight, head.bias, form),
            rotary=self.rotary(model, self.context_tokens(model.config), embedding.dtype),
            positions=positions,
        )

    def stack(self, model: Any) -> Any:
        """The layers of a ``model``, as its list of modules."""
        return model.base_model.layers

    def final_norm(self, model: Any) -> Any:
        """The norm before the LM head."""
        return model.base_model.norm

    def positions(self, model: Any) -> Tensor | None:
        """[positions, width] that are added to embeddings; None where positions enter by rotations alone."""
        return None

    def read_layer(self, model: Any, index: int, form: Form) -> Layer:
        layer = self.stack(model)[index]
        return Layer(
            attention_norm=self.read_norm(layer.input_layernorm),
            attention=self.read_attention(model, index, form),
            mlp_norm=self.read_norm(layer.post_attention_layernorm),
            mlp=self.read_mlp(layer.mlp, model.config, form),
        )

    def read_attention(self, model: Any, index: int, form: Form) -> Attention:
        config = model.config
        return read_attention(
            self.attention_module(self.stack(model)[index]),
            heads=self.heads(config),
            kv_heads=self.kv_heads(config),
            head_dim=self.head_dim(config),
            rotated=self.rotated(model),
            window=self.window(config, index),
            form=form,
            read_norm=self.read_norm,
        )

    def attention_module(self, layer: Any) -> Any:
        """What holds the products of a ``layer``'s attention by the names that read_attention takes."""
        return layer.self_attn

    def read_mlp(self, module: Any, config: Any, form: Form) -> Mlp | Experts:
        return read_mlp(module, ACTIVATIONS[self.activation(config)], form)

    def read_norm(self, module: Any, order: Tensor | None = None) -> Norm:
        """The norm of a module, with its gain in this ``order`` of features."""
        return read_norm(module, order)

    def rotated(self, model: Any) -> int:
        """Leading values of each head that are rotated."""
        return 2 * int(model.base_model.rotary_emb.inv_freq.numel())

    def rotary(self, model: Any, positions: int, dtype: torch.dtype) -> Tensor:
        """[positions, head_dim / 2] complex rotations of the model's own module; 1 where a pair is not rotated."""
        like = model.get_input_embeddings().weight.new_empty(0, dtype=dtype)
        return rotations(model.base_model.rotary_emb, self.head_dim(model.config), positions, like)


def read_norm(module: Any, order: Tensor | None = None, offset: float = 0.0) -> Norm:
    """The root-mean-square norm of a ``module``, whose gain is its weight plus ``offset``, in this ``order``."""
    gain = module.weight.detach().clone()  # a view of the file would keep all of it mapped
    if offset:
        gain = gain.to(torch.promote_types(gain.dtype, torch.float32)) + offset  # 1 + w in bfloat16 is too coarse
    eps = getattr(module, "eps", None) or module.variance_epsilon
    return Norm(gain if order is None else gain[order], eps)


def read_attention(
    module: Any,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotated: int,
    form: Form,
    window: int | None = None,
    clip: float | None = None,
    read_norm: Callable[[Any, Tensor | None], Norm] = read_norm,
) -> Attention:
    """The weights of a ``module`` with transformers' names, whose first ``rotated`` values of each head are rotated."""
    # The two halves of each rotated pair come side by side: 0, r/2, 1, r/2 + 1, ... then the rest.
    halves = zip(range(rotated // 2), range(rotated // 2, rotated), strict=True)
    order = [*(index for pair in halves for index in pair), *range(rotated, head_dim)]
    # Rows of the fused product: queries and keys interleaved within each head, values as they are.
    turned = torch.arange((heads + kv_heads) * head_dim).view(-1, head_dim)[:, order].flatten()
    rows = torch.cat((turned, torch.arange(turned.numel(), turned.numel() + kv_heads * head_dim)))
    weight, bias = fused(module, "qkv_proj", ("q_proj", "k_proj", "v_proj"))
    per_head = hasattr(module, "q_norm") and module.q_norm.weight.shape[0] == head_dim

    def head_norm(name: str, copies: int) -> Norm | None:
        index = torch.arange(copies * head_dim).view(copies, -1)[:, order].flatten()
        return read_norm(getattr(module, name), index) if hasattr(module, name) else None

    return Attention(
        qkv=Linear(weight[rows], None if bias is None else bias[rows], form),
        out=Linear(module.o_proj.weight, module.o_proj.bias, form),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=float(getattr(module, "scaling", head_dim**-0.5)),
        query_norm=head_norm("q_norm", 1 if per_head else heads),
        key_norm=head_norm("k_norm", 1 if per_head else kv_heads),
        norm_per_head=per_head,
        clip=clip,
        window=window,
    )


def read_mlp(module: Any, act: Callable[[Tensor], Tensor], form: Form) -> Mlp:
    weight, bias = fused(module, "gate_up_proj", ("gate_proj", "up_proj"))
    return Mlp(Linear(weight, bias, form), Linear(module.down_proj.weight, module.down_proj.bias, form), act)


def fused(module: Any, whole: str, parts: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of projections that share their input, whether the model holds them as one or apart."""
    modules = [getattr(module, whole)] if hasattr(module, whole) else [getattr(module, part) for part in parts]
    weight = torch.cat([m.weight.detach() for m in modules])
    if all(m.bias is None for m in modules):
        return weight, None
    return weight, torch.cat([m.bias.detach() for m in modules])


def rotations(rotary_emb: Any, head_dim: int, positions: int, like: Tensor) -> Tensor:
    """[positions, head_dim / 2] rotations by a module of transformers, on the device of ``like`` and of its kind."""
    wide = like.dtype if like.dtype in (torch.float32, torch.float64) else torch.float32
    probe = torch.zeros(1, dtype=wide, device=like.device)
    cos, sin = rotary_emb(probe, torch.arange(positions, device=like.device)[None])
    pairs = cos.shape[-1] // 2
    table = torch.complex(cos[0, :, :pairs], sin[0, :, :pairs])
    return torch.cat((table, table.new_ones(positions, head_dim // 2 - pairs)), dim=-1)
