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

_WORTH = 1.05  # a speed-up above this, if it is possible, is worth more measuring


@dataclass(frozen=True)
class Summary:
    """`headline` is the finding in a few words. `lines` are the winner with its interval, and the methods that are not
    significantly slower. `advice` is what to use: the winner, the baseline, or that the data do not decide."""

    headline: str
    lines: tuple[str, ...]
    advice: str


def summarise(group: Group, names: Mapping[str, str] | None = None) -> Summary:
    """The finding of a group. `names` maps labels to what they are called; default: see table_labels."""
    called = names or table_labels([method.label for method in group.pooled.methods])
    result, baseline = contest(group), group.run.baseline
    reference = called.get(baseline, baseline)
    winner = fastest(group)
    if winner is None:
        return _without_winner(group, result)
    proven = [method for method in result.methods if (method.label, baseline) in result.beats]
    if not proven:
        best = next(method for method in result.methods if method.label != baseline)
        none_faster = f"No lossless method is significantly faster than {reference}"
        speedup, pairs = best.estimate(SPEEDUP), comb(len(result.methods), 2)
        largest = f"Largest speed-up: {called[best.label]}, {speedup_text(speedup)}"
        by_chance = speedup.interval is not None and speedup.interval.low > 1
        rivals = ((method, method.estimate(SPEEDUP)) for method in result.methods if method.label != baseline)
        is_open = [
            (called[method.label], estimate)
            for method, estimate in rivals
            if estimate.interval is None or estimate.interval.high > _WORTH
        ]
        advice = f"Keep {reference}"
        if is_open:
            name, estimate = is_open[0]
            advice = f"Not decided: {name}, {speedup_text(estimate)}. Measure more prompts"
        return Summary(
            none_faster,
            (
                f"{none_faster}.",
                f"{largest}; not significant in {pairs} comparisons." if by_chance else f"{largest}.",
            ),
            advice,
        )
    best = next((method for method in proven if not result.is_beaten(method, proven)), proven[0])
    level = ", ".join(
        f"{called[other.label]} ({speedup_text(other.estimate(SPEEDUP), interval=False)})"
        for other in result.methods
        if other is not best and (best.label, other.label) not in result.beats
    )
    name, speedup = called[best.label], best.estimate(SPEEDUP)
    counts = best.fidelity
    others = counts.tie + counts.numeric + counts.lossy + counts.sampled + counts.failed + counts.unjudged
    others += baseline not in {method.label for method in result.methods}  # a lossy one has other answers (--over)
    same = f"lossless, {counts.identical} answers identical" if others else "same answers"
    if counts.sampled:
        same = "sampled answers, not compared"
    headline = f"{name}: {speedup_text(speedup, interval=False)}, {same}"
    claim = "is fastest" if winner.label == best.label else "is faster"
    alone = all(method.label in (best.label, baseline) for method in result.methods)
    missing = ", ".join(called[label] for label in result.unconfirmed)
    lines = (
        f"{name} {claim}: {speedup_text(speedup)} over {reference}, {same}.",
        f"Not significantly slower: {level}." if level else "",
        "" if level or alone else "Every other lossless method is significantly slower.",
        f"Not included, because answers failed or have no verdict: {missing}." if missing else "",
    )
    return Summary(headline, tuple(filter(None, lines)), f"Use {headline}")


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
