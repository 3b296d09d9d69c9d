"""Answers that end in a loop or run away: easy to draft, so that a speed taken over them flatters whoever drafts.

The loop is that of Holtzman et al.: The Curious Case of Neural Text Degeneration, 2019, arXiv 1904.09751: a phrase that
is repeated at the end of the text until the text is cut off. Theirs is of at least two words, said three times; tokens
are shorter than words, so a least length of the whole repetition is asked for too (ours).
"""

from collections.abc import Sequence

import pandas as pd

COPIES = 3
LOOP_TOKENS = 16
LONGEST_PHRASE = 90  # tokens, as in their code
_RUNAWAY = 2  # times the baseline's length


def loops(token_ids: Sequence[int], *, ended: bool) -> bool:
    """Whether an answer ends in at least COPIES of one phrase, the first perhaps cut, of LOOP_TOKENS tokens in all.

    `ended` tells whether its last token is a stop token, which belongs to no phrase.
    Example: 9 and eight times 4 5 is a loop; 9 and seven times 4 5 is too short to be called one.

    >>> [loops([9, *[4, 5] * times], ended=False) for times in (7, 8)]
    [False, True]
    """
    ids = token_ids[:-1] if ended else token_ids
    if len(ids) < LOOP_TOKENS:
        return False
    longest = min(LONGEST_PHRASE, len(ids) // COPIES)
    if ids[-1] not in ids[-1 - longest : -1]:
        return False  # the usual case, told in a tenth of the time
    return any(ids[-1] == ids[-1 - phrase] and _looped(ids, phrase) for phrase in range(1, longest + 1))


def _looped(ids: Sequence[int], phrase: int) -> bool:
    """Whether the end of `ids` repeats itself every `phrase` tokens for long enough."""
    needed = max(LOOP_TOKENS, COPIES * phrase)
    return all(ids[-at] == ids[-at - phrase] for at in range(1, needed - phrase + 1))


def runs_away(pairs: pd.DataFrame) -> pd.Series:
    """Whether a method's answer is cut off by the limit where the baseline's ended by itself, or is more than twice as
    long. The baseline has nothing to run away from."""
    cut = pairs["stop_reason"].isin(["length", "context"]) & (pairs["stop_reason_baseline"] == "stop")
    own, baseline = (pairs[name].astype(float) for name in ("new_tokens", "new_tokens_baseline"))
    return cut | (own > _RUNAWAY * baseline)


def degenerates(pairs: pd.DataFrame) -> pd.Series:
    """Whether the method's own answer loops or runs away."""
    return (pairs["loops"].astype(float) > 0) | runs_away(pairs)


def either_degenerates(pairs: pd.DataFrame) -> pd.Series:
    """Whether the method's answer or the baseline's is degenerate: what a speed without degenerate answers leaves out,
    as either text sets the time of one side."""
    return degenerates(pairs) | (pairs["loops_baseline"].astype(float) > 0)
