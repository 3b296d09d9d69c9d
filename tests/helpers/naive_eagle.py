"""EAGLE by definition: each question recomputes the layer over the whole text, without a cache, a mask or a tree.

Rotations are transformers' own, in their layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp

import torch
import torch.nn.functional as F
from oracles import Naive, TreeDrafter
from torch import Tensor
from transformers.models.llama.modeling_llama import rotate_half

Path = tuple[int, ...]


@dataclass(frozen=True)
class NaiveEagle:
    """``weights`` by their published names, in float64; ``taps`` empty for version 1.

    ids  [k] tokens that are scored; None for all
    """

    naive: Naive
    weights: Mapping[str, Tensor]
    taps: tuple[int, ...] = ()
    feeds_normed: bool = False
    norms_residual: bool = False
    bare_head: bool = False
    ids: Tensor | None = None
    eps: float = 1e-5
    head_dim: int = 16
    rotary: torch.nn.Module | None = None  # the target's own
    _states: dict[tuple[Path, Path], Tensor] = field(default_factory=dict)
    _features: dict[Path, Tensor] = field(default_factory=dict)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weights[f"{name}.weight"]

    def product(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def features(self, text: Path) -> Tensor:
        """[tokens, width] of a text that the target read."""
        if text not in self._features:
            self._features[text] = self._fused(text)
        return self._features[text]

    def _fused(self, text: Path) -> Tensor:
        states = self.naive.states(text)
        if not self.taps:
            final: Tensor = self.naive.model.model.norm(states[-1])
            return final
        taps = [states[tap] for tap in self.taps]
        if "fc_norm.0.weight" in self.weights:
            taps = [self.norm(f"fc_norm.{place}", tap) for place, tap in enumerate(taps)]
        joined = torch.cat(taps, -1)
        return self.product("fc", self.norm("input_norm", joined) if "input_norm.weight" in self.weights else joined)

    def layer(self, hidden: Tensor, tokens: Sequence[int]) -> Tensor:
        """[rows, width] states of rows that read ``hidden`` [rows, width] and these tokens; each sees those before."""
        embedding = self.naive.model.model.embed_tokens(torch.tensor(list(tokens)))
        if self.taps:
            normed = self.norm("midlayer.hidden_norm", hidden)
            x = torch.cat((self.norm("midlayer.input_layernorm", embedding), normed), -1)
            hidden = normed if self.norms_residual else hidden
        else:
            x = hidden = self.product("fc", torch.cat((embedding, hidden), -1))
        rows = len(x)
        rotary = self.rotary or self.naive.model.model.rotary_emb
        cos, sin = (part[0].double() for part in rotary(x[None], torch.arange(rows)[None]))

        def heads(name: str) -> Tensor:
            values = self.product(f"midlayer.self_attn.{name}_proj", x).view(rows, -1, self.head_dim).transpose(0, 1)
            if f"midlayer.self_attn.{name}_norm.weight" in self.weights:
                values = self.norm(f"midlayer.self_attn.{name}_norm", values)
            if name == "v":
                return values
            turned: Tensor = rotate_half(values)  # type: ignore[no-untyped-call]
            rotated: Tensor = values * cos + turned * sin
            return rotated

        queries, keys, values = heads("q"), heads("k"), heads("v")
        groups = len(queries) // len(keys)
        scores = queries @ keys.repeat_interleave(groups, 0).mT / self.head_dim**0.5
        scores = scores.masked_fill(torch.ones(rows, rows).triu(1).bool(), -torch.inf)
        mixed = (scores.softmax(-1) @ values.repeat_interleave(groups, 0)).transpose(0, 1).flatten(1)
        hidden = hidden + self.product("midlayer.self_attn.o_proj", mixed)
        inner = self.norm("midlayer.post_attention_layernorm", hidden)
        gate, up = (self.product(f"midlayer.mlp.{name}_proj", inner) for name in ("gate", "up"))
        state = hidden + self.product("midlayer.mlp.down_proj", F.silu(gate) * up)
        return self.norm("norm", state) if self.feeds_normed else state

    def state(self, text: Path, drafted: Path) -> Tensor:
        """[width] of the last row, behind a text and drafted tokens, which the next row reads."""
        key = (text, drafted)
        if key not in self._states:
            hidden = self.features(text[:-1])
            fed = [self.state(text, drafted[:end]) for end in range(len(drafted))]
            self._states[key] = self.layer(torch.cat((hidden, *(each[None] for each in fed))), text[1:] + drafted)[-1]
        return self._states[key]

    def logits(self, text: Path, drafted: Path = ()) -> Tensor:
        """[k] for the token behind the drafted ones."""
        state = self.state(text, drafted)
        if self.taps and not self.feeds_normed and not self.bare_head:
            state = self.norm("norm", state)
        if "lm_head.weight" in self.weights:
            return self.product("lm_head", state)
        logits: Tensor = self.naive.model.lm_head(state)
        return logits if self.ids is None else logits[self.ids]

    def ranked(self, text: Path, drafted: Path, count: int) -> list[tuple[int, float]]:
        """The likeliest tokens with the logs of their probabilities."""
        top = self.logits(text, drafted).log_softmax(-1).sort(descending=True, stable=True)
        tokens = top.indices if self.ids is None else self.ids[top.indices]
        return list(zip(tokens.tolist(), top.values.tolist(), strict=True))[:count]

    def shaped(self, widths: Sequence[int]) -> TreeDrafter:
        """A tree with so many likeliest tokens behind each node of a depth."""

        def draft(text: list[int], budget: int) -> list[list[int]]:
            paths: list[Path] = [()]
            for width in widths[: max(budget, 0)]:
                paths = [(*path, token) for path in paths for token, _ in self.ranked(tuple(text), path, width)]
            return [list(path) for path in paths]

        return draft

    def dynamic(self, width: int, depth: int, nodes: int, confidence: float = 0.0) -> TreeDrafter:
        """EAGLE-2: score the children of the best ``width`` nodes of each depth, keep the best of all scored."""

        def draft(text: list[int], budget: int) -> list[list[int]]:
            scores: dict[Path, float] = {}
            frontier: list[tuple[Path, float]] = [((), 0.0)]
            for _ in range(min(depth, max(budget, 0))):
                grown = [
                    ((*path, token), score + more)
                    for path, score in frontier
                    for token, more in self.ranked(tuple(text), path, width)
                    if exp(score + more) >= confidence
                ]
                scores |= dict(grown)
                frontier = sorted(grown, key=lambda each: -each[1])[:width]
            best = sorted(scores, key=lambda path: -scores[path])[:nodes]
            return [list(path) for path in best] or [[]]

        return draft
