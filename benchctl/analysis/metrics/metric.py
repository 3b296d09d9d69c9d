"""Every reported number, defined once: tables, files and plots share these.

Each is a ratio of two sums over pairs, or how much larger such a ratio is than another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import pandas as pd

from benchctl.analysis.frame.degeneration import either_degenerates
from benchctl.analysis.frame.fidelity import agreed_tokens, compared_tokens

Better = Literal["higher", "lower"]
Rate = Literal["tokens/s", "MB/s", "nats/token"]
Unit = Literal["ratio", "share", "s", "tokens", "experts", "bytes", "J", "points", "correlation"] | Rate
Column = Callable[[pd.DataFrame], pd.Series]


@dataclass(frozen=True)
class Metric:
    """A number about one method on a set of prompts: sum of `top` / sum of `bottom` over its pairs (see frame.pair).

    As a ratio of sums it gives every second, step or token the same weight; a mean of per-prompt ratios would count
    short answers as much as long ones. With `less` it is that ratio less the one of these two columns' sums. `both`
    says whether the baseline's times or counts are a part of it, so that it is off by how their sessions differ where
    the two were measured in different ones.
    """

    name: str
    label: str
    unit: Unit
    better: Better
    top: Column
    bottom: Column
    less: tuple[Column, Column] | None = None
    both: bool = False


@cache  # one function for each column, so that metrics that share it are seen to
def _column(name: str) -> Column:
    return lambda pairs: pairs[name].astype(float)


def ones(pairs: pd.DataFrame) -> pd.Series:
    """1 for each pair."""
    return pd.Series(1.0, index=pairs.index)


def zeros(pairs: pd.DataFrame) -> pd.Series:
    """0 for each pair."""
    return pd.Series(0.0, index=pairs.index)


def _sound(name: str) -> Column:
    """The column, 0 where the method's answer or the baseline's is degenerate, unknown where that is."""
    return lambda pairs: pairs[name].astype(float).where(~either_degenerates(pairs), 0.0).where(pairs["loops"].notna())


_PROMPT = ["file", "session", "file_baseline", "session_baseline", "suite", "prompt_id"]


def _per_prompt(pairs: pd.DataFrame) -> pd.Series:
    """The speed-up of each prompt in each session, over its turns and repeats, spread evenly over its pairs."""
    times = pairs.groupby(_PROMPT)[["whole_s_baseline", "whole_s"]].transform("sum").astype(float)
    return times["whole_s_baseline"] / times["whole_s"] * _of_prompt(pairs)


def _of_prompt(pairs: pd.DataFrame) -> pd.Series:
    """What share of its prompt and session each pair is; these sum to how many of both there are."""
    return 1 / pairs.groupby(_PROMPT)["whole_s"].transform("size")


SPEEDUP = Metric("speedup", "speed-up", "ratio", "higher", _column("whole_s_baseline"), _column("whole_s"), both=True)
DECODE_SPEEDUP = Metric(
    "decode_speedup",
    "speed-up, decode only",
    "ratio",
    "higher",
    _column("whole_decode_s_baseline"),
    _column("whole_decode_s"),
    both=True,
)
# Every prompt weighs the same here, a short one as much as a long one: what some papers call the speed-up.
MEAN_SPEEDUP = Metric(
    "mean_speedup", "mean of per-prompt speed-ups", "ratio", "higher", _per_prompt, _of_prompt, both=True
)
# Repetitive text is easy to draft: an answer that loops or runs away makes whoever drafts look fast.
SOUND_SPEEDUP = Metric(
    "sound_speedup",
    "speed-up without degenerate answers",
    "ratio",
    "higher",
    _sound("whole_s_baseline"),
    _sound("whole_s"),
    both=True,
)
TOKENS_PER_S = Metric("tokens_per_s", "tokens/s", "tokens/s", "higher", _column("new_tokens"), _column("whole_s"))
TPOT = Metric("tpot_s", "TPOT", "s", "lower", _column("decode_s"), _column("committed_tokens"))
TTFT = Metric("ttft_s", "TTFT", "s", "lower", _column("ttft_s"), ones)
BLOCK_EFFICIENCY = Metric(
    "block_efficiency", "block efficiency", "tokens", "higher", _column("committed_tokens"), _column("steps")
)
MEAN_ACCEPTED = Metric(
    "mean_accepted_tokens", "mean accepted tokens", "tokens", "higher", _column("accepted_tokens"), _column("steps")
)
ACCEPTANCE_RATE = Metric(
    "acceptance_rate", "acceptance rate", "share", "higher", _column("accepted_tokens"), _column("drafted_tokens")
)
# What engines call the acceptance rate of a tree: of its nodes, of which but one branch can be accepted. The rate above
# divides by a tree's depth, which keeps it comparable with that of a chain; for a chain both are the same.
ROW_ACCEPTANCE = Metric(
    "row_acceptance",
    "accepted share of drafted rows",
    "share",
    "higher",
    _column("accepted_tokens"),
    _column("draft_rows"),
)
# Of a method that drafts, against another that does (`--over`); the usual baseline drafts nothing.
ACCEPTANCE_DIFFERENCE = Metric(
    "acceptance_rate_difference",
    "acceptance rate, difference to the baseline",
    "share",
    "higher",
    _column("accepted_tokens"),
    _column("drafted_tokens"),
    less=(_column("accepted_tokens_baseline"), _column("drafted_tokens_baseline")),
    both=True,
)
DEPTH_FRACTION = Metric(
    "depth_fraction", "depth fraction", "share", "lower", _column("depth_layers"), _column("full_layers")
)
TOKEN_AGREEMENT = Metric("token_agreement", "token agreement", "share", "higher", agreed_tokens, compared_tokens)
# Up to rounding: answers that diverge at a tie, or by what other shapes of the same sums explain, are the target's too.
TARGET_ANSWERS = Metric(
    "target_answers",
    "answers that are the target's own",
    "share",
    "higher",
    lambda pairs: pairs["verdict"].isin(["identical", "tie", "numeric"]).astype(float),
    lambda pairs: pairs["verdict"].isin(["identical", "tie", "numeric", "lossy"]).astype(float),
)
# Over the answers that can be checked (see exact_match.py). As everywhere, a generation that failed is no answer and
# leaves its pair out: it is counted as failed, and neither as wrong nor as the baseline's loss.
EXACT_MATCH = Metric(
    "exact_match", "exact match", "share", "higher", _column("right_answers"), _column("checked_answers")
)
EXACT_MATCH_DIFFERENCE = Metric(
    "exact_match_difference",
    "exact match, difference to the baseline",
    "share",
    "higher",
    _column("right_answers"),
    _column("checked_answers"),
    less=(_column("right_answers_baseline"), _column("checked_answers_baseline")),
    both=True,
)

METRICS = (
    SPEEDUP,
    DECODE_SPEEDUP,
    MEAN_SPEEDUP,
    SOUND_SPEEDUP,
    TOKENS_PER_S,
    TPOT,
    TTFT,
    BLOCK_EFFICIENCY,
    MEAN_ACCEPTED,
    ACCEPTANCE_RATE,
    ROW_ACCEPTANCE,
    ACCEPTANCE_DIFFERENCE,
    DEPTH_FRACTION,
    TOKEN_AGREEMENT,
    TARGET_ANSWERS,
    EXACT_MATCH,
    EXACT_MATCH_DIFFERENCE,
)
