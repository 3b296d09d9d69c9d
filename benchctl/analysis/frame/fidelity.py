"""How far a method's answers are the target's: verdicts counted, tokens before the first divergence, degeneration.

This file also defines a round: one repeat of a prompt, or of a batch, in one session, with all turns, labels and modes.
Where any row of a round is `invalid` (measured out of bounds), figures leave out the whole round, for all labels alike:
leaving out single generations would favour the shorter ones, see measuring/validity.py. A repeat beyond those of the
run is a round measured again (measuring/plan.py) and replaces the planned repeat.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pandas as pd

from benchctl.records.schema import Exactness, Row

_HALF = ("bfloat16", "float16")
_FAILED_CONTROLS = "fidelity_failed_controls"  # a column of frame/rows.py
_PLANNED = ["file", "session", "suite", "prompt_id", "turn", "label"]  # and the planned repeat
_WORST_FIRST: Final = ("lossy", "numeric", "failed", "unjudged", "sampled", "tie", "identical")
_RETRIED: Final = ("failed", "unjudged")  # a later try replaces these
_RUNAWAY = 2  # times the baseline's length

Repeats = Mapping[int, int]
"""How many repeats were planned, by number of file."""


class Round(NamedTuple):
    """`file` numbers the files; a batch is named by its first prompt."""

    file: int
    session: int
    suite: str
    batch: str
    repeat: int


def round_of(file: int, row: Row) -> Round:
    """The round that a row belongs to."""
    return Round(file, row.session, row.suite, row.batch[0] if row.batch else row.prompt_id, row.repeat)


def planned_repeat(repeat: pd.Series, repeats: pd.Series) -> pd.Series:
    """The planned repeat that each repeat is, or replaces: with 2 planned repeats, 1, 3 and 5 all mean repeat 1."""
    return repeat % repeats


@dataclass(frozen=True)
class Fidelity:
    """Counts of planned generations by verdict, by failure, and without a verdict because the control failed.

    Rounds that figures leave out count too. Each turn of a prompt in each repeat counts once, by the worst verdict of
    all its tries: an answer that is not the target's is evidence against the method even where its times do not count.
    For failures and missing verdicts the last try counts. `median_first_divergence` is None where no answer diverged.
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
    """The counts of one method's generations; `answers` includes failed ones and all tries."""
    states, divergences = _states(answers), answers["first_divergence"]
    if _measured_again(answers, repeats):
        states = states.where(_is_last(answers, repeats) | ~states.isin(_RETRIED))
        ranks = states.map({state: rank for rank, state in enumerate(_WORST_FIRST)}).fillna(len(_WORST_FIRST))
        worst = ranks.groupby(_planned(answers, repeats), sort=False).idxmin()
        states, divergences = states.loc[worst], divergences.loc[worst]
    counts, diverged = states.value_counts(), divergences.dropna()
    return Fidelity(
        **{state: int(counts.get(state, 0)) for state in _WORST_FIRST},
        median_first_divergence=float(diverged.median()) if len(diverged) else None,
    )


def last_tries(generations: pd.DataFrame, repeats: Repeats) -> pd.DataFrame:
    """The last try of each planned generation."""
    return generations[_is_last(generations, repeats)] if _measured_again(generations, repeats) else generations


def _states(answers: pd.DataFrame) -> pd.Series:
    """Verdict, `unjudged` or `failed` of each answer; missing where there is none, as for the baseline."""
    states = answers["verdict"].astype(object)
    if (controls := answers.get(_FAILED_CONTROLS)) is not None:
        states = states.mask(states.isna() & (controls > 0), "unjudged")
    return states.mask(answers["error"].notna(), "failed")


def _measured_again(generations: pd.DataFrame, repeats: Repeats) -> bool:
    return bool((generations["repeat"] >= generations["file"].map(repeats)).any())


def _is_last(generations: pd.DataFrame, repeats: Repeats) -> pd.Series:
    return generations["repeat"] == generations["repeat"].groupby(_planned(generations, repeats)).transform("max")


def _planned(generations: pd.DataFrame, repeats: Repeats) -> list[pd.Series]:
    """The keys of the planned generation that each generation is a try of."""
    repeat = planned_repeat(generations["repeat"], generations["file"].map(repeats))
    return [*(generations[name] for name in _PLANNED), repeat]


def claims_exact(exactness: Exactness, temperature: float) -> bool:
    """Whether the method claims the target's own answers under this sampling (`exact_greedy` does at temperature 0)."""
    return exactness == "exact" or (exactness == "exact_greedy" and temperature == 0)


def broken(counts: Fidelity, dtype: str) -> int:
    """The number of answers that no exact method gives: lossy ones, and outside half precision numeric ones too.

    In float32 or finer, rounding does not explain a numeric difference.
    """
    return counts.lossy + (0 if dtype in _HALF else counts.numeric)


def is_lossless(claim: bool, counts: Fidelity, dtype: str) -> bool:
    """Whether a report may call the method lossless: it claims so, and every one of its answers confirms it."""
    confirmed = counts.identical + counts.tie + counts.numeric
    return claim and confirmed > 0 and broken(counts, dtype) + counts.sampled + counts.failed + counts.unjudged == 0


def agreed_tokens(pairs: pd.DataFrame) -> pd.Series:
    """Tokens before the first divergence; 0 where there is no verdict (the baseline, sampling)."""
    diverged = pairs["verdict"].isin(["tie", "numeric", "lossy"])
    identical_tokens = pairs["new_tokens"].where(pairs["verdict"] == "identical", 0)
    return pairs["first_divergence"].where(diverged, identical_tokens).astype(float)


def compared_tokens(pairs: pd.DataFrame) -> pd.Series:
    """Tokens that could have agreed: the longer of the two answers, since after the first divergence the texts differ.

    At a tie or a numeric difference the comparison ends: both tokens were the target's choice, and the method is not
    the reason why the texts differ from there on. So agreement is 1 for answers that are identical up to ties.
    Example: 10 tokens diverging at index 4 from a baseline of 16 tokens: 4 of 16 agree, and at a tie 4 of 4.
    """
    reached = pairs["first_divergence"].fillna(0) + 1
    longer = pd.concat([pairs["new_tokens"], pairs["new_tokens_baseline"], reached], axis=1).max(axis=1)
    return longer.where(pairs["verdict"] == "lossy", agreed_tokens(pairs)).astype(float)


def runs_away(pairs: pd.DataFrame) -> pd.Series:
    """Whether the limit cuts a method's answer off where the baseline's ended by itself, or it is over twice as long.

    The baseline never runs away.
    """
    cut = pairs["stop_reason"].isin(["length", "context"]) & (pairs["stop_reason_baseline"] == "stop")
    method_tokens, baseline_tokens = (pairs[name].astype(float) for name in ("new_tokens", "new_tokens_baseline"))
    return cut | (method_tokens > _RUNAWAY * baseline_tokens)


def degenerates(pairs: pd.DataFrame) -> pd.Series:
    """Whether the method's own answer loops or runs away. Such text is easy to draft, so it inflates a speed-up."""
    return (pairs["loops"].astype(float) > 0) | runs_away(pairs)


def either_degenerates(pairs: pd.DataFrame) -> pd.Series:
    """Whether the method's answer or the baseline's is degenerate: either text sets the time of one side."""
    return degenerates(pairs) | (pairs["loops_baseline"].astype(float) > 0)
