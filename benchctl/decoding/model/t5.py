"""T5: a decoder without rotations whose layers look at what an encoder made of the prompt.

Raffel et al.: Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, 2020, arXiv
1910.10683. The encoder reads the prompt once; the decoder's own text begins with one start token. Positions are known
only by how far apart two rows are: a bias of the self-attention, the same in every layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchctl.decoding.kv.layout import Layout
from benchctl.decoding.model.families import ACTIVATIONS, Parts, activation_name, context_tokens
from benchctl.decoding.model.kernels import Linear, Norm
from benchctl.decoding.model.layers import Attention, Layer, Mlp
from benchctl.errors import UserError


class CrossAttention:
    """x -> x + what rows [rows, width] take from the encoder's states, after a norm; see ``read``."""

    def __init__(self, norm: Norm, query: Linear, keys_values: Linear, out: Linear, heads: int) -> None:
        self._norm, self._query, self._keys_values, self._out, self._heads = norm, query, keys_values, out, heads
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (self._norm.gain, self._query.weight, self._keys_values.weight, self._out.weight)

    def read(self, encoded: Tensor) -> None:
        """From now on look at ``encoded`` [tokens, width], the encoder's states of one prompt."""
        both = self._keys_values(encoded).view(encoded.shape[0], 2, self._heads, -1)
        # Keys [heads, head_dim, tokens], ready for the product with queries; values [heads, tokens, head_dim].
        self._keys, self._values = both[:, 0].permute(1, 2, 0).contiguous(), both[:, 1].transpose(0, 1).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        assert self._keys is not None and self._values is not None, "no prompt was read"
        # T5 does not scale scores by head_dim ** -0.5, and no position enters: every row sees the whole prompt.
        queries = self._query(self._norm(x)).view(x.shape[0], self._heads, -1).transpose(0, 1)
        scores = torch.bmm(queries, self._keys)  # [heads, rows, prompt tokens]
        wide = torch.promote_types(x.dtype, torch.float32)
        mixed = torch.bmm(scores.softmax(-1, dtype=wide).to(x.dtype), self._values)
        return self._out.add_to(x, mixed.transpose(0, 1).reshape(x.shape[0], -1))


class Encoder:
    """The model's own encoder, and what the decoder's layers keep of its answer."""

    def __init__(self, module: Any, crosses: Sequence[CrossAttention], start: int, biases: Tensor) -> None:
        """``start`` is the decoder's first token, ``biases`` [heads, distances] what a distance adds to a score."""
        self.start, self.biases = start, biases
        self._module, self._crosses = module, crosses

    def read(self, prompt_ids: Sequence[int]) -> None:
        """Encode a prompt: what every decoder layer looks at from now on."""
        ids = torch.tensor([list(prompt_ids)], device=self.biases.device)
        encoded = self._module(input_ids=ids).last_hidden_state[0]
        for cross in self._crosses:
            cross.read(encoded)

    def tensors(self) -> Iterator[Tensor]:
        """All weights beside those of the decoder's own layers."""
        yield from self._module.parameters()
        for cross in self._crosses:
            yield from cross.weights
        yield self.biases


class RelativeLayout(Layout):
    """A layout whose scores depend on how far apart two rows are: ``biases`` [heads, distances]."""

    def __init__(self, biases: Tensor, *where: Any) -> None:
        super().__init__(*where)
        self._biases = biases
        self._by_head: Tensor | None = None

    def bias(self, window: int | None, dtype: torch.dtype, copies: int = 1) -> Tensor:
        """[heads, rows, slots], -inf where a row may not look; there are no windows and no groups of heads."""
        if self._by_head is None:
            visible = super().bias(None, dtype)
            apart = self._distances()
            self._by_head = self._biases[:, apart] if visible is None else self._biases[:, apart] + visible
        return self._by_head

    def _distances(self) -> Tensor:
        """[rows, slots] how far each slot lies before each row; 0 where it lies behind, and is not seen."""
        slots = torch.tensor([*range(self._base), *self._positions], device=self._device)
        return (slots[self._base + self._skip :, None] - slots[None, :]).clamp_(min=0)


def distance_biases(weight: Tensor, distances: int, furthest: int) -> Tensor:
    """[heads, distances] from T5's table [buckets, heads].

    With n buckets, h = n / 2 and distance d: bucket d for d < h, else h + floor(h ln(d / h) / ln(furthest / h)), at
    most n - 1. Example of 32 buckets up to 128: distance 5 is bucket 5, 16 is 16, 32 is 21, 128 and more are 31.
    """
    single = weight.shape[0] // 2
    far = torch.arange(distances, device=weight.device)
    steps = torch.log(far.clamp(min=1).float() / single) / math.log(furthest / single) * (weight.shape[0] - single)
    grown = (single + steps.long()).clamp(max=weight.shape[0] - 1)
    return weight[torch.where(far < single, far, grown)].t().contiguous()


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
        "the model's configuration does not say which token its decoder begins with; add decoder_start_token_id, or "
        "pad_token_id, to its config.json"
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
