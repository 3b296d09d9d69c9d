"""EAGLE's layer: its weights, named as published, and how it drafts behind the features of a target.

The row of position t reads the target's feature f_t and the embedding of token t + 1, and predicts token t + 2. Rows of
drafted tokens read the state of the row before them in place of a feature.

Version 1 (Li et al. 2024, arXiv 2401.15077): f is the last state after the final norm; a product of [embedding; f] is
the residual of a Llama layer without input norm; the target's LM head reads its state.
Version 3 (Li et al. 2025, arXiv 2503.01840): f is a product of the states after layers 2, half and last but three; the
attention reads [norm(embedding); norm(f)]; own norm and LM head. Version 3.1 (speculators with fc_norm and
norm_output): each of these states has a norm, and rows read the state before them after its norm. SpecForge's fc_norm
adds the norms alone, which is version 3 here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from benchctl.decoding.drafting.grow import Frontier
from benchctl.decoding.drafting.side import SideLayers
from benchctl.decoding.model.families.family import ACTIVATIONS, read_attention, read_mlp
from benchctl.decoding.model.kernels import Linear, NoNorm, Norm
from benchctl.decoding.model.layers import Layer
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary


def default_taps(layers: int) -> tuple[int, ...]:
    """After layers 2, half and last but three; in a shallow target (ours) a quarter, half and last but one."""
    if layers >= 7:
        return (2, layers // 2, layers - 3)
    return tuple(sorted({max(1, layers // 4), layers // 2, max(1, layers - 1)}))


@dataclass(frozen=True)
class Sizes:
    """Widths of a drafter's parts; ``taps`` 0: version 1; ``tokens`` 0: the target's LM head.

    head_norm  width of each head, where queries and keys have norms; else 0
    biases     names of the products that have one
    """

    width: int
    query: int
    kv: int
    mlp: int
    taps: int
    tokens: int
    tap_norms: bool = False
    input_norm: bool = False
    head_norm: int = 0
    biases: tuple[str, ...] = ()
    eps: float = 1e-5

    def norm(self, width: int) -> nn.RMSNorm:
        return nn.RMSNorm(width, eps=self.eps)

    def product(self, name: str, inputs: int, outputs: int) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=name in self.biases)

    @classmethod
    def of(cls, info: TargetInfo, taps: int, tokens: int, tap_norms: bool) -> Sizes:
        """As large as a layer of the target; a mixture of experts gets an MLP of four times its width (ours)."""
        mlp = info.mlp_size or 4 * info.hidden_size
        sizes = (info.hidden_size, info.query_size, info.kv_size, mlp, taps, tokens)
        return cls(*sizes, tap_norms=tap_norms, biases=() if taps else ("fc",))


class _Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        inputs = 2 * sizes.width if sizes.taps else sizes.width
        self.q_proj = sizes.product("q_proj", inputs, sizes.query)
        self.k_proj = sizes.product("k_proj", inputs, sizes.kv)
        self.v_proj = sizes.product("v_proj", inputs, sizes.kv)
        self.o_proj = sizes.product("o_proj", sizes.query, sizes.width)
        if sizes.head_norm:
            self.q_norm, self.k_norm = sizes.norm(sizes.head_norm), sizes.norm(sizes.head_norm)


class _Mlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = sizes.product("gate_proj", sizes.width, sizes.mlp)
        self.up_proj = sizes.product("up_proj", sizes.width, sizes.mlp)
        self.down_proj = sizes.product("down_proj", sizes.mlp, sizes.width)


class _MidLayer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(sizes), _Mlp(sizes)
        if sizes.taps:
            self.input_layernorm, self.hidden_norm = sizes.norm(sizes.width), sizes.norm(sizes.width)
        self.post_attention_layernorm = sizes.norm(sizes.width)


class EagleModule(nn.Module):
    """The weights of a drafter, by the names of published ones."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.taps, self.sizes = sizes.taps, sizes
        self.fc = sizes.product("fc", (sizes.taps or 2) * sizes.width, sizes.width)
        self.midlayer = _MidLayer(sizes)
        self.norm = sizes.norm(sizes.width) if sizes.taps else None
        self.lm_head = nn.Linear(sizes.width, sizes.tokens, bias=False) if sizes.tokens else None
        self.fc_norm = nn.ModuleList(sizes.norm(sizes.width) for _ in range(sizes.taps)) if sizes.tap_norms else None
        self.input_norm = sizes.norm(sizes.taps * sizes.width) if sizes.input_norm else None

    @property
    def tap_norms(self) -> list[nn.RMSNorm]:
        """One for each tap, or none."""
        return cast(list[nn.RMSNorm], [] if self.fc_norm is None else list(self.fc_norm))

    @torch.no_grad()
    def start_from(self, lm_head: Tensor) -> None:
        """Start as an identity: the state is the last feature, and the LM head is the target's."""
        self.fc.weight.zero_()[:, -self.sizes.width :].fill_diagonal_(1.0)
        if self.fc.bias is not None:
            self.fc.bias.zero_()
        self.midlayer.self_attn.o_proj.weight.zero_()
        self.midlayer.mlp.down_proj.weight.zero_()
        if self.lm_head is not None:
            self.lm_head.weight.copy_(lm_head)


@dataclass(frozen=True)
class LayerConfig:
    """Sizes and activation of a drafter's layer, by transformers' names."""

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str = "silu"


@dataclass(frozen=True)
class Traits:
    """How a drafter works, where its weights do not show it.

    taps             layers of the target whose states it reads, in the order of its product
    rotary           [positions, head_dim / 2] complex rotations
    feeds_normed     rows read the state before them after its norm (3.1)
    norms_residual   the residual, too, is the normed feature (an option of speculators)
    bare_head        the LM head reads states without a norm (an option of SpecForge)
    embedding        [vocabulary, width] of its own, where the folder has one
    """

    layer: LayerConfig
    taps: tuple[int, ...]
    rotary: Tensor
    feeds_normed: bool = False
    norms_residual: bool = False
    bare_head: bool = False
    embedding: Tensor | None = None


class Drafter:
    """A drafter at work on one text after another: ``start``, then ``read`` and calls with frontiers by turns."""

    def __init__(self, module: EagleModule, traits: Traits, target: Target, vocabulary: DraftVocabulary) -> None:
        form, mid, config = target.form, module.midlayer, traits.layer

        self._target, self._traits = target, traits
        self._fc = Linear(module.fc.weight, module.fc.bias, form)
        self._token_norm = _read(getattr(mid, "input_layernorm", None))
        self._tap_norms = [Norm(each.weight, module.sizes.eps) for each in module.tap_norms]
        self._input_norm = _read(module.input_norm)
        self._layer = Layer(
            attention_norm=_read(getattr(mid, "hidden_norm", None)) or NoNorm(),  # version 1 has none
            attention=read_attention(
                mid.self_attn,
                heads=config.num_attention_heads,
                kv_heads=config.num_key_value_heads,
                head_dim=config.head_dim,
                rotated=config.head_dim,
                form=form,
            ),
            mlp_norm=Norm(mid.post_attention_layernorm.weight, module.sizes.eps),
            mlp=read_mlp(mid.mlp, ACTIVATIONS[config.hidden_act], form),
        )
        before_head = None if traits.bare_head else _read(module.norm)
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
        behind = self._side.length + 1  # each row reads the token behind it
        self._states = self._run(hidden, self._embed(tokens, range(behind, behind + len(tokens))), None)[-1:]

    def __call__(self, frontier: Frontier) -> Tensor:
        """[rows, k] logits over the draft vocabulary behind a frontier below the last token that was read."""
        states = self._states
        if frontier.depth:
            hidden = self._states[list(frontier.parents)]
            embedded = self._embed(frontier.tokens, [self._side.length + frontier.depth] * len(frontier.tokens))
            states = self._run(hidden, embedded, [parent - 1 for parent in frontier.parents])
            self._states = torch.cat((self._states, states))
        return self._lm_head(states if self._head_norm is None else self._head_norm(states))

    def _run(self, hidden: Tensor, embedded: Tensor, parents: Sequence[int] | None) -> Tensor:
        """States [rows, width] that later rows read; rows with ``parents`` are open."""
        layer_input = None
        if self._token_norm is None:
            hidden = self._fc(torch.cat((embedded, hidden), -1))
        else:
            normed = self._layer.attention_norm(hidden)
            layer_input = torch.cat((self._token_norm(embedded), normed), -1)
            hidden = normed if self._traits.norms_residual else hidden
        side = self._side
        states = side.read(hidden, layer_input) if parents is None else side.grow(hidden, parents, layer_input)
        return states if self._fed_norm is None else self._fed_norm(states)

    def _embed(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        own = self._traits.embedding
        return self._target.embed(tokens, positions) if own is None else own[list(tokens)]


def _read(norm: nn.RMSNorm | None) -> Norm | None:
    return None if norm is None else Norm(norm.weight, cast(float, norm.eps))
