"""Heads that read the drafted tokens: their weights, named as published, how they draft and how they learn.

Step i = 0, 1, .. reads the embedding of token x_i of a path, x_0 the root's, behind the target's last state h after its
final norm; the target's LM head scores token i + 1 by what the step returns. Ours: this shared LM head, where the
authors train heads of their own, so that a draft vocabulary needs no other weights; a fresh step returns h.

hydra      res_connection_i z + SiLU(linear_i z) for z = [h; x_0; ..; x_i] (Ankner et al. 2402.05109, section 3)
redrafter  s <- SiLU(rnn_w x_i + rnn_u s) from s = 0, then input_proj [h; s] (Cheng et al. 2403.09919, section 3.1)

Blocks of medusa's form, x + SiLU(linear x), follow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchctl.decoding.modules.losses import exit_losses
from benchctl.decoding.modules.trainable import Tally, TrainingBatch, tally

Kind = Literal["hydra", "redrafter"]
_FADE = 0.8  # what a step counts in the loss, as a share of the step before


class Stepped(NamedTuple):
    """What the next step reads, [.., inputs], and what the LM head reads, [.., width]."""

    memory: Tensor
    read: Tensor


class Heads(nn.Module, ABC):
    """Modules of one kind; ``step`` runs them for rows of any leading dimensions."""

    def start(self, final: Tensor) -> Tensor:
        """The memory before step 0 for the target's last states [.., width], after its final norm."""
        return final

    @abstractmethod
    def step(self, number: int, memory: Tensor, embedded: Tensor) -> Stepped:
        """Step ``number`` for the embeddings [.., width] of the tokens that it reads."""


class _Block(nn.Module):
    """A residual block; with ``joined`` vectors of ``width`` as input the residual is a product, at first the first."""

    def __init__(self, width: int, joined: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(joined * width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.res_connection = _first_of(width, joined) if joined > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        grown: Tensor = self.res_connection(x) + F.silu(self.linear(x))
        return grown


def _first_of(width: int, joined: int) -> nn.Linear:
    """A product of ``joined`` vectors that starts as the first of them."""
    product = nn.Linear(joined * width, width)
    with torch.no_grad():
        product.weight.zero_()[:, :width].fill_diagonal_(1.0)
        product.bias.zero_()
    return product


class Hydra(Heads):
    """One head for each step; the memory is the path itself."""

    def __init__(self, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.hydra_mlp = nn.ModuleList(
            nn.Sequential(_Block(width, number + 2), *(_Block(width) for _ in range(blocks - 1)))
            for number in range(heads)
        )

    def step(self, number: int, memory: Tensor, embedded: Tensor) -> Stepped:
        memory = torch.cat((memory, embedded), -1)
        return Stepped(memory, self.hydra_mlp[number](memory))


class Redrafter(Heads):
    """One recurrent cell for all steps; the memory is [h; s]."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.rnn_u, self.rnn_w = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.input_proj = _first_of(width, 2)
        self.lm_head = nn.Sequential(*(_Block(width) for _ in range(blocks)))

    def start(self, final: Tensor) -> Tensor:
        return torch.cat((final, torch.zeros_like(final)), -1)

    def step(self, number: int, memory: Tensor, embedded: Tensor) -> Stepped:
        final, state = memory.chunk(2, -1)
        memory = torch.cat((final, F.silu(self.rnn_w(embedded) + self.rnn_u(state)).to(final.dtype)), -1)
        return Stepped(memory, self.lm_head(self.input_proj(memory)))


def fresh_heads(kind: Kind, width: int, heads: int, blocks: int) -> Heads:
    return Hydra(width, heads, blocks) if kind == "hydra" else Redrafter(width, blocks)


def steps(module: Heads, batch: TrainingBatch, count: int) -> Iterator[Tensor]:
    """For each step what the LM head reads, [rows, n, width]; the drafted tokens are taken to be those of the text.

    Step i at token t reads token t + 1 + i. What comes round to the end of a row has no weight.
    """
    memory = module.start(batch.final.float())
    for number in range(count):
        memory, read = module.step(number, memory, batch.states[0].float().roll(-1 - number, 1))
        yield read.float()


def sequential_loss(module: Heads, batch: TrainingBatch, count: int) -> Tensor:
    """Sum over steps i = 0, 1, .. of _FADE ** i KL(target's distribution of the token i + 2 ahead || the step's)."""
    total = batch.final.new_zeros((), dtype=torch.float32)
    for number, read in enumerate(steps(module, batch, count)):
        (divergence,) = exit_losses(batch, [read], number + 2, 0.0)
        total = total + _FADE**number * (divergence * batch.ahead(number + 2).weights).sum()
    return total


@torch.no_grad()
def sequential_yardsticks(module: Heads, batch: TrainingBatch, count: int) -> Mapping[str, Tally]:
    """token_1_top1, token_2_top1, ..: share of tokens so far ahead whose draft is the target's likeliest.

    The drafted tokens before them are taken to be right.
    """
    return {
        f"token_{number}_top1": tally(
            batch.picks(read) == batch.teacher.top_tokens.roll(-number, 1), batch.ahead(number + 1).weights
        )
        for number, read in enumerate(steps(module, batch, count), 1)
    }
