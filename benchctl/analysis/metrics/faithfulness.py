"""Fidelity that needs no judge: token agreement, what the target thinks of an answer, degeneration and exact match.

The sums about the target's opinion come from measuring/teacher_forcing.py. Rows that agree with the baseline have none:
all their tokens are the target's, and their difference in log-likelihood is 0.
"""

from dataclasses import replace
from math import nan

import pandas as pd

from benchctl.analysis.frame.build import agreed_tokens, compared_tokens, degenerates
from benchctl.analysis.frame.rows import FIDELITY
from benchctl.analysis.metrics.metric import Column, Metric, column, ones, zeros

_TABLE = "Fidelity (no judge)"


def _verdict_in(*verdicts: str) -> Column:
    return lambda pairs: pairs["verdict"].isin(verdicts).astype(float)


def _sum(name: str) -> Column:
    """A sum of the rows, NaN where a row has none."""
    return column(FIDELITY + name, nan)


def _if_complete(same: Column, differing: Column) -> Column:
    """`same` for answers that are the baseline's, `differing` for the others.

    0 throughout where any of the others has no value, as in files of older versions: an average over the remaining
    answers would cover only the perfect ones.
    """

    def values(pairs: pd.DataFrame) -> pd.Series:
        own = differing(pairs)
        is_the_targets = (pairs["verdict"] == "identical") & (
            pairs["full_layers"] > 0
        )  # an engine has its own baseline
        known = own.where(own.notna() | ~is_the_targets, same(pairs))
        return known if known.notna().all() else zeros(pairs)

    return values


def _log_likelihood_difference(pairs: pd.DataFrame) -> pd.Series:
    own = _sum("target_logprob")(pairs) / _sum("scored_tokens")(pairs)
    return own - _sum("baseline_target_logprob")(pairs) / _sum("baseline_scored_tokens")(pairs)


def _known_differences(pairs: pd.DataFrame) -> pd.Series:
    """1 for each answer whose difference is known, NaN for the others."""
    return _log_likelihood_difference(pairs).where(lambda values: values.isna(), 1.0)


TOKEN_AGREEMENT = Metric(
    "token_agreement", "token agreement", "share", "higher", agreed_tokens, compared_tokens, table="Fidelity"
)
# Up to rounding: answers that diverge at a tie, or by the rounding of another order of sums, are the target's too.
TARGET_ANSWERS = Metric(
    "target_answers",
    "answers that are the target's own",
    "share",
    "higher",
    _verdict_in("identical", "tie", "numeric"),
    _verdict_in("identical", "tie", "numeric", "lossy"),
    of_answers=True,
)
TARGET_AGREEMENT = Metric(
    "target_agreement",
    "agreement with the target, teacher-forced",
    "share",
    "higher",
    _if_complete(column("new_tokens"), _sum("target_agreed_tokens")),
    _if_complete(column("new_tokens"), _sum("scored_tokens")),
    table=_TABLE,
    title="target agreement",
    trivial=1.0,
)
"""Share of the answers' tokens that are the target's likeliest after the method's own text before them. Unlike token
agreement it goes on after the first divergence: a text that leaves the baseline's may still be the target's."""

LOG_LIKELIHOOD_DIFFERENCE = Metric(
    "log_likelihood_difference",
    "log-likelihood under the target, difference to the baseline",
    "nats/token",
    "higher",
    _if_complete(zeros, _log_likelihood_difference),
    _if_complete(ones, _known_differences),
    less=(zeros, ones),
    table=_TABLE,
    title="log-likelihood change",
    cell="{:+z.3f}",
    trivial=0.0,
)
"""Mean over answers of ln p per token of the method's answer less that of the baseline's. Greedy decoding does not
maximise likelihood, so it may be above 0."""

KL = Metric(
    "kl_nats_per_token",
    "KL from the target",
    "nats/token",
    "lower",
    column(FIDELITY + "kl_nats", 0.0),
    column(FIDELITY + "kl_tokens", 0.0),
    table=_TABLE,
    title="KL nats",
    cell="{:.3g}",
)
"""Mean over tokens of KL(target || method), both at temperature 1, on the method's own text; only for methods that
choose each token from logits of their own and claim no exactness."""

DEGENERATION = Metric(
    "degeneration",
    "degenerate answers",
    "share",
    "lower",
    lambda pairs: degenerates(pairs).astype(float).where(pairs["loops"].notna()),
    ones,
    of_answers=True,
    table=_TABLE,
    title="degenerate",
    trivial=0.0,
)
"""Answers that end in a loop or run away from the baseline's length: see frame/build.py."""

# Over the answers that can be checked (see exact_match.py). A generation that failed is no answer and leaves its pair
# out: it counts as failed, neither as wrong nor as the baseline's loss.
EXACT_MATCH = Metric(
    "exact_match",
    "exact match",
    "share",
    "higher",
    column("right_answers"),
    column("checked_answers"),
    of_answers=True,
    table="Exact match",
    title="exact match [95%]",
    interval=True,
)
EXACT_MATCH_DIFFERENCE = replace(
    EXACT_MATCH,
    name="exact_match_difference",
    label="exact match, difference to the baseline",
    less=(column("right_answers_baseline"), column("checked_answers_baseline")),
    uses_baseline=True,
    title="difference [95%]",
    cell="{:+z.3f}",
)
