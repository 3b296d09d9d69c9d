"""A text forced upon a method: it takes its own steps, but says what was said before, so that all time the same text.

Where a method is lossy, or two tokens are nearly tied, methods write different texts, and the text sets the speed:
repetitive text is easy to draft, and confident text leaves early. Under a forced text that is no part of a comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.verify import Verdict


class Unforced(ValueError):
    """A method said something else than what was forced upon it."""


@dataclass
class ForcedText:
    """The ids of an answer, to its end.

    judged  its tokens at which the method's own choice was seen: all but those that a step took behind its first
            disagreement, as the method would have gone on from its own token there
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
        """The verdict on a draft behind place ``at``: the method's ``own`` as long as it says the text, else the rows
        of the draft that say it and the token that follows them in the text.

        Example: of text (7, 8, 9) with draft 7 8 and own verdict "7, then 5", the verdict is "7 8, then 9"; three of
        the text's tokens are taken, two of them judged and one agreed.
        """
        wanted = self.tokens[at:]
        said = [*(draft.tokens[row] for row in own.path), own.next_token]
        same = common_start(said, wanted)
        compared = min(len(said), len(wanted))
        self.agreed += same
        self.judged += min(same + 1, compared)
        if same == compared:
            return own
        path, node = list[int](), ROOT
        for token in wanted:
            said_by = next((row for row in draft.children(node) if draft.tokens[row] == token), None)
            if said_by is None:
                return Verdict(tuple(path), token)
            path.append(said_by)
            node = said_by
        return Verdict(tuple(path), own.next_token)  # the draft says all of the text

    def check_ends(self, limit_tokens: int, stop_ids: frozenset[int]) -> None:
        """Raises ValueError unless the text ends where an answer of so many tokens at most does, and not before."""
        stop = next((at for at, token in enumerate(self.tokens) if token in stop_ids), limit_tokens - 1)
        if len(self.tokens) != min(stop + 1, limit_tokens):
            raise ValueError(
                f"the forced text has {len(self.tokens)} tokens, but an answer that says it ends after "
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
    """Tokens that two texts have in common from their start."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), min(len(first), len(second)))
