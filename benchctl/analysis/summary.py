"""The answer of a comparison in a headline and two lines: which method is fastest with the baseline's own answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb

from benchctl.analysis.comparison import Group
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.names import table_labels
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.stats.intervals import LEAST_PROMPTS
from benchctl.analysis.winner import Contest, contest, fastest

_WORTH = 1.05  # a possible speed-up above this leaves the question open


@dataclass(frozen=True)
class Summary:
    """`headline` is the finding in a few words; `lines` are the winner with its interval, and who is level with it.
    `advice` is what to use: the winner, the baseline, or that the data do not decide."""

    headline: str
    lines: tuple[str, ...]
    advice: str


def summarise(group: Group, names: Mapping[str, str] | None = None) -> Summary:
    """The finding of a group. `names` maps labels to what they are called; default: see table_labels."""
    called = names or table_labels([method.label for method in group.pooled.methods])
    result, baseline = contest(group), group.run.baseline
    reference = called.get(baseline, baseline)
    if fastest(group) is None:
        return _without_winner(group, result)
    proven = [method for method in result.methods if (method.label, baseline) in result.beats]
    if not proven:
        best = next(method for method in result.methods if method.label != baseline)
        none_faster = f"No lossless method is significantly faster than {reference}"
        speedup, pairs = best.estimate(SPEEDUP), comb(len(result.methods), 2)
        largest = f"Largest speed-up: {called[best.label]}, {speedup_text(speedup)}"
        by_chance = speedup.interval is not None and speedup.interval.low > 1
        is_open = speedup.interval is None or speedup.interval.high > _WORTH
        open_question = f"Not decided: {called[best.label]}, {speedup_text(speedup)}. Measure more prompts"
        return Summary(
            none_faster,
            (
                f"{none_faster}.",
                f"{largest}; of {pairs} comparisons 1 can be chance." if by_chance else f"{largest}.",
            ),
            open_question if is_open else f"Keep {reference}",
        )
    best = next((method for method in proven if not result.is_beaten(method, proven)), proven[0])
    level = ", ".join(
        f"{called[other.label]} ({speedup_text(other.estimate(SPEEDUP), interval=False)})"
        for other in result.methods
        if other is not best and (best.label, other.label) not in result.beats
    )
    name, speedup = called[best.label], best.estimate(SPEEDUP)
    headline = f"{name}: {speedup_text(speedup, interval=False)}, same answers"
    return Summary(
        headline,
        (
            f"{name} is fastest: {speedup_text(speedup)} over {reference}, same answers.",
            f"Not significantly slower: {level}." if level else "Every other lossless method is significantly slower.",
        ),
        f"Use {headline}",
    )


def speedup_text(estimate: Estimate, *, interval: bool = True) -> str:
    """`1.42x [1.31, 1.55]`, or `1.42x`."""
    ends = estimate.interval if interval else None
    return f"{estimate.value or 0:.2f}x" + (f" [{ends.low:.2f}, {ends.high:.2f}]" if ends else "")


def _without_winner(group: Group, result: Contest) -> Summary:
    if group.run.imported:
        reason = "imported files cannot show that answers are the same"
    elif len(result.methods) < 2:
        reason = "no method with the same answers was measured"
    elif min(method.prompts for method in result.methods) < LEAST_PROMPTS:
        reason = f"fewer than {LEAST_PROMPTS} prompts"
    else:
        reason = "the methods answered different prompts"
    headline = f"No fastest method: {reason}"
    return Summary(headline, (f"No fastest method is named: {reason}.",), headline)
