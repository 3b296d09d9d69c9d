"""A lean forward pass of a decoder over rows of one sequence (attention, MLP, experts), and T5's encoder.

No module calls, queries, keys and values in one product, rotary embedding as one complex product in place. Cross
attention reads the encoder's states of the prompt: Raffel et al. 2020, arXiv 1910.10683, section 2.1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.kv.cache import Cache, Encoded, Layout
from benchctl.decoding.model.kernels import Linear, Norm

# Up to this many rows two batched products beat the fused kernel, whose set-up costs more than the work.
_FEW_ROWS = 16
_MOST_SCORES = 1 << 24  # held at a time where the fused kernel cannot be used


@dataclass(frozen=True)
class Attention:
    """Weights of one attention sub-layer; qkv gives queries, keys, values, heads interleaved for the complex rotary.

    rope     number of the rotary table that turns queries and keys, see Layout
    softcap  scores become softcap * tanh(score / softcap)
    sinks    [heads] a score of each head for a slot that has no value, next to those of the slots that a row sees
    post     changes the result before it is added to the residual, for example a norm
    """

    qkv: Linear
    out: Linear
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    norm_per_head: bool = True
    clip: float | None = None
    window: int | None = None
    rope: int = 0
    softcap: float | None = None
    sinks: Tensor | None = None
    post: Callable[[Tensor], Tensor] | None = None

    def add_to(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """The residual [rows, width] after attention, whose heads gave ``mixed`` [rows, heads * head_dim]."""
        return self.out.add_to(residual, mixed) if self.post is None else residual + self.post(self.out(mixed))


@dataclass(frozen=True)
class Mlp:
    """residual + down(act(gate x) * (up x)), gate and up in one product; not ``gated``: residual + down(act(up x)).

    post  as in Attention
    """

    gate_up: Linear
    down: Linear
    act: Callable[[Tensor], Tensor]
    gated: bool = True
    post: Callable[[Tensor], Tensor] | None = None

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (self.gate_up.weight, self.down.weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        if self.gated:
            gate, up = self.gate_up(x).chunk(2, 1)
            inner = self.act(gate).mul_(up)
        else:
            inner = self.act(self.gate_up(x))
        return self.down.add_to(residual, inner) if self.post is None else residual + self.post(self.down(inner))


@dataclass(frozen=True)
class ExpertWeights:
    """One expert of a mixture: gate_up [2 f, width], down [width, f]."""

    number: int
    gate_up: Tensor
    down: Tensor


Fetch = Callable[[Sequence[int], Tensor], Iterator[ExpertWeights]]
"""The experts that are needed, one by one; of the residual [rows, width] that their answers will be added to."""


def gated(act: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """act(gate) * up of a joined product [rows, 2 f] with gate first."""

    def apply(joined: Tensor) -> Tensor:
        gate, up = joined.chunk(2, dim=-1)
        return act(gate) * up

    return apply


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: router [experts, width], gate_up [experts, 2 f, width], down [experts, width, f].

    inner        [rows, f] of the product with gate_up [rows, 2 f]
    router_bias, gate_up_bias, down_bias
                 [experts], [experts, 2 f] and [experts, width]; they are small, and stay resident
    shared       an MLP for every row, whose result sigmoid(shared_gate x) multiplies; shared_gate [1, width]
    fetch        hands out experts that are not resident
    post         as in Attention
    """

    router: Tensor
    gate_up: Tensor
    down: Tensor
    inner: Callable[[Tensor], Tensor]
    top_k: int
    renormalise: bool
    router_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    shared: Mlp | None = None
    shared_gate: Tensor | None = None
    fetch: Fetch | None = None
    post: Callable[[Tensor], Tensor] | None = None

    @property
    def weights(self) -> tuple[Tensor, ...]:
        more = (self.router_bias, self.gate_up_bias, self.down_bias, self.shared_gate)
        shared = () if self.shared is None else self.shared.weights
        return (self.router, self.gate_up, self.down, *(each for each in more if each is not None), *shared)

    def logits(self, x: Tensor) -> Tensor:
        """[..., experts] of the router, for ``x`` [..., width]."""
        return F.linear(x, self.router, self.router_bias)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and indices [rows, top_k] of the experts each row goes to."""
        probs = self.logits(x).softmax(-1, dtype=torch.promote_types(x.dtype, torch.float32))
        weights, experts = probs.topk(self.top_k, dim=-1)
        if self.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), experts

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        weights, experts = self.route(x)
        result = torch.zeros_like(x)
        if self.shared is not None and self.shared_gate is not None:
            result = self.shared.add_to(result, x) * F.linear(x, self.shared_gate).sigmoid()
        # Expert by expert: its weights are read once, for all rows that go to it.
        for expert in (self.fetch or self._resident)(sorted(set(experts.flatten().tolist())), residual):
            row, slot = torch.where(experts == expert.number)
            inner = self.inner(F.linear(x[row], expert.gate_up, _row(self.gate_up_bias, expert.number)))
            answer = F.linear(inner, expert.down, _row(self.down_bias, expert.number))
            result.index_add_(0, row, answer * weights[row, slot, None])
        return residual + (result if self.post is None else self.post(result))

    def _resident(self, needed: Sequence[int], residual: Tensor) -> Iterator[ExpertWeights]:
        for number in needed:
            yield ExpertWeights(number, self.gate_up[number], self.down[number])


def _row(table: Tensor | None, index: int) -> Tensor | None:
    return None if table is None else table[index]


@dataclass(frozen=True)
class Layer:
    """One decoder layer: x + attention(norm(x)), then cross(x) where there is an encoder, then x + mlp(norm(x)).

    parallel  the MLP reads x as it was before attention: x + attention(norm(x)) + mlp(norm(x))
    """

    attention_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: Mlp | Experts
    cross: CrossAttention | None = None
    parallel: bool = False

    @property
    def norms(self) -> list[Norm]:
        """All norms that have weights, each once, those of queries, keys and results included."""
        attention = self.attention
        places = (self.attention_norm, attention.query_norm, attention.key_norm, attention.post)
        all_places = (*places, self.mlp_norm, self.mlp.post)
        return [norm for norm in dict.fromkeys(all_places) if isinstance(norm, Norm) and norm.tensors]

    def finish(self, x: Tensor, mixed: Tensor, mlp: bool = True, encoded: Encoded | None = None) -> Tensor:
        """The residual behind the layer, of ``x`` before it and what attention ``mixed``; see Attention.add_to.

        ``encoded`` is what the layer reads of an encoder's answer.
        """
        after = self.attention.add_to(x, mixed)
        if self.cross is not None:
            assert encoded is not None, "no prompt was read"
            after = self.cross(after, encoded)
        return self.mlp.add_to(after, self.mlp_norm(x if self.parallel else after)) if mlp else after

    def gate_logits(self, state: Tensor) -> Tensor:
        """[..., experts] of the layer's own norm and gate, where it has experts, for ``state`` [..., width]."""
        assert isinstance(self.mlp, Experts), "a mixture of experts"
        return self.mlp.logits(self.mlp_norm(state))


def mix(attention: Attention, queries: Tensor, keys: Tensor, values: Tensor, layout: Layout) -> Tensor:
    """[rows, heads * head_dim]: for each row of queries [rows, heads, head_dim] the values it sees, weighted."""
    rows, groups = queries.shape[0], attention.heads // attention.kv_heads
    if rows <= _FEW_ROWS:
        return _mix_batched(attention, queries, keys, values, layout.bias(attention.window, queries.dtype, groups))
    if attention.softcap is None and attention.sinks is None:
        mixed = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=layout.bias(attention.window, queries.dtype),
            scale=attention.scale,
            enable_gqa=groups != 1,
        )
        return mixed[0].transpose(0, 1).reshape(rows, -1)
    # The fused kernel has neither soft caps nor sinks. Some rows at a time: all scores of a long prompt take gigabytes.
    bias = layout.bias(attention.window, queries.dtype)
    count, parts = max(1, _MOST_SCORES // (attention.heads * keys.shape[1])), []
    for first in range(0, rows, count):
        part = bias if bias is None or bias.shape[0] == 1 else bias[first : first + count].repeat(groups, 1)
        parts.append(_mix_batched(attention, queries[first : first + count], keys, values, part))
    return torch.cat(parts)


def _mix_batched(attention: Attention, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """Result of `mix` by two batched products. ``bias`` is Layout's, with a copy for each query head of a group."""
    rows, kv_heads, head_dim = queries.shape[0], attention.kv_heads, attention.head_dim
    groups = attention.heads // kv_heads
    # Query heads that share a key head become rows of one batched product: 8 query and 2 key heads of 3 rows are
    # [2, 4 * 3, head_dim], and keys are not repeated. Hence `copies` of the bias, one for each query head of a group.
    if rows == 1:
        return weigh(attention, queries.reshape(kv_heads, groups, head_dim), keys, values, bias).view(1, -1)
    grouped = queries.view(rows, kv_heads, groups, head_dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, head_dim)
    mixed = weigh(attention, grouped, keys, values, bias)
    return mixed.view(kv_heads, groups, rows, head_dim).permute(2, 0, 1, 3).reshape(rows, -1)


def project(
    attention: Attention, x: Tensor, rotary: Tensor, adapt: Callable[[Tensor], object] | None = None
) -> tuple[Tensor, Tensor]:
    """Queries [rows, heads, head_dim] and, with keys before values, [2 * kv_heads, rows, head_dim]; both rotated.

    ``rotary`` [rows, 1, head_dim / 2] turns each row, or those of Layout.turns for float32 and float64.
    ``adapt`` may change what ``attention.qkv`` gave in place.
    """
    flat = attention.qkv(x)
    if adapt is not None:
        adapt(flat)
    return finish(attention, flat, rotary)


def finish(attention: Attention, flat: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
    """The queries, keys and values of ``project`` from what ``attention.qkv`` gave, which is changed in place."""
    heads, kv_heads, rows = attention.heads, attention.kv_heads, flat.shape[0]
    qkv = flat.view(rows, heads + 2 * kv_heads, attention.head_dim)
    if attention.query_norm is not None:
        qkv[:, :heads] = _norm_heads(attention.query_norm, qkv[:, :heads], attention.norm_per_head)
    if attention.key_norm is not None:
        keys = qkv[:, heads : heads + kv_heads]
        qkv[:, heads : heads + kv_heads] = _norm_heads(attention.key_norm, keys, attention.norm_per_head)
    if attention.clip is not None:
        qkv.clamp_(-attention.clip, attention.clip)
    # families/ interleaved each head, so that a rotated pair (x, y) is adjacent: the complex number x + iy, which one
    # product with exp(i * position * frequency) turns. Values, behind queries and keys, are not rotated.
    if rotary.ndim == 2:
        flat.view(rotary.dtype).mul_(rotary)
    else:
        rotated = qkv[:, : heads + kv_heads]
        pairs = rotated.view(rows, heads + kv_heads, -1, 2)
        if rotated.dtype in (torch.float32, torch.float64):
            torch.view_as_complex(pairs).mul_(rotary)
        else:
            wide = torch.view_as_complex(pairs.float()) * rotary
            rotated.copy_(torch.view_as_real(wide).flatten(-2))
    queries, kv = qkv.split_with_sizes((heads, 2 * kv_heads), 1)
    return queries, kv.transpose(0, 1)


def _norm_heads(norm: Norm, x: Tensor, per_head: bool) -> Tensor:
    """Norm of queries or keys [rows, heads, head_dim]: each head alone (Qwen3) or all together (OLMoE)."""
    if x.requires_grad:
        x = x.clone()  # the backward of a norm reads what it was given, and the caller writes over that
    return norm(x) if per_head else norm(x.flatten(1)).view_as(x)


def weigh(attention: Attention, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """[heads, rows, head_dim]: the values [heads, slots, head_dim] as queries [heads, rows, head_dim] weight them.

    Heads are the key heads of one sequence after another; rows are those of one query head of a group after another.

    ``bias``, of a shape that spreads to [heads, rows, slots], is -inf where a row may not look.
    """
    scale, softcap = attention.scale, attention.softcap
    if bias is None or softcap is not None:  # beta=0 ignores the summand
        scores = torch.baddbmm(_nothing(queries.dtype, queries.device), queries, keys.mT, beta=0, alpha=scale)
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
            scores = scores if bias is None else scores.add_(bias)
    else:
        scores = torch.baddbmm(bias, queries, keys.mT, alpha=scale)
    if attention.sinks is not None:
        scores = torch.cat((scores, _spread(attention, *queries.shape[:2])), -1)
    if values.dtype in (torch.float32, torch.float64):
        weights = scores.softmax(-1)
    else:
        weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    return torch.bmm(weights if attention.sinks is None else weights[..., :-1], values)


def _spread(attention: Attention, heads: int, rows: int) -> Tensor:
    """[heads, rows, 1] the sinks of the query heads, for heads and rows as in `weigh`."""
    assert attention.sinks is not None
    kv_heads, groups = attention.kv_heads, attention.heads // attention.kv_heads
    sinks = attention.sinks.view(1, kv_heads, groups, 1)
    return sinks.expand(heads // kv_heads, -1, -1, rows // groups).reshape(heads, rows, 1)


@functools.cache
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(1, dtype=dtype, device=device)


def run_layers(
    layers: Sequence[Layer],
    first: int,
    x: Tensor,
    cache: Cache,
    layout: Layout,
    normed: Tensor | None = None,
    mlps: bool = True,
) -> Tensor:
    """Residual ``x`` [rows, width] through ``layers``, which are the model's from ``first`` on.

    ``normed`` [rows, inputs] is read by the first attention instead of its norm of ``x``; without ``mlps`` these are
    skipped.
    """
    first_attention = layers[0].attention
    rope, rotary = first_attention.rope, _turns(first_attention, x.dtype, layout)
    opened = cache.open(first, first + len(layers), layout.start, layout.rows)
    for index, (layer, slots) in enumerate(zip(layers, opened, strict=True), first):
        if layer.attention.rope != rope:
            rope, rotary = layer.attention.rope, _turns(layer.attention, x.dtype, layout)
        queries, kv = project(layer.attention, layer.attention_norm(x) if normed is None else normed, rotary)
        normed = None
        slots.new.copy_(kv)  # rows see their own keys and values too
        if layout.choose is not None:
            layout.choose(index, queries)
        encoded = None if layer.cross is None else cache.encoded[index]
        x = layer.finish(x, mix(layer.attention, queries, slots.keys, slots.values, layout), mlps, encoded)
    return x


def _turns(attention: Attention, dtype: torch.dtype, layout: Layout) -> Tensor:
    """The rotations that `project` takes for rows of this ``dtype``."""
    if dtype not in (torch.float32, torch.float64):
        return layout.turn(attention.rope)
    rotated = attention.heads + attention.kv_heads
    return layout.turns(rotated, rotated + attention.kv_heads, attention.rope)


class Parts(NamedTuple):
    """Which sublayers of a layer run."""

    attention: bool = True
    mlp: bool = True


def run_parts(
    layers: Sequence[Layer], parts: Sequence[Parts], first: int, x: Tensor, cache: Cache, layout: Layout
) -> Tensor:
    """As run_layers, where each layer runs its ``parts`` only; a skipped attention writes no keys and values."""
    for kept, group in groupby(range(len(layers)), key=parts.__getitem__):
        index, *more = group
        some = layers[index : index + 1 + len(more)]
        if kept.attention:
            x = run_layers(some, first + index, x, cache, layout, mlps=kept.mlp)
        elif kept.mlp:
            for layer in some:
                x = layer.mlp.add_to(x, layer.mlp_norm(x))
    return x


class Filler:
    """Keys and values of a row that left early for ``layers``, the model's from ``first`` on, without running them.

    ``products`` give these of each layer. Norms, rotations and sums of all layers are one operation each: starting
    small ones would take most of the time.
    """

    def __init__(self, layers: Sequence[Layer], products: Sequence[Linear], first: int) -> None:
        self._first, self._products = first, products
        self._norm = Norm.stacked([layer.attention_norm for layer in layers])
        attentions = [layer.attention for layer in layers]
        norms = [attention.key_norm for attention in attentions if attention.key_norm is not None]
        key_norm = Norm.stacked(norms, attentions[0].norm_per_head) if norms else None
        self._attention = replace(attentions[0], heads=0, query_norm=None, key_norm=key_norm)
        self._ropes = [attention.rope for attention in attentions]
        self._one_rope = len(set(self._ropes)) == 1

    def fill(self, states: Tensor, cache: Cache, layout: Layout) -> None:
        """Those of the layout's one row, in each layer from its own of ``states`` [layers, width]."""
        normed = self._norm(states).unsqueeze(1)  # [layers, 1, width], each by the gain of its layer
        flat = torch.cat([product(x) for product, x in zip(self._products, normed, strict=True)])
        # To `finish` the layers are rows: keys turn by the rotation of the row's one position in the layer's table.
        turn = layout.turn(self._ropes[0]) if self._one_rope else torch.cat([layout.turn(rope) for rope in self._ropes])
        held = finish(self._attention, flat, turn)[1]
        for index in range(states.shape[0]):
            cache.write(self._first + index, layout.start, held[:, index : index + 1])


class CrossAttention:
    """x -> x + what rows [rows, width] take from an encoded prompt, after a norm."""

    def __init__(self, norm: Norm, query: Linear, keys_values: Linear, out: Linear, heads: int) -> None:
        self._norm, self._query, self._keys_values, self._out, self._heads = norm, query, keys_values, out, heads

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (*self._norm.tensors, self._query.weight, self._keys_values.weight, self._out.weight)

    def encode(self, states: Tensor) -> Encoded:
        """Keys and values of ``states`` [tokens, width], those of the encoder for one prompt."""
        both = self._keys_values(states).view(states.shape[0], 2, self._heads, -1)
        return Encoded(both[:, 0].permute(1, 2, 0).contiguous(), both[:, 1].transpose(0, 1).contiguous())

    def __call__(self, x: Tensor, encoded: Encoded) -> Tensor:
        # T5 does not scale scores by head_dim ** -0.5, and no position enters: every row sees the whole prompt.
        queries = self._query(self._norm(x)).view(x.shape[0], self._heads, -1).transpose(0, 1)
        scores = torch.bmm(queries, encoded.keys)  # [heads, rows, prompt tokens]
        wide = torch.promote_types(x.dtype, torch.float32)
        mixed = torch.bmm(scores.softmax(-1, dtype=wide).to(x.dtype), encoded.values)
        return self._out.add_to(x, mixed.transpose(0, 1).reshape(x.shape[0], -1))


class Encoder:
    """The model's own encoder, and the cross attention of each layer of the decoder."""

    def __init__(self, module: Any, crosses: Sequence[CrossAttention], start: int, biases: Tensor) -> None:
        """``start`` is the decoder's first token, ``biases`` [heads, distances] what a distance adds to a score."""
        self.start, self.biases = start, biases
        self._module, self._crosses = module, crosses

    def read(self, prompt_ids: Sequence[int]) -> list[Encoded]:
        """For each layer of the decoder, the prompt as its cross attention reads it."""
        ids = torch.tensor([list(prompt_ids)], device=self.biases.device)
        states = self._module(input_ids=ids).last_hidden_state[0]
        return [cross.encode(states) for cross in self._crosses]

    def tensors(self) -> Iterator[Tensor]:
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
            slots = torch.tensor([*range(self._base), *self._positions], device=self._device)
            # [rows, slots] how far each slot lies before each row; 0 where it lies behind, and is not seen.
            apart = (slots[self._base + self._skip :, None] - slots[None, :]).clamp_(min=0)
            self._by_head = self._biases[:, apart] if visible is None else self._biases[:, apart] + visible
        return self._by_head
