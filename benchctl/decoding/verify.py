"""Draft and target distributions in, verdict out: which rows are accepted and which token follows.

Every rule walks the tree from the root, child by child, so no padded row is ever compared.
Sources: greedy and chain rejection, Leviathan et al. 2211.17192 and Chen et al. 2302.01318; siblings, SpecInfer
2305.09781 (with replacement) and Sequoia 2402.12374 (without); typical acceptance, Medusa 2401.10774 section 2.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.sampling import draw


class Rows(Protocol):
    """Rows [vocabulary] by their index: a tensor, or rows that are computed when they are asked for."""

    def __getitem__(self, row: int, /) -> Tensor: ...


@dataclass(frozen=True)
class Verdict:
    """path: accepted draft rows in order, root excluded; next_token: the bonus token the target adds."""

    path: tuple[int, ...]
    next_token: int


def verify_greedy(draft: Draft, argmaxes: Sequence[int]) -> Verdict:
    """Follow the child that equals the target's argmax; ``argmaxes`` [1 + rows], the root's first.

    Example: chain (5, 7) with argmaxes (5, 8, 3) accepts row 0 and adds 8.
    """
    path: list[int] = []
    node = ROOT
    while True:
        wanted = argmaxes[node + 1]
        node_next = next((row for row in draft.children(node) if draft.tokens[row] == wanted), None)
        if node_next is None:
            return Verdict(tuple(path), wanted)
        path.append(node_next)
        node = node_next


def verify_rejection(draft: Draft, target_probs: Rows, generator: torch.Generator) -> Verdict:
    """Accept so that the output has exactly the target's distribution.

    target_probs [1 + rows, vocabulary], the root's first, warped and on the host (Sampling.probs). Deterministic
    drafts count as drawn from a point mass, so a token is accepted with probability p(x).
    """
    path: list[int] = []
    node = ROOT
    while True:
        target, used = target_probs[node + 1], list[int]()
        for row in draft.children(node):
            token = draft.tokens[row]
            proposal = _proposal(draft, row, used)
            # Accept with probability min(1, p(x) / q(x)), written without a division by a small q(x).
            drafted_mass = 1.0 if proposal is None else float(proposal[token])
            if _uniform(generator) * drafted_mass < float(target[token]):
                path.append(row)
                node = row
                break
            target = _residual(target, proposal, token)
            used.append(token)
        else:  # every child was rejected: the bonus token is drawn from what is left
            return Verdict(tuple(path), draw(target, generator))


def _proposal(draft: Draft, row: int, used: Sequence[int]) -> Tensor | None:
    """What the row's token was drawn from: None for a point mass; rejected siblings removed if not replaced."""
    if draft.probs is None:
        return None
    proposal = draft.probs[row]
    if draft.replacement or not used:
        return proposal
    proposal = proposal.clone()
    proposal[list(used)] = 0.0
    return proposal / proposal.sum()


def _residual(target: Tensor, proposal: Tensor | None, token: int) -> Tensor:
    """The distribution after a rejection: max(0, p - q) / sum(max(0, p - q)); for a point mass, p without its token.

    Example: p = (0.5, 0.3, 0.2) and q = (0.8, 0.1, 0.1) leave (0, 0.2, 0.1) / 0.3.
    """
    if proposal is None:
        excess = target.clone()
        excess[token] = 0.0
    else:
        excess = (target - proposal).clamp_min_(0.0)
    total = float(excess.sum())
    # A rejection implies p(x) < q(x), so other tokens have p > q; only rounding can bring their sum to 0.
    return excess / total if total > 0.0 else target


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator, dtype=torch.float64))


def verify_typical(
    draft: Draft, target_probs: Rows, generator: torch.Generator, epsilon: float = 0.09, delta: float = 0.3
) -> Verdict:
    """Medusa's typical acceptance: keep the longest branch whose tokens all have p > min(epsilon, delta exp(-H)).

    Lossy: the output does not have the target's distribution. Shapes as in verify_rejection; of equally long branches
    the one that the target finds likeliest wins, as in the authors' code, then the first; the bonus token is drawn from
    the target's distribution at the end of the path.
    """
    path, _ = _longest(draft, ROOT, target_probs, epsilon, delta)
    return Verdict(path, draw(target_probs[(path[-1] if path else ROOT) + 1], generator))


def _longest(
    draft: Draft, node: int, target_probs: Rows, epsilon: float, delta: float
) -> tuple[tuple[int, ...], float]:
    """Rows from a node down that are all accepted, and the logarithm of the target's probability of their tokens."""
    best: tuple[tuple[int, ...], float] = ((), 0.0)
    children = draft.children(node)
    if not children:
        return best
    target = target_probs[node + 1]
    entropy = float(torch.special.entr(target).sum())  # entr(p) = -p ln p, and 0 at p = 0
    bar = min(epsilon, delta * math.exp(-entropy))
    for row in children:
        if (prob := float(target[draft.tokens[row]])) > bar:
            path, log_prob = _longest(draft, row, target_probs, epsilon, delta)
            best = max(best, ((row, *path), math.log(prob) + log_prob), key=lambda branch: (len(branch[0]), branch[1]))
    return best
