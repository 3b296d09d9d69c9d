"""DFlash by definition: each draft recomputes the layers over the whole text, without a cache or a mask.

Rotations are transformers' own, in their layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from oracles import Drafter, Naive
from torch import Tensor
from transformers.models.llama.modeling_llama import rotate_half


@dataclass(frozen=True)
class NaiveDflash:
    """``weights`` by their published names, in float64.

    mask    [width] the embedding of MASK
    ids     [k] tokens that are scored; None for all
    window  how far back rows see, where they do not see all
    rotary  the drafter's rotations, if not the target's
    """

    naive: Naive
    weights: Mapping[str, Tensor]
    taps: Sequence[int]
    mask: Tensor
    head_dim: int
    eps: float = 1e-6
    ids: Tensor | None = None
    window: int = 1 << 30
    context_tokens: int = 1 << 30
    rotary: torch.nn.Module | None = None

    def norm(self, name: str, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weights[f"{name}.weight"]

    def product(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def heads(self, layer: str, name: str, x: Tensor, positions: Tensor) -> Tensor:
        """[heads, rows, head_dim], queries and keys normed and rotated."""
        values = self.product(f"{layer}.{name}_proj", x).view(len(x), -1, self.head_dim).transpose(0, 1)
        if name == "v":
            return values
        cos, sin = (part[0].double() for part in (self.rotary or self.naive.model.model.rotary_emb)(x, positions[None]))
        values = self.norm(f"{layer}.{name}_norm", values)
        turned: Tensor = rotate_half(values)  # type: ignore[no-untyped-call]
        rotated: Tensor = values * cos + turned * sin
        return rotated

    def logits(self, text: Sequence[int], rows: int) -> Tensor:
        """[rows - 1, k] of a block of ``rows`` behind the last token of a text; shorter where the context ends."""
        states, at = self.naive.states(text[:-1]), len(text) - 1
        rows = min(rows, self.context_tokens - at)
        context = self.norm("hidden_norm", self.product("fc", torch.cat([states[tap] for tap in self.taps], -1)))
        before, inside = torch.arange(at), torch.arange(at, at + rows)
        root = self.naive.model.model.embed_tokens(torch.tensor(text[-1:]))
        x = torch.cat((root, self.mask.expand(rows - 1, -1)))
        far = inside[:, None] - torch.cat((before, inside))[None] >= self.window
        for index in range(len({name.split(".")[1] for name in self.weights if name.startswith("layers.")})):
            layer = f"layers.{index}"
            read = self.norm(f"{layer}.input_layernorm", x)
            keys, values = (
                torch.cat((self.heads(f"{layer}.self_attn", name, context, before), mine), 1)
                for name in "kv"
                for mine in (self.heads(f"{layer}.self_attn", name, read, inside),)
            )
            queries = self.heads(f"{layer}.self_attn", "q", read, inside)
            groups = len(queries) // len(keys)
            scores = queries @ keys.repeat_interleave(groups, 0).mT / self.head_dim**0.5
            shares = scores.masked_fill(far, -torch.inf).softmax(-1)
            mixed = (shares @ values.repeat_interleave(groups, 0)).transpose(0, 1).flatten(1)
            x = x + self.product(f"{layer}.self_attn.o_proj", mixed)
            read = self.norm(f"{layer}.post_attention_layernorm", x)
            gate, up = (self.product(f"{layer}.mlp.{name}_proj", read) for name in ("gate", "up"))
            x = x + self.product(f"{layer}.mlp.down_proj", F.silu(gate) * up)
        logits: Tensor = self.naive.model.lm_head(self.norm("norm", x[1:]))
        return logits if self.ids is None else logits[:, self.ids]

    def drafter(self, draft_tokens: int, confidence: float, block_tokens: int = 0) -> Drafter:
        """Of a block with more tokens, the first ``draft_tokens``."""

        def draft(text: list[int], budget: int) -> list[int]:
            tokens, probs = list[int](), list[float]()
            if budget < 1:
                return []
            for row in self.logits(text, (block_tokens or draft_tokens) + 1)[: min(budget, draft_tokens)]:
                if "markov.before.weight" in self.weights:
                    before = self.weights["markov.before.weight"][[*text, *tokens][-1]]
                    row = row + self.weights["markov.after.weight"] @ before
                probs.append(float(row.softmax(-1).max()))
                if prod(probs) < confidence:
                    break
                place = int(row.argmax())
                tokens.append(place if self.ids is None else int(self.ids[place]))
            return tokens

        return draft
