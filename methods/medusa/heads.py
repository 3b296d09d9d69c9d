"""Medusa's heads: how they are made, how all of them run in a few products, and which paths of their picks come true.

Cai et al.: Medusa, 2024, arXiv 2401.10774, section 2.1.1. Weights are named as the authors publish theirs:
``{head}.{block}.linear.weight`` and ``.bias`` of residual blocks x + SiLU(W x + b), then ``{head}.{blocks}.weight`` of
the head's own LM head; the bias is the authors' code's. Heads of their second form (version 2 in the code, file
medusa_model_legacy.py) end with the blocks, and share the target's LM head. Labels are the target's own distributions,
as in section 2.3.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchctl.decoding.drafting.trees import Path, likeliest, sparse_tree
from benchctl.decoding.model.kernels import Form, Linear
from benchctl.decoding.modules.draft_vocabulary import ALL_TOKENS, DraftVocabulary
from benchctl.decoding.modules.losses import divergences, exit_losses, wanted_shares
from benchctl.decoding.modules.trainable import Tally, TrainingBatch, tally

KEPT_NODES = 256  # more rows than any verification is worth
_RANKS = 10  # picks of a head that are measured, as the authors measure them
_TOPS = (1, 2, 4, 8)
_FADE = 0.8  # what a head counts in the loss, as a share of the head before
_ASSUMED = (0.5, 0.1, 0.05, 0.05, 0.025, 0.025, 0.025, 0.025)  # shares of the first head's picks
_FADING = 0.8  # and those of each further head, as shares of the head before


class Block(nn.Module):
    """x + SiLU(W x + b) for x [.., width]; W and b start as zero, so a fresh block changes nothing."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, device=device)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.linear.weight.dtype)
        grown: Tensor = F.silu(self.linear(x))
        return x + grown


def fresh_heads(lm_head: Tensor, heads: int, shared: bool) -> nn.ModuleList:
    """Heads of one block, each with an LM head of its own that starts as ``lm_head`` [vocabulary, width].

    Each gives draft logits [.., vocabulary] for normed states [.., width]. ``shared``: none has an LM head of its own,
    and each gives what the target's is to read, [.., width].
    """
    made, (vocabulary, width) = nn.ModuleList(), lm_head.shape
    for _ in range(heads):
        if shared:
            made.append(nn.Sequential(Block(width, lm_head.device)))
            continue
        own = nn.Linear(width, vocabulary, bias=False, device=lm_head.device)
        with torch.no_grad():
            own.weight.copy_(lm_head)
        made.append(nn.Sequential(Block(width, lm_head.device), own))
    return made


class Heads:
    """The first ``heads`` of the heads that have these weights, whose products are in a ``form`` as of Linear.

    They end with LM heads of their own for the tokens of ``vocabulary``, or with ``shared``.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        heads: int,
        form: Form,
        vocabulary: DraftVocabulary = ALL_TOKENS,
        shared: Linear | None = None,
    ) -> None:
        blocks = sum(name.startswith("0.") and name.endswith(".linear.weight") for name in weights)
        self._blocks = [
            [
                Linear(weights[f"{head}.{block}.linear.weight"], weights[f"{head}.{block}.linear.bias"], form)
                for block in range(blocks)
            ]
            for head in range(heads)
        ]
        self._shared, self._own = shared, list[Linear]()
        for head in range(heads if shared is None else 0):
            own = vocabulary.of(weights[f"{head}.{blocks}.weight"].mT).mT
            self._own.append(Linear(own.contiguous(), None, form))

    def __call__(self, final: Tensor, count: int) -> Tensor:
        """Draft logits [count, k] of the first ``count`` heads for one normed state [1, width]."""
        read = list[Tensor]()
        for blocks in self._blocks[:count]:
            inner = final
            for block in blocks:
                inner = inner + F.silu(block(inner))
            read.append(inner)
        if self._shared is not None:
            return self._shared(torch.cat(read))
        return torch.cat([own(inner) for own, inner in zip(self._own, read, strict=False)])


def _own(head: nn.Module) -> nn.Linear | None:
    """The head's own LM head, where it has one."""
    last = list(head.children())[-1]
    return last if isinstance(last, nn.Linear) else None


def _draft_logits(head: nn.Module, batch: TrainingBatch) -> Tensor:
    """[rows, n, k] of a head for the tokens that drafters score, by the target's LM head where it has none of its own.

    A head's own rows of other tokens learn nothing; AdamW's decay still shrinks them a little.
    """
    if (own := _own(head)) is None:
        return batch.draft_head(head(batch.final))
    *blocks, _ = head.children()
    weight = own.weight if batch.draft_ids is None else own.weight[batch.draft_ids]
    return F.linear(nn.Sequential(*blocks)(batch.final), weight)


def heads_loss(heads: nn.Module, batch: TrainingBatch) -> Tensor:
    """Sum over heads i = 1, 2, .. of _FADE ** i KL(target's distribution of the token i + 1 ahead || the head's).

    Over a draft vocabulary it is that of exit_losses.
    """
    total = batch.final.new_zeros((), dtype=torch.float32)
    shares = None if all(_own(head) is None for head in heads.children()) else wanted_shares(batch)
    for number, head in enumerate(heads.children(), 1):
        if shares is None:
            (divergence,) = exit_losses(batch, [head(batch.final)], number + 1, 0.0)
        else:
            wanted = shares.roll(-number, 1)  # what comes round to the end of a row has no weight
            divergence = divergences(_draft_logits(head, batch), wanted)
        total = total + _FADE**number * (divergence * batch.ahead(number + 1).weights).sum()
    return total


def _ranks(heads: nn.Module, batch: TrainingBatch) -> Iterator[tuple[Tensor, Tensor]]:
    """For each head [rows, n]: picks that come before the token it is for, _RANKS at most, and the token's weight."""
    for number, head in enumerate(heads.children(), 1):
        tokens, weights = batch.ahead(number + 1)
        draft_logits = _draft_logits(head, batch)
        picks = batch.ids_of(draft_logits.topk(min(_RANKS, draft_logits.shape[-1])).indices)
        hits = picks == tokens.unsqueeze(-1)
        yield torch.where(hits.any(-1), hits.int().argmax(-1), _RANKS), weights


def top_shares(heads: nn.Module, batch: TrainingBatch) -> dict[str, Tally]:
    ranked = enumerate(_ranks(heads, batch), 1)
    return {f"head_{head}_top{top}": tally(ranks < top, weights) for head, (ranks, weights) in ranked for top in _TOPS}


def path_shares(heads: nn.Module, batches: Iterable[TrainingBatch]) -> dict[Path, float]:
    """How often each path of picks is right as a whole; those that never are, are left out.

    Measured together, unlike in the paper, which multiplies the heads' own shares. Counted where every head has a token
    to predict, so that no path has a larger share than its parent.
    """
    right: Counter[Path] = Counter()
    everywhere = 0.0
    for batch in batches:
        of_heads, weights_of_heads = zip(*_ranks(heads, batch), strict=True)
        ranks, weights = (torch.stack(each, -1).flatten(0, 1) for each in (of_heads, weights_of_heads))
        weights = weights.amin(-1)
        everywhere += float(weights.sum())
        counted = weights > 0
        for path, weight in zip(ranks[counted].tolist(), weights[counted].tolist(), strict=True):
            for depth in range(1, 1 + (path.index(_RANKS) if _RANKS in path else len(path))):
                right[tuple(path[:depth])] += weight
    return {path: share / everywhere for path, share in right.items()}


def tree_findings(shares: Mapping[Path, float]) -> dict[str, float]:
    """The likeliest paths with their shares, likeliest first, for modules.json: ``{"0": 0.5, "0 1": 0.1}``."""
    kept = sorted(likeliest(shares, KEPT_NODES), key=lambda path: (-shares[path], len(path), path))
    return {" ".join(map(str, path)): round(shares[path], 6) for path in kept}


def sparse_plan(told: Any, heads: int, nodes: int, vocabulary: int) -> tuple[Path, ...]:
    """The tree of at most ``nodes`` nodes and ``heads`` levels from tree_findings; by assumption where that is {}.

    Raises ValueError or TypeError for anything that tree_findings does not give, such as a path without its parent.
    """
    shares = {tuple(map(int, text.split())): float(share) for text, share in dict(told).items()}
    shares = {path: share for path, share in shares.items() if all(rank < vocabulary for rank in path)}
    for path, share in shares.items():
        if not path or not all(0 <= rank < _RANKS for rank in path) or (path[:-1] and path[:-1] not in shares):
            raise ValueError(f"{path} is no path from the root")
        if not 0 <= share <= shares.get(path[:-1], 1.0):
            raise ValueError(f"{path} has a share of {share}, more than its parent's")
    if shares:
        return likeliest({path: share for path, share in shares.items() if len(path) <= heads}, nodes)
    return sparse_tree([[_FADING**depth * share for share in _ASSUMED[:vocabulary]] for depth in range(heads)], nodes)
