"""The weights of DFlash's layers, named as published; a Markov head and the embedding of MASK are ours to train."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchctl.decoding.model.target import TargetInfo


def default_taps(layers: int, count: int) -> tuple[int, ...]:
    """Numbers of target layers after which the states are read: z-lab's build_target_layer_ids, plus 1."""
    if count == 1:
        return (layers // 2 + 1,)
    return tuple(2 + round(index * (layers - 4) / (count - 1)) for index in range(count))


def own_taps(layers: int, draft_layers: int) -> tuple[int, ...]:
    """Those of a drafter of ours: three at least, fewer in a shallow target."""
    taps = default_taps(layers, max(3, draft_layers))
    return tuple(sorted({min(max(tap, 1), layers) for tap in taps}))


@dataclass(frozen=True)
class Sizes:
    """The sizes and settings of the layers; the names of these fields are those of transformers' configurations.

    taps    target layers whose states are read
    window  of each layer: how far back it sees, None for all
    rank    of the Markov head, 0 for none; it reads ``vocabulary`` tokens and scores ``tokens``
    """

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    taps: int
    windows: tuple[int | None, ...]
    eps: float = 1e-6
    bias: bool = False
    own_mask: bool = True
    rank: int = 0
    vocabulary: int = 0
    tokens: int = 0
    hidden_act: str = "silu"

    @classmethod
    def of(cls, info: TargetInfo, layers: int) -> Sizes:
        """As large as layers of the target; of a mixture of experts with an MLP of four times its width (ours)."""
        return cls(
            hidden_size=info.hidden_size,
            num_attention_heads=info.query_size // info.head_dim,
            num_key_value_heads=info.kv_size // info.head_dim,
            head_dim=info.head_dim,
            intermediate_size=info.mlp_size or 4 * info.hidden_size,
            taps=len(own_taps(info.layers, layers)),
            windows=(None,) * layers,
            vocabulary=info.vocabulary,
        )

    def norm(self, width: int) -> nn.RMSNorm:
        return nn.RMSNorm(width, eps=self.eps)


class BlockLayer(nn.Module):
    """The weights of one layer; Qwen3's."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, inner, bias = sizes.hidden_size, sizes.intermediate_size, sizes.bias
        query, kv = (count * sizes.head_dim for count in (sizes.num_attention_heads, sizes.num_key_value_heads))
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(width, query, bias=bias),
                "k_proj": nn.Linear(width, kv, bias=bias),
                "v_proj": nn.Linear(width, kv, bias=bias),
                "o_proj": nn.Linear(query, width, bias=bias),
                "q_norm": sizes.norm(sizes.head_dim),
                "k_norm": sizes.norm(sizes.head_dim),
            }
        )
        shapes = {"gate_proj": (width, inner), "up_proj": (width, inner), "down_proj": (inner, width)}
        self.mlp = nn.ModuleDict({name: nn.Linear(*shape, bias=False) for name, shape in shapes.items()})
        self.input_layernorm, self.post_attention_layernorm = sizes.norm(width), sizes.norm(width)


class Markov(nn.Module):
    """What the token before adds to a row's logits: after(before[token])."""

    def __init__(self, vocabulary: int, tokens: int, rank: int) -> None:
        super().__init__()
        self.before, self.after = nn.Embedding(vocabulary, rank), nn.Linear(rank, tokens, bias=False)

    def forward(self, token: Tensor) -> Tensor:
        corrections: Tensor = self.after(self.before(token))
        return corrections


class DflashModule(nn.Module):
    """The weights of a drafter, by the names of published ones, with two parts of ours: ``mask`` and ``markov``.

    ``markov`` is DSpark's head (arXiv 2607.05147): logits + after(before[token before]).
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.sizes = sizes.hidden_size, sizes
        self.fc = nn.Linear(sizes.taps * width, width, bias=False)
        self.hidden_norm, self.norm = sizes.norm(width), sizes.norm(width)
        self.layers = nn.ModuleList(BlockLayer(sizes) for _ in sizes.windows)
        self.mask = nn.Parameter(0.02 * torch.randn(width)) if sizes.own_mask else None
        self.markov: Markov | None = None
        if sizes.rank:
            self.markov = Markov(sizes.vocabulary, sizes.tokens, sizes.rank)

    @torch.no_grad()
    def start_from(self, lm_head: Tensor, draft_head: Tensor) -> None:
        """Markov weights as random projections of LM heads [.., width]: similar tokens start alike (ours)."""
        if self.markov is not None:
            for part, head in ((self.markov.before, lm_head), (self.markov.after, draft_head)):
                shrunk = head.float() @ torch.randn(head.shape[1], self.sizes.rank, device=head.device)
                part.weight.copy_(0.1 * shrunk / shrunk.std())
