"""How a model of transformers becomes the structures of layers.py: what all decoder-only families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.model.kernels import CappedLinear, Form, Linear, Norm
from benchctl.decoding.model.layers import Attention, Encoder, Experts, Layer, Mlp
from benchctl.errors import UserError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}

_ENDLESS = 1 << 20  # tokens of a context that the configuration does not limit, as with ALiBi


@dataclass(frozen=True)
class Parts:
    """Everything that a target computes with.

    rotary       [positions, head_dim / 2] complex rotations, table 0
    more_rotary  tables 1 and on, where layers rotate differently; Attention.rope is the number of a layer's table
    positions    [positions, width] that are added to the embeddings of tokens at these positions, if any
    """

    embedding: Tensor
    embedding_scale: float
    blocks: list[Layer]
    final_norm: Norm
    lm_head: Linear
    rotary: Tensor
    encoder: Encoder | None = None
    more_rotary: tuple[Tensor, ...] = ()
    positions: Tensor | None = None


class Family:
    """Models of transformers whose layers are read alike; the methods here read Llama's.

    A family is a subclass in a file of this package, found by its name. It overrides the methods whose answer differs.

    types        model types of transformers' configurations
    has_encoder  whether an encoder reads the prompt
    plain_layers whether each layer computes what Llama's does: norm, attention, sum, norm, gated MLP or experts, sum
    adjacent     whether values 0 1, 2 3, ... of a head are the pairs that are rotated, not 0 and r / 2, ...
    training_attention
                 attention of transformers that reproduces the family in training
    """

    types: ClassVar[tuple[str, ...]] = ()
    has_encoder: ClassVar[bool] = False
    plain_layers: ClassVar[bool] = True
    adjacent: ClassVar[bool] = False
    training_attention: ClassVar[str] = "sdpa"

    # Facts that the configuration contains.

    def layers(self, config: Any) -> int:
        return int(config.num_hidden_layers)

    def heads(self, config: Any) -> int:
        return int(config.num_attention_heads)

    def kv_heads(self, config: Any) -> int:
        return int(getattr(config, "num_key_value_heads", None) or self.heads(config))

    def head_dim(self, config: Any) -> int:
        return int(getattr(config, "head_dim", None) or config.hidden_size // self.heads(config))

    def has_experts(self, config: Any, index: int) -> bool:
        """Whether layer ``index`` has experts in place of an MLP."""
        return False

    def is_mixture(self, config: Any) -> bool:
        return any(self.has_experts(config, index) for index in range(self.layers(config)))

    def mlp_size(self, config: Any) -> int:
        """Inner width of the MLP of all layers; 0 where some have experts."""
        size = getattr(config, "intermediate_size", 0)
        return int(size) if isinstance(size, int) and not self.is_mixture(config) else 0

    def experts_per_token(self, config: Any) -> int:
        """Experts that a token goes to in a layer that has experts; 0 for a dense model."""
        return int(config.num_experts_per_tok) if self.is_mixture(config) else 0

    def context_tokens(self, config: Any) -> int:
        """Positions the model can take. Rotations that change with the text's length end at the original context."""
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") in ("longrope", "dynamic"):
            original = rope.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            return int(original or config.max_position_embeddings)
        named = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))
        return int(next(filter(None, named), _ENDLESS))

    def activation(self, config: Any) -> str:
        return str(config.hidden_act)

    def window(self, config: Any, index: int) -> int | None:
        """Tokens that a row of layer ``index`` sees, itself included; None for all."""
        return None

    def rope(self, config: Any, index: int) -> int:
        """Number of the rotary table of layer ``index``."""
        return 0

    def softcap(self, config: Any) -> float | None:
        """Bound of attention scores, see Attention."""
        return None

    def head_scale(self, config: Any) -> float:
        """Factor of the logits; it is part of the final norm's gain."""
        return 1.0

    def head_cap(self, config: Any) -> float | None:
        """Bound of the logits, see CappedLinear."""
        return None

    def check(self, config: Any) -> None:
        """Raises UserError for a variant that this forward does not reproduce."""
        rope = getattr(config, "rope_parameters", None) or {}
        if "dynamic" in (
            rope.get("rope_type"),
            *(each.get("rope_type") for each in rope.values() if type(each) is dict),
        ):
            message = "rope type 'dynamic' is not supported: its keys change with the length of the text"
            raise UserError("unsupported_rope", message)
        if getattr(config, "use_bidirectional_attention", None):
            message = "bidirectional attention is not supported: such a model does not generate text"
            raise UserError("unsupported_attention", message)
        if (name := self.activation(config)) not in ACTIVATIONS:
            message = f"activation {name!r} is not supported; known: {', '.join(ACTIVATIONS)}"
            raise UserError("unsupported_activation", message)

    # Weights that the model of transformers holds.

    def read(self, model: Any, form: Form, release: bool = False, blocks: Sequence[Layer] = ()) -> Parts:
        """A decoder-only ``model`` as parts; products hold weights in the ``form``. ``blocks``: layers read already.

        With ``release`` each layer of ``model`` is freed as soon as it is read, so that no more than one layer is held
        in both forms. Where the form copies all weights, nothing keeps their file mapped. ``model`` cannot run
        afterwards.
        """
        stack, positions = self.stack(model), self.positions(model)
        embedding = model.get_input_embeddings().weight.detach()
        if release and form == "fast" and embedding.device.type == "cpu" and embedding.dtype == torch.float32:
            # A view of the file would keep all of it mapped.
            embedding, positions = embedding.clone(), None if positions is None else positions.clone()

        def read(index: int) -> Layer:
            layer = self.read_layer(model, index, form)
            if release:
                stack[index] = torch.nn.Identity()
            return layer

        tables = self.tables(model, self.context_tokens(model.config), embedding.dtype)
        return Parts(
            embedding=embedding,
            embedding_scale=self.embedding_scale(model),
            blocks=list(blocks or map(read, range(len(stack)))),
            final_norm=self.read_final_norm(self.final_norm(model), model.config),
            lm_head=self.read_head(model, form),
            rotary=tables[0],
            more_rotary=tables[1:],
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

    def embedding_scale(self, model: Any) -> float:
        """Factor of the embedding, which transformers keeps in the model's dtype."""
        embedding = model.get_input_embeddings()
        scale = getattr(embedding, "scalar_embed_scale", 1.0)
        return float(torch.tensor(scale, dtype=embedding.weight.dtype, device="cpu"))

    def read_final_norm(self, module: Any, config: Any) -> Norm:
        norm, scale = self.read_norm(module), self.head_scale(config)
        if scale == 1.0:
            return norm
        wide = torch.promote_types(norm.gain.dtype, torch.float32)  # the product is rounded once, with the rows
        return norm.scaled(norm.gain.new_full(norm.gain.shape, scale, dtype=wide))

    def read_head(self, model: Any, form: Form) -> Linear:
        head, cap = model.get_output_embeddings(), self.head_cap(model.config)
        if cap is None:
            return Linear(head.weight, head.bias, form)
        return CappedLinear(head.weight, head.bias, form, cap)

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
            adjacent=self.adjacent,
            window=self.window(config, index),
            rope=self.rope(config, index),
            softcap=self.softcap(config),
            form=form,
            read_norm=self.read_norm,
        )

    def attention_module(self, layer: Any) -> Any:
        """The module with the products of a ``layer``'s attention, by the names that read_attention takes."""
        return layer.self_attn

    def read_mlp(self, module: Any, config: Any, form: Form) -> Mlp | Experts:
        return read_mlp(module, ACTIVATIONS[self.activation(config)], form)

    def read_norm(self, module: Any, order: Tensor | None = None) -> Norm:
        """The norm of a module, with its gain in this ``order`` of features."""
        return read_norm(module, order)

    def rotated(self, model: Any) -> int:
        """Leading values of each head that are rotated."""
        buffers = model.base_model.rotary_emb.named_buffers()
        frequencies = (value for name, value in buffers if name.endswith("inv_freq"))
        return 2 * int(next(frequencies).numel())

    def rotary(self, model: Any, positions: int, dtype: torch.dtype, **layer_type: str) -> Tensor:
        """[positions, head_dim / 2] complex rotations of the model's own module; 1 where a pair is not rotated."""
        like, rotary_emb = model.get_input_embeddings().weight.new_empty(0, dtype=dtype), model.base_model.rotary_emb
        pairs, head_dim = self.rotated(model) // 2, self.head_dim(model.config)
        return rotations(partial(rotary_emb, **layer_type), pairs, head_dim, positions, like)

    def tables(self, model: Any, positions: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """The rotations of each rotary table; see `rotary`."""
        return (self.rotary(model, positions, dtype),)


class LayerTypes(Family):
    """Families whose configuration lists the type of each layer: sliding_attention has a window, full_attention none.

    Where each type has rotations of its own, table 0 is that of full_attention and table 1 that of sliding_attention.
    """

    plain_layers = False

    def window(self, config: Any, index: int) -> int | None:
        return config.sliding_window if config.layer_types[index] == "sliding_attention" else None

    def rope(self, config: Any, index: int) -> int:
        return _rotated_types(config).index(config.layer_types[index]) if _rotated_types(config) else 0

    def tables(self, model: Any, positions: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        types = _rotated_types(model.config)
        if not types:
            return super().tables(model, positions, dtype)
        return tuple(self.rotary(model, positions, dtype, layer_type=kind) for kind in types)


def _rotated_types(config: Any) -> list[str]:
    """The types of layers, ascending, where each has rotations of its own."""
    types = sorted(set(config.layer_types))
    return types if types[0] in config.rope_parameters else []


def read_norm(module: Any, order: Tensor | None = None, offset: float = 0.0, wide: bool = False) -> Norm:
    """The root-mean-square norm of a ``module``, whose gain is its weight plus ``offset``, in this ``order``.

    ``wide``  the gain multiplies half-precision rows before they are rounded
    """
    gain = module.weight.detach().clone()  # a view of the file would keep all of it mapped
    if offset or wide:
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
    adjacent: bool = False,
    window: int | None = None,
    rope: int = 0,
    softcap: float | None = None,
    clip: float | None = None,
    read_norm: Callable[[Any, Tensor | None], Norm] = read_norm,
) -> Attention:
    """The weights of a ``module`` with transformers' names, whose first ``rotated`` values of each head are rotated."""
    # The two halves of each rotated pair come side by side: 0, r/2, 1, r/2 + 1, ... then the rest. Some models have
    # them so already.
    halves = zip(range(rotated // 2), range(rotated // 2, rotated), strict=True)
    pairs = range(rotated) if adjacent else (index for pair in halves for index in pair)
    order = [*pairs, *range(rotated, head_dim)]
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
        rope=rope,
        softcap=softcap,
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


def rotations(rotary_emb: Any, pairs: int, head_dim: int, positions: int, like: Tensor) -> Tensor:
    """[positions, head_dim / 2] rotations by a module of transformers, on the device of ``like`` and of its kind.

    It rotates so many ``pairs``, and gives each angle once or twice.
    """
    wide = like.dtype if like.dtype in (torch.float32, torch.float64) else torch.float32
    probe = torch.zeros(1, dtype=wide, device=like.device)
    cos, sin = rotary_emb(probe, torch.arange(positions, device=like.device)[None])
    # Some modules give float32 whatever the probe is.
    table = torch.complex(cos[0, :, :pairs].to(wide), sin[0, :, :pairs].to(wide))
    return torch.cat((table, table.new_ones(positions, head_dim // 2 - pairs)), dim=-1)
