"""Drafting with the target's own first layers: rows are pushed as they are proposed and wait where drafting stopped."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.method import Chain, Context

Propose = Callable[[int], Tensor]  # how many of the last open rows in, draft logits [rows, vocabulary] out


def draft_chain(context: Context, depth: int, propose: Propose, confidence: float = 0.0) -> Draft:
    """``depth`` tokens at most, chosen as the run chooses them; it ends before one with which all of them together
    would be less likely than ``confidence``.

    That is decided before a token is drawn, by the likeliest one: leaving out some of the drawn ones would bend what
    verification gives.
    """
    chain, likely = Chain(context), 1.0
    for _ in range(depth):
        draft_logits = propose(1)
        shares = _wide(draft_logits).softmax(-1)[0] if confidence else None
        if shares is not None and likely * float(shares.max()) < confidence:
            break
        token = chain.add(draft_logits)
        context.stream.push((token,))
        likely *= 1.0 if shares is None else float(shares[token])
    return chain.draft()


def draft_beam(context: Context, depth: int, propose: Propose, width: int, confidence: float = 0.0) -> Draft:
    """A tree that keeps, at each depth, the ``width`` likeliest continuations of the branches kept at the one before.

    It ends before the likeliest branch is less likely than ``confidence``. Its tokens are not drawn, whatever the run
    does: verification takes them for certain proposals.
    """
    stream, root = context.stream, context.stream.rows - 1
    draft = Draft()
    kept = [(0.0, ROOT)]  # log-probability and row of each branch's end
    for _ in range(depth):
        shares, ids = _wide(propose(len(kept))).log_softmax(-1).topk(width)
        grown = [
            (log_share + share, parent, token)
            for (log_share, parent), row_shares, row_ids in zip(kept, shares.tolist(), ids.tolist(), strict=True)
            for share, token in zip(row_shares, row_ids, strict=True)
        ]
        best = sorted(grown, reverse=True)[:width]
        if math.exp(best[0][0]) < confidence:
            break
        kept = [(share, len(draft) + place) for place, (share, _, _) in enumerate(best)]
        parents = tuple(parent for _, parent, _ in best)
        tokens = tuple(token for _, _, token in best)
        draft = Draft(draft.tokens + tokens, draft.parents + parents)
        stream.push(tokens, [root + 1 + parent for parent in parents])
    return draft


def _wide(draft_logits: Tensor) -> Tensor:
    """In float32 at least: probabilities in half precision are too coarse to rank branches, or to stop by."""
    return draft_logits.to(torch.promote_types(draft_logits.dtype, torch.float32))
