"""How far a method's answers are the target's: verdicts counted, tokens up to the first divergence."""

from dataclasses import dataclass

import pandas as pd

from benchctl.records import Exactness

_HALF = ("bfloat16", "float16")
_FAILED_CONTROLS = "fidelity_failed_controls"  # a column of frame.py, which builds on this module


@dataclass(frozen=True)
class Fidelity:
    """Generations by verdict, those that failed, those whose verdict is not known as its control failed, and the median
    place of the first divergence (None: none diverged)."""

    identical: int = 0
    tie: int = 0
    numeric: int = 0
    lossy: int = 0
    sampled: int = 0
    failed: int = 0
    unjudged: int = 0
    median_first_divergence: float | None = None


def fidelity(answers: pd.DataFrame) -> Fidelity:
    """The verdicts on one method's generations, failed ones included in `answers`."""
    counts = answers["verdict"].value_counts()
    diverged = answers["first_divergence"].dropna()
    return Fidelity(
        identical=int(counts.get("identical", 0)),
        tie=int(counts.get("tie", 0)),
        numeric=int(counts.get("numeric", 0)),
        lossy=int(counts.get("lossy", 0)),
        sampled=int(counts.get("sampled", 0)),
        failed=int(answers["error"].notna().sum()),
        unjudged=_unjudged(answers),
        median_first_divergence=float(diverged.median()) if len(diverged) else None,
    )


def _unjudged(answers: pd.DataFrame) -> int:
    failed = answers.get(_FAILED_CONTROLS)
    return 0 if failed is None else int((answers["verdict"].isna() & (failed > 0)).sum())


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
