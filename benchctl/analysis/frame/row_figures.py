"""Figures of one row: whether its answer loops, how often each draft position was accepted, and a bandwidth bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

from benchctl.records.schema import Row, Run

COPIES = 3
LOOP_TOKENS = 16
LONGEST_PHRASE = 90  # tokens, as in the authors' code
POSITIONS = 15  # deeper positions are not counted; the histogram's last bar holds this many accepted tokens or more
POSITION = "position_"  # prefix of the columns of `step_counts`
BANDWIDTH = "memory_bandwidth_mb_s"  # a fact of the machine
_BASELINE = "autoregressive"  # the header's bytes per step are those of this method


def loops(token_ids: Sequence[int], *, ended: bool) -> bool:
    """Whether an answer ends in at least COPIES of one phrase, the first perhaps cut, of LOOP_TOKENS tokens in all.

    `ended` says that the last token is a stop token, which belongs to no phrase. Source: Holtzman et al., The Curious
    Case of Neural Text Degeneration, 2019, arXiv 1904.09751, who ask for three copies of a phrase of at least two
    words. Tokens are shorter than words, so we also ask for a minimum length of the whole repetition.
    Example: 9 and eight times 4 5 is a loop; 9 and seven times 4 5 is too short.

    >>> [loops([9, *[4, 5] * times], ended=False) for times in (7, 8)]
    [False, True]
    """
    ids = token_ids[:-1] if ended else token_ids
    if len(ids) < LOOP_TOKENS:
        return False
    longest = min(LONGEST_PHRASE, len(ids) // COPIES)
    if ids[-1] not in ids[-1 - longest : -1]:
        return False  # the usual case, decided in a tenth of the time
    return any(ids[-1] == ids[-1 - phrase] and _repeats(ids, phrase) for phrase in range(1, longest + 1))


def _repeats(ids: Sequence[int], phrase: int) -> bool:
    """Whether the end of `ids` repeats a phrase of `phrase` tokens for long enough."""
    needed = max(LOOP_TOKENS, COPIES * phrase)
    return all(ids[-at] == ids[-at - phrase] for at in range(1, needed - phrase + 1))


def step_counts(row: Row) -> Mapping[str, int]:
    """In how many steps each draft position was accepted and tested: `accepted_1`, `tested_1` .. to the deepest.

    A position is tested if all positions before it were accepted. The loop may cut accepted tokens off at a stop token
    or at the limit. The position after the last token kept was then neither accepted nor rejected: it is not tested.

    Example: steps that drafted 3 tokens and accepted 3, 1 and 0 of them tested the first position three times, the
    second twice and the third once, and accepted them 2, 1 and 1 times.
    """
    deepest = min(max(row.drafted, default=0), POSITIONS)
    if not deepest:
        return {}
    accepted, tested = [0] * (deepest + 1), [0] * (deepest + 1)
    for (drafted, kept), steps in Counter(zip(row.drafted, row.accepted, strict=True)).items():
        accepted[min(kept, deepest)] += steps
        tested[min(drafted, kept + 1, deepest)] += steps
    cut = row.accepted[-1] + 1
    if row.committed[-1] < cut <= min(row.drafted[-1], deepest):
        tested[cut], tested[cut - 1] = tested[cut] - 1, tested[cut - 1] + 1
    return {
        f"{kind}_{position}": steps
        for kind, exactly in (("accepted", accepted), ("tested", tested))
        for position, steps in enumerate(_at_least(exactly), 1)
    }


def _at_least(exactly: Sequence[int]) -> list[int]:
    """From how many steps reached exactly 0, 1, 2 .. positions to how many reached at least 1, 2 .. positions."""
    return list(accumulate(exactly[:0:-1]))[::-1]


def least_read_s(row: Row, run: Run) -> float | None:
    """The least time in seconds that the machine needs to read what all steps of a baseline's row read.

    Each step reads the weights and the keys and values of the text so far. None for methods, whose steps read other
    things, for batches, and where the header lacks the sizes or the bandwidth.

    Example: a prompt of 3 tokens and 2 steps, 100 bytes of weights, 10 bytes of keys and values per token, 1 MB/s: the
    steps see texts of 4 and 5 tokens, so they read 290 bytes in 290 us.
    """
    bandwidth_mb_s = run.machine.get(BANDWIDTH)
    if not isinstance(bandwidth_mb_s, int | float) or bandwidth_mb_s <= 0 or not run.step_bytes:
        return None
    if row.label.partition("[")[0] != _BASELINE or row.batch or row.error is not None or row.totals is not None:
        return None
    steps = len(row.step_s)
    text_tokens = steps * row.prompt_tokens + steps * (steps + 1) // 2
    return (steps * run.step_bytes + text_tokens * run.cache_token_bytes) / (bandwidth_mb_s * 1e6)
