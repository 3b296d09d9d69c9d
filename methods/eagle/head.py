"""EAGLE's layer: its weights, named as published, and how it drafts behind the features of a target.

The row of position t reads the target's feature f_t and the embedding of token t + 1, and predicts token t + 2. Rows of
drafted tokens read the state of the row before them in place of a feature.

Version 1 (Li et al. 2024, arXiv 2401.15077): f is the last state after the final norm; a product of [embedding; f] is
the residual of a Llama layer without input norm; the target's LM head reads its state.
Version 3 (Li et al. 2025, arXiv 2503.01840): f is a product of the states after layers 2, half and last but three; the
attention reads [norm(embedding); norm(f)]; own norm and LM head. Version 3.1 (SpecForge, speculators): each of these
states has a norm, and rows read the state before them after its norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from benchctl.decoding.drafting.grow import Frontier
from benchctl.decoding.drafting.side import SideLayers
from benchctl.decoding.model.families import read_attention, read_mlp
from benchctl.decoding.model.kernels import Linear, Norm
from benchctl.decoding.model.layers import Layer
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary

EPS = 1e-5


def default_taps(layers: int) -> tuple[int, ...]:
    """After layers 2, half and last but three; in a shallow target (ours) a quarter, half and last but one."""
    if layers >= 7:
        return (2, layers // 2, layers - 3)
    return tuple(sorted({max(1, layers // 4), layers // 2, max(1, layers - 1)}))


@dataclass(frozen=True)
class Sizes:
    """Widths of a drafter's parts; ``taps`` 0: version 1; ``tokens`` 0: the target's LM head."""

    width: int
    query: int
    kv: int
    mlp: int
    taps: int
    tokens: int
    tap_norms: bool = False
    input_norm: bool = False
    fc_bias: bool = False
    qkv_bias: bool = False
    head_norm: int = 0

    @classmethod
    def of(cls, info: TargetInfo, taps: int, tokens: int, tap_norms: bool) -> Sizes:
        """As large as a layer of the target; a mixture of experts gets an MLP of four times its width (ours)."""
        mlp = info.mlp_size or 4 * info.hidden_size
        sizes = (info.hidden_size, info.query_size, info.kv_size, mlp, taps, tokens)
        return cls(*sizes, tap_norms=tap_norms, fc_bias=not taps)


class _Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        inputs = 2 * sizes.width if sizes.taps else sizes.width
        self.q_proj = nn.Linear(inputs, sizes.query, bias=sizes.qkv_bias)
        self.k_proj = nn.Linear(inputs, sizes.kv, bias=sizes.qkv_bias)
        self.v_proj = nn.Linear(inputs, sizes.kv, bias=sizes.qkv_bias)
        self.o_proj = nn.Linear(sizes.query, sizes.width, bias=False)
        if sizes.head_norm:
            self.q_norm, self.k_norm = nn.RMSNorm(sizes.head_norm), nn.RMSNorm(sizes.head_norm)


class _Mlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.mlp, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.mlp, bias=False)
        self.down_proj = nn.Linear(sizes.mlp, sizes.width, bias=False)


class _MidLayer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(sizes), _Mlp(sizes)
        if sizes.taps:
            self.input_layernorm, self.hidden_norm = _norm(sizes.width), _norm(sizes.width)
        self.post_attention_layernorm = _norm(sizes.width)


def _norm(width: int) -> nn.RMSNorm:
    return nn.RMSNorm(width, eps=EPS)


class EagleModule(nn.Module):
    """The weights of a drafter, by the names of published ones."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.taps, self.sizes = sizes.taps, sizes
        self.fc = nn.Linear((sizes.taps or 2) * sizes.width, sizes.width, bias=sizes.fc_bias)
        self.midlayer = _MidLayer(sizes)
        self.norm = _norm(sizes.width) if sizes.taps else None
        self.lm_head = nn.Linear(sizes.width, sizes.tokens, bias=False) if sizes.tokens else None
        self.fc_norm = nn.ModuleList(_norm(sizes.width) for _ in range(sizes.taps)) if sizes.tap_norms else None
        self.input_norm = _norm(sizes.taps * sizes.width) if sizes.input_norm else None

    @property
    def tap_norms(self) -> list[nn.RMSNorm]:
        """One for each tap, or none."""
        return cast(list[nn.RMSNorm], [] if self.fc_norm is None else list(self.fc_norm))

    @torch.no_grad()
    def start_from(self, lm_head: Tensor) -> None:
        """A fresh drafter: it hands the last of its inputs on to the LM head, which is the target's."""
        self.fc.weight.zero_()[:, -self.sizes.width :].fill_diagonal_(1.0)
        if self.fc.bias is not None:
            self.fc.bias.zero_()
        self.midlayer.self_attn.o_proj.weight.zero_()
        self.midlayer.mlp.down_proj.weight.zero_()
        if self.lm_head is not None:
            self.lm_head.weight.copy_(lm_head)


@dataclass(frozen=True)
class LayerConfig:
    """What reading a layer asks of a configuration, by transformers' names."""

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str = "silu"
    model_type: str = "llama"


@dataclass(frozen=True)
class Traits:
    """What the weights of a drafter do not tell.

    taps             layers of the target whose states it reads, in the order of its product
    rotary           [positions, head_dim / 2] complex rotations
    feeds_normed     rows read the state before them after its norm (3.1)
    norms_residual   the residual, too, is the normed feature (an option of speculators)
    bare_head        the LM head reads states without a norm (an option of SpecForge)
    embedding        [vocabulary, width] of its own, where that is not the target's
    """

    layer: LayerConfig
    taps: tuple[int, ...]
    rotary: Tensor
    eps: float = EPS
    feeds_normed: bool = False
    norms_residual: bool = False
    bare_head: bool = False
    embedding: Tensor | None = None


class _NoNorm(Norm):
    """Leaves x as it is: the layer of version 1 has no input norm."""

    def __init__(self) -> None:
        super().__init__(torch.ones(1), EPS)

    def __call__(self, x: Tensor) -> Tensor:
        return x


class Drafter:
    """A drafter at work on one text after another: ``start``, then ``read`` and calls with frontiers by turns."""

    def __init__(self, module: EagleModule, traits: Traits, target: Target, vocabulary: DraftVocabulary) -> None:
        form, mid, config = target.form, module.midlayer, traits.layer

        def norm(trained: nn.RMSNorm | None) -> Norm | None:
            return None if trained is None else Norm(trained.weight, traits.eps)

        self._target, self._traits = target, traits
        self._fc = Linear(module.fc.weight, module.fc.bias, form)
        self._token_norm = norm(getattr(mid, "input_layernorm", None))
        self._tap_norms = [Norm(each.weight, traits.eps) for each in module.tap_norms]
        self._input_norm = norm(module.input_norm)
        self._layer = Layer(
            attention_norm=norm(getattr(mid, "hidden_norm", None)) or _NoNorm(),
            attention=read_attention(mid.self_attn, config, 0, form, config.head_dim),
            mlp_norm=Norm(mid.post_attention_layernorm.weight, traits.eps),
            mlp=read_mlp(mid.mlp, config, form),
        )
        before_head = None if traits.bare_head else norm(module.norm)
        self._fed_norm = before_head if traits.feeds_normed else None
        self._head_norm = None if traits.feeds_normed else before_head
        own = module.lm_head
        self._lm_head = vocabulary.lm_head(target) if own is None else Linear(own.weight, None, form)

    def start(self, capacity: int) -> None:
        """Forget earlier texts; at most ``capacity`` tokens follow."""
        like = self._target.embedding.new_empty(0, dtype=self._target.dtype)
        self._side = SideLayers([self._layer], self._traits.rotary, like, capacity)

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers whose states `read` takes, in this order."""
        return self._traits.taps

    @property
    def length(self) -> int:
        """Tokens of the text whose features were read."""
        return self._side.length

    def read(self, features: Sequence[Tensor], tokens: Sequence[int]) -> None:
        """Take in features [rows, width] per tap of further tokens of the text, and for each the token behind it."""
        if self._token_norm is None:
            hidden = self._target.final_norm(features[0])
        else:
            if self._tap_norms:
                features = [norm(each) for norm, each in zip(self._tap_norms, features, strict=True)]
            joined = torch.cat(list(features), -1)
            hidden = self._fc(joined if self._input_norm is None else self._input_norm(joined))
        self._states = self._run(hidden, tokens, None)[-1:]

    def __call__(self, frontier: Frontier) -> Tensor:
        """[rows, k] logits over the draft vocabulary behind a frontier below the last token that was read."""
        states = self._states
        if frontier.depth:
            hidden = self._states[list(frontier.parents)]
            states = self._run(hidden, frontier.tokens, [parent - 1 for parent in frontier.parents])
            self._states = torch.cat((self._states, states))
        return self._lm_head(states if self._head_norm is None else self._head_norm(states))

    def _run(self, hidden: Tensor, tokens: Sequence[int], parents: Sequence[int] | None) -> Tensor:
        """States [rows, width] that later rows read; rows with ``parents`` are open."""
        embedded, layer_input = self._embed(tokens), None
        if self._token_norm is None:
            hidden = self._fc(torch.cat((embedded, hidden), -1))
        else:
            normed = self._layer.attention_norm(hidden)
            layer_input = torch.cat((self._token_norm(embedded), normed), -1)
            hidden = normed if self._traits.norms_residual else hidden
        side = self._side
        states = side.read(hidden, layer_input) if parents is None else side.grow(hidden, parents, layer_input)
        return states if self._fed_norm is None else self._fed_norm(states)

    def _embed(self, tokens: Sequence[int]) -> Tensor:
        own = self._traits.embedding
        return self._target.embed(tokens) if own is None else own[list(tokens)]
