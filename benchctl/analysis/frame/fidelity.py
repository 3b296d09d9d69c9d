"""How far a method's answers are the target's: verdicts counted, tokens up to the first divergence."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pandas as pd

from benchctl.analysis.frame.rounds import stands_for
from benchctl.records.schema import Exactness

_HALF = ("bfloat16", "float16")
_FAILED_CONTROLS = "fidelity_failed_controls"  # a column of frame.py, which builds on this module
_PLANNED = ["file", "session", "suite", "prompt_id", "turn", "label"]  # and the repeat that a try stands for
_WORST_FIRST: Final = ("lossy", "numeric", "failed", "unjudged", "sampled", "tie", "identical")
_MENDED: Final = ("failed", "unjudged")  # by a later try

Repeats = Mapping[int, int]
"""How many repeats were planned, by number of file."""


@dataclass(frozen=True)
class Fidelity:
    """Planned generations, those of rounds that figures leave out included: how many there are of each verdict, how
    many failed, how many have no verdict as its control failed; and the median place of the first divergence (None:
    none diverged).

    Each turn of a prompt in each repeat counts once, however often its round was measured: by the worst verdict of all
    its tries, since an answer that was not the target's is evidence against the method whatever disturbed the times.
    That one failed or was not judged is none: there the last try counts.
    """

    identical: int = 0
    tie: int = 0
    numeric: int = 0
    lossy: int = 0
    sampled: int = 0
    failed: int = 0
    unjudged: int = 0
    median_first_divergence: float | None = None


def fidelity(answers: pd.DataFrame, repeats: Repeats) -> Fidelity:
    """What came of one method's generations, failed ones and all tries included in `answers`."""
    states, places = _states(answers), answers["first_divergence"]
    if _measured_again(answers, repeats):
        states = states.where(_is_last(answers, repeats) | ~states.isin(_MENDED))
        ranks = states.map({state: rank for rank, state in enumerate(_WORST_FIRST)}).fillna(len(_WORST_FIRST))
        worst = ranks.groupby(_planned(answers, repeats), sort=False).idxmin()
        states, places = states.loc[worst], places.loc[worst]
    counts, diverged = states.value_counts(), places.dropna()
    return Fidelity(
        **{state: int(counts.get(state, 0)) for state in _WORST_FIRST},
        median_first_divergence=float(diverged.median()) if len(diverged) else None,
    )


def last_tries(generations: pd.DataFrame, repeats: Repeats) -> pd.DataFrame:
    """Of each planned generation the one that was measured last: where it failed, nothing made up for that."""
    return generations[_is_last(generations, repeats)] if _measured_again(generations, repeats) else generations


def _states(answers: pd.DataFrame) -> pd.Series:
    """What came of each; none where there is nothing to say, as of the baseline's."""
    states = answers["verdict"].astype(object)
    if (controls := answers.get(_FAILED_CONTROLS)) is not None:
        states = states.mask(states.isna() & (controls > 0), "unjudged")
    return states.mask(answers["error"].notna(), "failed")


def _measured_again(generations: pd.DataFrame, repeats: Repeats) -> bool:
    return bool((generations["repeat"] >= generations["file"].map(repeats)).any())


def _is_last(generations: pd.DataFrame, repeats: Repeats) -> pd.Series:
    return generations["repeat"] == generations["repeat"].groupby(_planned(generations, repeats)).transform("max")


def _planned(generations: pd.DataFrame, repeats: Repeats) -> list[pd.Series]:
    """What tells the planned generations apart, of which each of these is a try."""
    planned = stands_for(generations["repeat"], generations["file"].map(repeats))
    return [*(generations[name] for name in _PLANNED), planned]


def claims_exact(exactness: Exactness, temperature: float) -> bool:
    """Whether the method claims the target's own answers under this sampling (`exact_greedy` does at temperature 0)."""
    return exactness == "exact" or (exactness == "exact_greedy" and temperature == 0)


def broken(found: Fidelity, dtype: str) -> int:
    """Answers that no exact method gives: in half precision the lossy ones; in a precision so fine that rounding away
    from the very place of a divergence explains nothing, the numeric ones too."""
    return found.lossy + (0 if dtype in _HALF else found.numeric)


def is_lossless(claim: bool, found: Fidelity, dtype: str) -> bool:
    """Whether a report may call the method lossless: it claims so, and every one of its answers bears it out."""
    borne_out = found.identical + found.tie + found.numeric
    return claim and borne_out > 0 and broken(found, dtype) + found.sampled + found.failed + found.unjudged == 0


def agreed_tokens(pairs: pd.DataFrame) -> pd.Series:
    """Tokens before the first divergence; 0 where there was no verdict to compare by (the baseline, sampling)."""
    return pairs["first_divergence"].where(_diverged(pairs), pairs["new_tokens"].where(_same(pairs), 0)).astype(float)


def compared_tokens(pairs: pd.DataFrame) -> pd.Series:
    """Tokens that could have agreed: the longer of the two answers, since after the first divergence the texts differ.

    At a tie, a numeric one included, the comparison ends: both tokens were the target's choice, and the method is not
    the reason why the texts differ from there on. So agreement is 1 for whatever is identical up to ties.
    Example: 10 tokens diverging at index 4 from a baseline of 16 tokens: 4 of 16 agree, and at a tie 4 of 4.
    """
    reached = pairs["first_divergence"].fillna(0) + 1
    longer = pd.concat([pairs["new_tokens"], pairs["new_tokens_baseline"], reached], axis=1).max(axis=1)
    return longer.where(pairs["verdict"] == "lossy", agreed_tokens(pairs)).astype(float)


def _same(pairs: pd.DataFrame) -> pd.Series:
    return pairs["verdict"] == "identical"


def _diverged(pairs: pd.DataFrame) -> pd.Series:
    return pairs["verdict"].isin(["tie", "numeric", "lossy"])
