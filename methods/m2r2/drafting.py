"""How M2R2 drafts: a chain, or a tree of the likeliest continuations, from logits that are computed row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.drafting.grow import wide
from benchctl.decoding.method import Chain, Context
from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary

Propose = Callable[[Sequence[int]], Tensor]
"""Draft logits [rows, k] of the last open rows. In: of each row that of the draft which it continues, ROOT, or for the
root itself BEFORE_ROOT."""
BEFORE_ROOT = ROOT - 1


def draft_chain(
    context: Context, depth: int, propose: Propose, vocabulary: DraftVocabulary, confidence: float = 0.0
) -> Draft:
    """At most ``depth`` tokens, chosen as the run chooses them, while they may be as likely as ``confidence`` together.

    The likeliest token decides that before one is drawn: leaving out drawn ones would bend what verification gives.
    """
    chain, likely = Chain(context, vocabulary), 1.0
    for row in range(depth):
        draft_logits = propose([BEFORE_ROOT + row])
        shares = wide(draft_logits).softmax(-1)[0] if confidence else None
        if shares is not None and likely * float(shares.max()) < confidence:
            break
        place = chain.add(draft_logits)
        context.stream.push(chain.tokens[-1:])
        likely *= 1.0 if shares is None else float(shares[place])
        if chain.ended:
            break
    return chain.draft()


def draft_beam(
    context: Context, depth: int, propose: Propose, vocabulary: DraftVocabulary, width: int, confidence: float = 0.0
) -> Draft:
    """A tree of the ``width`` likeliest continuations at each depth; it ends where the best is below ``confidence``.

    Its tokens are never drawn: verification takes them for certain proposals.
    """
    stream, root = context.stream, context.stream.rows - 1
    draft = Draft()
    kept = [(0.0, ROOT)]  # log-probability and row of each branch's end
    continued: Sequence[int] = [BEFORE_ROOT]  # by these rows
    for _ in range(depth):
        every_share = wide(propose(continued)).log_softmax(-1)
        shares, places = every_share.topk(min(width, every_share.shape[-1]))
        grown = [
            (log_share + share, parent, vocabulary.token(place))
            for (log_share, parent), row_shares, row_places in zip(kept, shares.tolist(), places.tolist(), strict=True)
            for share, place in zip(row_shares, row_places, strict=True)
        ]
        best = sorted(grown, reverse=True)[:width]
        if math.exp(best[0][0]) < confidence:
            break
        kept = [(share, len(draft) + place) for place, (share, _, _) in enumerate(best)]
        parents = tuple(parent for _, parent, _ in best)
        tokens = tuple(token for _, _, token in best)
        draft = Draft(draft.tokens + tokens, draft.parents + parents)
        stream.push(tokens, [root + 1 + parent for parent in parents])
        continued = parents
    return draft
