"""What a draft model is for: how many of the target's greedy tokens it says first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchctl.decoding.modules.trainable import Tally
from benchctl.training.data.packing import Document


def drafting(
    draft: PreTrainedModel, documents: Sequence[Document], draft_tokens: Sequence[int] = (1, 4)
) -> dict[str, Tally]:
    """Acceptance by length of draft, for documents whose answers the target wrote greedily: accepted of drafted tokens.

    A draft is right as long as it repeats the target's text, so one pass over that text tells what drafting step by
    step would have given; the first token is the prefill's, and nobody drafts it. Drafts of 1 token give the agreement
    of the two models on that text, token by token, the first one too: greedy_agreement.
    """
    tallies = {length: Tally(0, 0) for length in draft_tokens}
    for document in documents:
        agreed = _agreed(draft, document)
        for length in draft_tokens:
            tallies[length] += accepted(agreed[1:], length) if length > 1 else Tally(sum(agreed), len(agreed))
    return {f"acceptance_{length}" if length > 1 else "greedy_agreement": tally for length, tally in tallies.items()}


def accepted(agreed: Sequence[bool], draft_tokens: int) -> Tally:
    """Tokens accepted of those drafted, when drafts of `draft_tokens` are verified one after the other.

    Agreement yes yes no yes yes with drafts of 2: the first draft is accepted whole and the target adds the third
    token; the second draft is accepted whole too, so 4 of 4. With drafts of 3: 2 of 3, then 2 of 2, so 4 of 5.
    """
    right, of, place = 0, 0, 0
    while place < len(agreed):
        draft = agreed[place : place + draft_tokens]
        kept = next((index for index, good in enumerate(draft) if not good), len(draft))
        right, of, place = right + kept, of + len(draft), place + kept + 1
    return Tally(right, of)


@torch.inference_mode()
def _agreed(draft: PreTrainedModel, document: Document) -> list[bool]:
    """Whether the draft model's first choice is the next token of the answer, token by token."""
    (turn,) = document.turns
    tokens = torch.from_numpy(np.concatenate([turn.head, turn.answer]).astype(np.int64)).to(draft.device)
    logits: Tensor = draft(input_ids=tokens[None], use_cache=False).logits[0]
    first = len(turn.head)
    agreed: list[bool] = (logits[first - 1 : -1].argmax(-1) == tokens[first:]).tolist()
    return agreed
