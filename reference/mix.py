"""How the recipe of the reference models reads its documents: by weight, some chats with a second or a system turn.

A second turn is another chat put after the first, so that the model sees conversations though its data hold none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchctl.errors import UserError
from benchctl.training.data.packing import (
    PROMPT_WEIGHT,
    Document,
    Piece,
    Tokens,
    Turn,
    answer_starts,
    chunks,
    conversation,
    cut_to,
)
from reference.bpe import Joints
from reference.sources import weight

SECOND_TURN_SHARE = 0.15
SYSTEM_SHARE = 0.05
LATEST_START = 0.75  # a chat whose answer begins beyond this part of a row teaches too little for its room
NO_WEIGHT = (
    "no document has a weight above 0 in this stage, see reference/sources.py; with --no-mix every source is read"
)


@dataclass(frozen=True)
class Mix:
    """The pieces of one pass. `weights` is the column of weights in sources.py; None reads every document once.

    `prompt_weight` is the loss weight of what is said to the model, in percent.
    """

    documents: Sequence[Document]
    joints: Joints
    row_tokens: int
    weights: int | None
    prompt_weight: int = PROMPT_WEIGHT

    def pieces(self, random: np.random.Generator) -> list[Piece]:
        """Every document as often as its source weighs. Raises UserError when none has any weight."""
        chosen = [document for document in self.documents for _ in range(_copies(self._times(document), random))]
        if not chosen:
            raise UserError("no_weight", NO_WEIGHT)
        pieces = [
            chunk for document in chosen if not document.turns for chunk in chunks(document.text, self.row_tokens)
        ]
        chats = [document for document in chosen if document.turns]
        order = iter(random.permutation(len(chats)))
        for index in order:
            opening = self.joints.opening_with_system if random.random() < SYSTEM_SHARE else self.joints.opening
            joined = [chats[index]]
            if random.random() < SECOND_TURN_SHARE:
                joined.extend(chats[more] for more in [next(order, None)] if more is not None)
            turns = joined_turns(joined, self.joints, opening)
            if answer_starts(turns)[0] < self._latest_start:
                pieces.append(cut_to(conversation(turns, self.prompt_weight), self.row_tokens))
        return pieces

    def dropped_answers(self) -> int:
        """Answers that no row has room for, wherever their chat is put. Raises UserError when nothing else is there."""
        read = [document for document in self.documents if self._times(document) > 0]
        if not read:
            raise UserError("no_weight", NO_WEIGHT)
        starts = [answer_starts(document.turns) for document in read if document.turns]
        kept = [chat for chat in starts if chat[0] < self._latest_start]
        if not kept and len(starts) == len(read):
            raise UserError(
                "rows_too_short",
                f"every prompt is longer than three quarters of a row of {self.row_tokens} tokens, and so leaves an "
                "answer too little room; every stage needs something to read: add shorter chats or texts",
            )
        return sum(map(len, starts)) - sum(start < self.row_tokens for chat in kept for start in chat)

    @property
    def _latest_start(self) -> float:
        return self.row_tokens * LATEST_START

    def _times(self, document: Document) -> float:
        """How often a pass reads it."""
        return 1.0 if self.weights is None else weight(document.source, self.weights)


def joined_turns(chats: Sequence[Document], joints: Joints, opening: Tokens) -> list[Turn]:
    """The turns of chats put one after the other behind `opening`; each ends as the template ends it before another."""
    turns: list[Turn] = []
    for number, chat in enumerate(chats):
        first, *_ = chat.turns
        head = first.head[len(joints.opening) :]
        entered = Turn(head if number else np.concatenate([opening, head]), first.answer)
        *before, last = [entered, *chat.turns[1:]]
        turns += [*before, Turn(last.head, np.concatenate([last.answer, joints.after]))]
    return turns


def _copies(times: float, random: np.random.Generator) -> int:
    whole = int(times)
    return whole + int(random.random() < times - whole)
