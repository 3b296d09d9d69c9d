"""Speed: speed-ups over the baseline, throughput and latency."""

from dataclasses import replace
from functools import partial

import pandas as pd

from benchctl.analysis.frame.build import either_degenerates
from benchctl.analysis.metrics.metric import Column, Metric, column, ones

_PROMPT = ["file", "session", "file_baseline", "session_baseline", "suite", "prompt_id"]


def _of_prompt(pairs: pd.DataFrame) -> pd.Series:
    """1 / the number of pairs of the same prompt and session; these sum to the number of prompts and sessions."""
    return 1 / pairs.groupby(_PROMPT)["whole_s"].transform("size")


def _speedup_of_prompt(pairs: pd.DataFrame) -> pd.Series:
    """The speed-up of each prompt in each session, over its turns and repeats, spread evenly over its pairs."""
    times = pairs.groupby(_PROMPT)[["whole_s_baseline", "whole_s"]].transform("sum", skipna=False).astype(float)
    return times["whole_s_baseline"] / times["whole_s"] * _of_prompt(pairs)


def _sound(name: str) -> Column:
    """The column; 0 where either answer is degenerate, missing where that is unknown."""
    return lambda pairs: column(name)(pairs).where(~either_degenerates(pairs), 0.0).where(pairs["loops"].notna())


def _variant(name: str, label: str, top: Column, bottom: Column, title: str) -> Metric:
    return replace(SPEEDUP, name=name, label=label, top=top, bottom=bottom, table="Speed-up variants", title=title)


_time = partial(Metric, unit="s", better="lower", table="Speed", scale=1e3)

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
DECODE_SPEEDUP = replace(
    SPEEDUP,
    name="decode_speedup",
    label="speed-up, decode only",
    top=column("whole_decode_s_baseline"),
    bottom=column("whole_decode_s"),
    title="decode only",
    interval=False,
)
# Every prompt has the same weight, a short one as much as a long one. Some papers call this the speed-up.
MEAN_SPEEDUP = _variant(
    "mean_speedup", "mean of per-prompt speed-ups", _speedup_of_prompt, _of_prompt, "mean of prompts [95%]"
)
# Repetitive text is easy to draft: answers that loop or run away make a method that drafts look fast.
SOUND_SPEEDUP = _variant(
    "sound_speedup",
    "speed-up without degenerate answers",
    _sound("whole_s_baseline"),
    _sound("whole_s"),
    "without degenerate answers [95%]",
)
TOKENS_PER_S = Metric(
    "tokens_per_s",
    "tokens/s",
    "tokens/s",
    "higher",
    column("new_tokens"),
    column("whole_s"),
    table="Speed",
    cell="{:.1f}",
)
TPOT = _time(
    "tpot_s", "TPOT", top=column("decode_s"), bottom=column("committed_tokens"), title="TPOT ms", cell="{:.2f}"
)
TTFT = _time("ttft_s", "TTFT", top=column("ttft_s"), bottom=ones, title="TTFT ms", cell="{:.1f}")
