"""Figures of an answer's fidelity that need no judge and no key: what the target thinks of it, how much of the
baseline's text it has, and whether it degenerates.

The sums about the target's opinion are those of measuring/faithfulness.py. Rows that agree with the baseline have none,
for there is nothing to learn: all their tokens are the target's, and the difference of log-likelihood is 0.
"""

from collections.abc import Callable

import pandas as pd

from benchctl.analysis.frame.degeneration import degenerates
from benchctl.analysis.frame.rows import FIDELITY
from benchctl.analysis.metrics.metric import TOKEN_AGREEMENT, Column, Metric, ones, zeros
from benchctl.analysis.metrics.overlap import overlaps


def has_faithfulness(frame: pd.DataFrame) -> bool:
    """Whether any answer differed from the baseline's or had a distribution of its own, and the run looked at that."""
    names = [FIDELITY + name for name in ("scored_tokens", "kl_tokens")]
    return any(name in frame and bool(frame[name].notna().any()) for name in names)


def _sum(pairs: pd.DataFrame, name: str) -> pd.Series:
    """A sum of the rows, not a number where a row has none."""
    found = pairs.get(FIDELITY + name)
    return pd.Series(float("nan"), index=pairs.index) if found is None else found.astype(float)


def _told(same: Column, sums: Callable[[pd.DataFrame], pd.Series]) -> Column:
    """`same` for answers that are the baseline's, `sums` for the others.

    0 throughout where one of the others tells nothing, as in files written before rows did: what is left of them would
    be the answers that are perfect.
    """

    def column(pairs: pd.DataFrame) -> pd.Series:
        found = sums(pairs).where(pairs["verdict"] != "identical", same(pairs))
        return found if found.notna().all() else zeros(pairs)

    return column


def _tokens(pairs: pd.DataFrame) -> pd.Series:
    return pairs["new_tokens"].astype(float)


def _log_likelihood_difference(pairs: pd.DataFrame) -> pd.Series:
    own = _sum(pairs, "target_logprob") / _sum(pairs, "scored_tokens")
    return own - _sum(pairs, "baseline_target_logprob") / _sum(pairs, "baseline_scored_tokens")


def _answers(pairs: pd.DataFrame) -> pd.Series:
    """1 for each answer whose difference is known."""
    return _log_likelihood_difference(pairs).where(lambda found: found.isna(), 1.0)


def _greedy(column: Column) -> Column:
    """0 for sampled answers: two that are drawn have little text in common, however exact the method is."""
    return lambda pairs: column(pairs).where(pairs["verdict"] != "sampled", 0.0)


def _overlap(name: str) -> Column:
    def column(pairs: pd.DataFrame) -> pd.Series:
        greedy = pairs[pairs["verdict"] != "sampled"]
        return overlaps(greedy)[name].reindex(pairs.index, fill_value=0.0)

    return column


def _filled(name: str) -> Column:
    return lambda pairs: _sum(pairs, name).fillna(0.0)


TARGET_AGREEMENT = Metric(
    "target_agreement",
    "agreement with the target, teacher-forced",
    "share",
    "higher",
    _told(_tokens, lambda pairs: _sum(pairs, "target_agreed_tokens")),
    _told(_tokens, lambda pairs: _sum(pairs, "scored_tokens")),
)
"""Tokens of the answers that are the target's likeliest after the method's own text before them, of all tokens. Unlike
token agreement it goes on after the first divergence: a text that leaves the baseline's may still be the target's."""

LOG_LIKELIHOOD_DIFFERENCE = Metric(
    "log_likelihood_difference",
    "log-likelihood under the target, difference to the baseline",
    "nats/token",
    "higher",
    _told(zeros, _log_likelihood_difference),
    _told(ones, _answers),
)
"""Mean over answers of ln p per token of the method's answer less that of the baseline's. Greedy decoding does not
maximise likelihood, so it may be above 0."""

KL = Metric("kl_nats_per_token", "KL from the target", "nats/token", "lower", _filled("kl_nats"), _filled("kl_tokens"))
"""Mean over tokens of KL(target || method), both at temperature 1, on the method's own text; only of methods that
choose each token from logits of their own and claim no exactness."""

ROUGE_L = Metric("rouge_l", "ROUGE-L to the baseline", "share", "higher", _overlap("rouge_l"), _greedy(ones))
CHRF = Metric("chrf", "chrF to the baseline", "share", "higher", _overlap("chrf"), _greedy(ones))

DEGENERATION = Metric(
    "degeneration",
    "degenerate answers",
    "share",
    "lower",
    lambda pairs: degenerates(pairs).astype(float).where(pairs["loops"].notna()),
    ones,
)
"""Answers that end in a loop or run away from the baseline's length: see degeneration.py."""

FAITHFULNESS_METRICS = (TARGET_AGREEMENT, LOG_LIKELIHOOD_DIFFERENCE, DEGENERATION, KL)
OVERLAP_METRICS = (ROUGE_L, CHRF)
"""Only where asked for: each pair of texts takes milliseconds, and a large file has many."""

AGAINST_BASELINE = (TOKEN_AGREEMENT, TARGET_AGREEMENT, *OVERLAP_METRICS)
"""What is 1 for an answer that is the baseline's."""
