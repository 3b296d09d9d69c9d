"""The answer of a comparison: the fastest method, those not significantly slower, and the best of many labels."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, log

import numpy as np
import pandas as pd

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.frame.build import claims_exact, pair
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.names import table_labels
from benchctl.analysis.stats.estimates import levels
from benchctl.analysis.stats.intervals import LEAST_PROMPTS, LEVEL, Levels, evened, p_value
from benchctl.analysis.tables.columns import spread

_GENERATION = ["file", "session", "suite", "batch", "prompt_id", "turn", "repeat"]
_FEWEST_LABELS = 3  # two labels are a comparison, not a search
_WORTH = 1.05  # a speed-up above this, if it is possible, is worth more measuring
_Pair = tuple[str, str]


@dataclass(frozen=True)
class Contest:
    """The `methods` that give the target's own answers, by falling speed-up, and which significantly `beats` which.

    `unconfirmed` has the labels that claim the target's answers, but of which some answer failed or has no verdict.
    The first of each pair in `beats` is the faster. All pairs of methods and the baseline count as comparisons, since
    any might have come first: Holm's correction keeps the chance of a single wrong result below 5% (Holm: A Simple
    Sequentially Rejective Multiple Test Procedure, 1979). Two methods are compared on what both answered.
    """

    methods: tuple[MethodFigures, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    beats: frozenset[_Pair] = frozenset()

    def is_beaten(self, method: MethodFigures, rivals: Sequence[MethodFigures]) -> bool:
        """Whether any of the rivals is significantly faster."""
        return any((rival.label, method.label) in self.beats for rival in rivals)


@dataclass(frozen=True)
class Winner:
    """The method with the largest speed-up among those that no other method of the contest beats.

    Autoregressive decoding takes part. `slower` are significantly slower, `tied` are not. `partly`: not all
    methods answered the same prompts. `unconfirmed` took no part, see Contest.
    """

    label: str
    slower: tuple[str, ...]
    tied: tuple[str, ...]
    partly: bool = False
    unconfirmed: tuple[str, ...] = ()


@dataclass(frozen=True)
class BestLabel:
    """The best of several `labels` of the method `name`, and how many of the other labels are significantly slower."""

    name: str
    labels: int
    best: MethodFigures
    slower: int


def contest(group: Group) -> Contest:
    """Over all suites. Lossy methods take no part: the fastest of them is the one that loses most.

    Neither do methods whose answers contradict their claim or that remember answers, nor those of imported files.
    """
    if group.run.imported:
        return Contest()
    claiming = [
        method
        for method in group.pooled.methods
        # The same conditions hold for a baseline, since a lossy method may replace it (`--over`).
        if claims_exact(method.exactness, group.run.temperature) and not method.refused
    ]
    unconfirmed = [method for method in claiming if method.fidelity.failed + method.fidelity.unjudged > 0]
    others = [method for method in claiming if method not in unconfirmed]
    confirmed = [method for method in others if method.estimate(SPEEDUP).value is not None]
    ranked = sorted(confirmed, key=lambda method: method.estimate(SPEEDUP).value or 0.0, reverse=True)
    # Speed-ups are over the baseline, even where it takes no part: an answer of it failed, or it is lossy (`--over`).
    labels = dict.fromkeys([*(method.label for method in ranked), group.run.baseline])
    found = beats(group.frame, list(labels)) if len(ranked) > 1 else frozenset[_Pair]()
    return Contest(tuple(ranked), tuple(method.label for method in unconfirmed), found)


def fastest(group: Group) -> Winner | None:
    """The winner. None where fewer than two methods compete, on fewer than 5 prompts, or where another one or the
    baseline beats each.

    The latter may happen where they answered different prompts. A baseline that takes no part, since an answer of it
    failed, must be significantly slower.
    """
    result = contest(group)
    winner = _winner(result)
    baseline = group.run.baseline
    level = winner and baseline in result.unconfirmed and (winner.label, baseline) not in result.beats
    return None if level else winner


def _winner(result: Contest) -> Winner | None:
    best = next((method for method in result.methods if not result.is_beaten(method, result.methods)), None)
    if best is None or len(result.methods) < 2 or min(each.prompts for each in result.methods) < LEAST_PROMPTS:
        return None
    rivals = [method.label for method in result.methods if method is not best]
    slower = tuple(label for label in rivals if (best.label, label) in result.beats)
    tied = tuple(label for label in rivals if label not in slower)
    partly = len({(method.prompts, method.generations) for method in result.methods}) > 1
    return Winner(best.label, slower, tied, partly, result.unconfirmed)


def best_labels(group: Group) -> Iterator[BestLabel]:
    """For each method with several labels the best one: of those that none beats, the highest lower end of an interval.

    Lossy labels have no best: the fastest is the one that loses most.
    """
    result = contest(group)
    lows: dict[str, float] = {}
    by_name: dict[str, list[MethodFigures]] = {}
    for method in result.methods:
        if interval := method.estimate(SPEEDUP).interval:
            lows[method.label] = interval.low
            by_name.setdefault(method.label.partition("[")[0], []).append(method)
    for name, labels in by_name.items():
        unbeaten = [method for method in labels if not result.is_beaten(method, labels)]
        if len(labels) >= _FEWEST_LABELS and unbeaten:
            best = max(unbeaten, key=lambda method: lows[method.label])
            yield BestLabel(name, len(labels), best, sum((best.label, label.label) in result.beats for label in labels))


def beats(frame: pd.DataFrame, labels: Sequence[str]) -> frozenset[_Pair]:
    """The pairs of labels whose times differ significantly by Holm's correction, the faster one first."""
    ratios = _ratios(frame, labels)
    significant = holm({each: probability for each, (_, probability) in ratios.items()})
    return frozenset((a, b) if ratios[a, b][0] > 0 else (b, a) for a, b in significant)


def holm(p_values: Mapping[_Pair, float]) -> set[_Pair]:
    """The significant comparisons, with a probability of at most 5% (LEVEL) that any of them is wrong.

    The smallest p-value must be at most 0.05 / n, the next at most 0.05 / (n - 1), and so on until one is not.
    Example: of 0.01, 0.02 and 0.04 all three are significant, of 0.01, 0.03 and 0.04 only the first.
    """
    significant: set[_Pair] = set()
    for tested, labels in enumerate(sorted(p_values, key=lambda labels: p_values[labels])):
        if p_values[labels] > LEVEL / (len(p_values) - tested):
            break
        significant.add(labels)
    return significant


def _ratios(frame: pd.DataFrame, labels: Sequence[str]) -> dict[_Pair, tuple[float, float]]:
    """Of each pair of labels the logarithm of (time of the second / time of the first), and its p-value, on what both
    answered."""
    valid = frame[frame["error"].isna() & ~frame["round_invalid"] & frame["label"].isin(labels)]
    times = valid.pivot(index=_GENERATION, columns="label", values="whole_s")
    keys = times.reset_index()[_GENERATION]
    sessions, prompts = (
        keys.groupby(names).ngroup().to_numpy().astype(np.int64) for names in (["file", "session"], ["suite", "batch"])
    )
    seconds = {label: times[label].to_numpy(float) for label in labels}
    ratios = {}
    for first, second in combinations(labels, 2):
        both = ~(np.isnan(seconds[first]) | np.isnan(seconds[second]))
        above, below, level = seconds[second][both], seconds[first][both], Levels(sessions[both], prompts[both])
        if not both.any():  # they were measured in different sessions
            pairs = pair(frame, first, second)
            above, below = (pairs[name].to_numpy(float) for name in ("whole_s_baseline", "whole_s"))
            level = levels(pairs)
        weights = evened(level)
        above, below = weights * above, weights * below
        logarithm = log(above.sum() / below.sum()) if len(above) else 0.0
        ratios[first, second] = logarithm, (p_value(above, below, level) if logarithm else 1.0)
    return ratios


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
    winner = _winner(result)
    missing = ", ".join(called[label] for label in result.unconfirmed)
    left_out = (f"Not included, because answers failed or have no verdict: {missing}.",) if missing else ()
    if winner is None:
        return _without_winner(group, result, left_out)
    proven = [method for method in result.methods if (method.label, baseline) in result.beats]
    if not proven:
        best = next(method for method in result.methods if method.label != baseline)
        none_faster = f"No lossless method is significantly faster than {reference}"
        speedup, pairs = best.estimate(SPEEDUP), comb(len({baseline, *(each.label for each in result.methods)}), 2)
        fastest = f"The fastest of them: {called[best.label]}, {spread(speedup, SPEEDUP.cell)}"
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
            advice = f"Not decided: {name}, {spread(estimate, SPEEDUP.cell)}. Measure more prompts"
        return Summary(
            none_faster,
            (
                f"{none_faster}.",
                f"{fastest}; not significant in {pairs} comparisons." if by_chance else f"{fastest}.",
                *left_out,
            ),
            advice,
        )
    best = next((method for method in proven if not result.is_beaten(method, proven)), proven[0])
    level = ", ".join(
        f"{called[other.label]} ({spread(other.estimate(SPEEDUP), SPEEDUP.cell, interval=False)})"
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
    headline = f"{name}: {spread(speedup, SPEEDUP.cell, interval=False)}, {same}"
    claim = "is fastest" if winner.label == best.label else "is faster"
    alone = all(method.label in (best.label, baseline) for method in result.methods)
    lines = (
        f"{name} {claim}: {spread(speedup, SPEEDUP.cell)} over {reference}, {same}.",
        f"Not significantly slower: {level}." if level else "",
        "" if level or alone else "Every other lossless method is significantly slower.",
        *left_out,
    )
    return Summary(headline, tuple(filter(None, lines)), f"Use {headline}")


def _too_few(group: Group, result: Contest) -> str:
    """Why fewer than two methods compete."""
    if any(method.label != group.run.baseline for method in result.methods):
        return "only one method with the same answers was measured"
    measured = [each.fidelity for each in group.pooled.methods if not each.is_baseline and not each.refused]
    same, compared = (sum(getattr(each, name) for each in measured) for name in ("identical", "compared"))
    if not compared:
        return "the answers were not compared" if measured else "no method with the same answers was measured"
    return f"no method claims to be lossless; {same} of {compared} answers were equal"


def _without_winner(group: Group, result: Contest, left_out: tuple[str, ...]) -> Summary:
    if group.run.imported:
        reason = "imported files cannot show that answers are the same"
    elif len(result.methods) < 2:
        reason = "answers failed or have no verdict" if result.unconfirmed else _too_few(group, result)
    elif min(method.prompts for method in result.methods) < LEAST_PROMPTS:
        reason = f"fewer than {LEAST_PROMPTS} prompts"
    else:
        reason = "the methods answered different prompts"
    headline = f"No fastest method: {reason}"
    return Summary(headline, (f"No fastest method is named: {reason}.", *left_out), headline)
