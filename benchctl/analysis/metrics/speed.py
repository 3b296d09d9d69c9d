"""Speed: speed-ups over the baseline, throughput and latency."""

import pandas as pd

from benchctl.analysis.frame.build import either_degenerates
from benchctl.analysis.metrics.metric import Column, Metric, column, ones

_PROMPT = ["file", "session", "file_baseline", "session_baseline", "suite", "prompt_id"]


def _of_prompt(pairs: pd.DataFrame) -> pd.Series:
    """1 / the number of pairs of the same prompt and session; these sum to the number of prompts and sessions."""
    return 1 / pairs.groupby(_PROMPT)["whole_s"].transform("size")


def _speedup_of_prompt(pairs: pd.DataFrame) -> pd.Series:
    """The speed-up of each prompt in each session, over its turns and repeats, spread evenly over its pairs."""
    times = pairs.groupby(_PROMPT)[["whole_s_baseline", "whole_s"]].transform("sum").astype(float)
    return times["whole_s_baseline"] / times["whole_s"] * _of_prompt(pairs)


def _sound(name: str) -> Column:
    """The column; 0 where either answer is degenerate, missing where that is unknown."""
    return lambda pairs: column(name)(pairs).where(~either_degenerates(pairs), 0.0).where(pairs["loops"].notna())


SPEEDUP = Metric(
    "speedup",
    "speed-up",
    "ratio",
    "higher",
    column("whole_s_baseline"),
    column("whole_s"),
    uses_baseline=True,
    table="Speed",
    title="speed-up [95%]",
    cell="{:.2f}x",
    interval=True,
)
DECODE_SPEEDUP = Metric(
    "decode_speedup",
    "speed-up, decode only",
    "ratio",
    "higher",
    column("whole_decode_s_baseline"),
    column("whole_decode_s"),
    uses_baseline=True,
    table="Speed",
    title="decode only",
    cell="{:.2f}x",
)
# Every prompt has the same weight, a short one as much as a long one. Some papers call this the speed-up.
MEAN_SPEEDUP = Metric(
    "mean_speedup",
    "mean of per-prompt speed-ups",
    "ratio",
    "higher",
    _speedup_of_prompt,
    _of_prompt,
    uses_baseline=True,
    table="Speed-up variants",
    title="mean of prompts [95%]",
    cell="{:.2f}x",
    interval=True,
)
# Repetitive text is easy to draft: answers that loop or run away make a method that drafts look fast.
SOUND_SPEEDUP = Metric(
    "sound_speedup",
    "speed-up without degenerate answers",
    "ratio",
    "higher",
    _sound("whole_s_baseline"),
    _sound("whole_s"),
    uses_baseline=True,
    table="Speed-up variants",
    title="without degenerate answers [95%]",
    cell="{:.2f}x",
    interval=True,
)
TOKENS_PER_S = Metric(
    "tokens_per_s",
    "tokens/s",
    "tokens/s",
    "higher",
    column("new_tokens"),
    column("whole_s"),
    table="Speed",
    title="tokens/s",
    cell="{:.1f}",
)
TPOT = Metric(
    "tpot_s",
    "TPOT",
    "s",
    "lower",
    column("decode_s"),
    column("committed_tokens"),
    table="Speed",
    title="TPOT ms",
    cell="{:.2f}",
    scale=1e3,
)
TTFT = Metric(
    "ttft_s", "TTFT", "s", "lower", column("ttft_s"), ones, table="Speed", title="TTFT ms", cell="{:.1f}", scale=1e3
)
