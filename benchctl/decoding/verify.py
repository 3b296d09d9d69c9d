"""Draft and target distributions in, verdict out: which rows are accepted and which token follows.

Sources: greedy and chain rejection, Leviathan et al. 2211.17192 and Chen et al. 2302.01318; siblings, SpecInfer
2305.09781 (with replacement) and Sequoia 2402.12374 (without); blocks of a chain, Sun et al. 2403.10444;
typical acceptance, Medusa 2401.10774 section 2.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.sampling import WarpedRows, draw

Rows = Tensor | WarpedRows  # [vocabulary] by index


@dataclass(frozen=True)
class Verdict:
    """path: accepted draft rows in order, root excluded; next_token: the bonus token the target adds."""

    path: tuple[int, ...]
    next_token: int


def verify_greedy(draft: Draft, argmaxes: Sequence[int]) -> Verdict:
    """Follow the child that equals the target's argmax; ``argmaxes`` [1 + rows], the root's first."""
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
    """The distribution after a rejection: max(0, p - q) / sum(max(0, p - q)); for a point mass, p without its token."""
    excess = _excess(target, proposal, token)
    total = float(excess.sum())
    # A rejection implies p(x) < q(x), so other tokens have p > q; only rounding can bring their sum to 0.
    return excess / total if total > 0.0 else target


def _excess(target: Tensor, proposal: Tensor | None, token: int) -> Tensor:
    """max(0, p - q), where q is ``proposal``, or where that is None a point mass at ``token``."""
    if proposal is not None:
        return (target - proposal).clamp_min_(0.0)
    excess = target.clone()
    excess[token] = 0.0
    return excess


def verify_block(draft: Draft, target_probs: Rows, generator: torch.Generator) -> Verdict:
    """Accept a chain as a block, so that the output has the target's distribution and drafts are accepted more often.

    Sun et al. 2403.10444, algorithm 2; shapes as in verify_rejection, which accepts at most as many tokens on average.
    With p_0 = 1, p_i = min(1, p_(i-1) P(x_i) / Q(x_i)) is the probability that token i is kept. For i = n, n - 1, .., 1
    in this order, i of n tokens are kept with probability h_i: h_n = p_n, otherwise h_i = S_i / (S_i + 1 - p_i), where
    S_i = sum max(0, p_i P - Q). If none of these holds, no token is kept. The bonus token is drawn from P, or behind
    i < n tokens from max(0, p_i P - Q) / S_i.
    """
    if draft.depth < len(draft):
        raise ValueError("block verification takes chains without scratch rows")
    proposals: Sequence[Tensor | None] = draft.probs or [None] * len(draft)
    shares = [1.0]
    for row, (token, proposal) in enumerate(zip(draft.tokens, proposals, strict=True)):
        drafted_mass = 1.0 if proposal is None else float(proposal[token])
        shares.append(min(1.0, shares[-1] * float(target_probs[row][token]) / drafted_mass))
    if not draft.tokens or _uniform(generator) < shares[-1]:
        return Verdict(tuple(range(len(draft))), draw(target_probs[len(draft)], generator))
    for kept in range(len(draft) - 1, 0, -1):
        excess = _excess(shares[kept] * target_probs[kept], proposals[kept], draft.tokens[kept])
        total = float(excess.sum())
        if _uniform(generator) * (total + 1.0 - shares[kept]) < total:
            return Verdict(tuple(range(kept)), draw(excess, generator))
    return Verdict((), draw(_residual(target_probs[0], proposals[0], draft.tokens[0]), generator))


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator, dtype=torch.float64))


def verify_typical(
    draft: Draft, target_probs: Rows, generator: torch.Generator, epsilon: float = 0.09, delta: float = 0.3
) -> Verdict:
    """Medusa's typical acceptance: keep the longest branch whose tokens all have p > min(epsilon, delta exp(-H)).

    Lossy. Shapes as in verify_rejection; of equally long branches the one that the target finds likeliest wins, as in
    the authors' code, then the first; the bonus token is drawn from the target's distribution at the end of the path.
    """
    path, _ = _longest(draft, ROOT, target_probs, epsilon, delta)
    return Verdict(path, draw(target_probs[(path[-1] if path else ROOT) + 1], generator))


def _longest(
    draft: Draft, node: int, target_probs: Rows, epsilon: float, delta: float
) -> tuple[tuple[int, ...], float]:
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


class Unforced(ValueError):
    """A method said something else than what was forced upon it."""


@dataclass
class ForcedText:
    """The ids of an answer, to its end.

    judged  its tokens at which the method's own choice was seen: up to a step's first disagreement
    agreed  those of them that were the method's own choice
    """

    tokens: tuple[int, ...]
    judged: int = 0
    agreed: int = 0

    def choose(self, at: int, own: int) -> int:
        """The token at place ``at`` of the answer, where the method itself chose ``own``."""
        token = self.tokens[at]
        self.judged += 1
        self.agreed += own == token
        return token

    def impose(self, at: int, draft: Draft, own: Verdict) -> Verdict:
        """The verdict on a draft behind place ``at``: the method's ``own`` while it says the text, else the text's.

        Of text (7, 8, 9) with draft 7 8 and own verdict "7, then 5" it is "7 8, then 9"; two tokens judged, one agreed.
        """
        wanted = self.tokens[at:]
        said = [*(draft.tokens[row] for row in own.path), own.next_token]
        same = common_start(said, wanted)
        compared = min(len(said), len(wanted))
        self.agreed += same
        self.judged += min(same + 1, compared)
        if same == compared:
            return own
        by_depth = dict(enumerate(wanted))
        verdict = verify_greedy(draft, [by_depth.get(depth, -1) for depth in (0, *draft.depths)])
        # A draft may say all of the text: what follows is the method's own.
        return verdict if verdict.next_token >= 0 else replace(verdict, next_token=own.next_token)

    def check_ends(self, limit_tokens: int, stop_ids: frozenset[int]) -> None:
        """Raises ValueError unless the text ends where an answer of so many tokens at most does, and not before."""
        stop = next((at for at, token in enumerate(self.tokens) if token in stop_ids), limit_tokens - 1)
        if len(self.tokens) != min(stop + 1, limit_tokens):
            raise ValueError(
                f"the forced text has {len(self.tokens)} tokens, but an answer with these tokens ends after "
                f"{min(stop + 1, limit_tokens)}"
            )

    def check_said(self, at: int, tokens: Sequence[int]) -> None:
        """Raises Unforced unless what was committed from place ``at`` on is the text."""
        if (same := common_start(tokens, self.tokens[at:])) < len(tokens):
            raise Unforced(
                f"the method said {tokens[same]} where another token was forced upon it: replay takes methods that "
                "choose by Context.pick, or draft as Speculative does"
            )


def common_start(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts have in common before the first difference."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), min(len(first), len(second)))
