"""Who is fastest, and whom that cannot be told from: a winner is named only with what that name is worth."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log

import numpy as np
import pandas as pd

from benchctl.analysis.frame.build import pair
from benchctl.analysis.frame.comparison import Estimate, Group, MethodFigures, levels
from benchctl.analysis.frame.fidelity import broken, claims_exact
from benchctl.analysis.frame.sessions import count
from benchctl.analysis.metrics.metric import SPEEDUP
from benchctl.analysis.stats.bootstrap import LEVEL, Floats, Ints, Levels, p_value

_GENERATION = ["file", "session", "suite", "batch", "prompt_id", "turn", "repeat"]
_Pair = tuple[str, str]


@dataclass(frozen=True)
class Contest:
    """The `methods` that give the target's own answers, the largest speed-up first, and which of them `beats` which
    beyond doubt, the faster of each pair first. `aside` are the labels that claim to give them too, but of which some
    answer failed or has no verdict: what is not known of the others may be that they are not the target's.

    All pairs of methods count as comparisons, for any of them might have come out on top: Holm's correction keeps the
    chance of a single wrong verdict below 5% (Holm: A Simple Sequentially Rejective Multiple Test Procedure, 1979). No
    difference below a floor, a share of 1, is called one, whatever the intervals say. Two methods are set against each
    other by what both answered.
    """

    methods: tuple[MethodFigures, ...] = ()
    aside: tuple[str, ...] = ()
    beats: frozenset[_Pair] = frozenset()

    def is_beaten(self, method: MethodFigures, others: Sequence[MethodFigures]) -> bool:
        """Whether any of these is faster beyond doubt."""
        return any((other.label, method.label) in self.beats for other in others)


@dataclass(frozen=True)
class Winner:
    """The method with the largest speed-up over the baseline among the `methods` of a contest that none of them beats;
    autoregressive decoding is one of them. `slower` are those that it beats, `untold` those that it may be no faster
    than. `partly` says that not all answered the same. `aside` took no part, see Contest."""

    label: str
    speedup: Estimate
    slower: tuple[str, ...]
    untold: tuple[str, ...]
    floor: float
    partly: bool = False
    aside: tuple[str, ...] = ()

    @property
    def methods(self) -> int:
        return 1 + len(self.slower) + len(self.untold)

    @property
    def pairs(self) -> int:
        return self.methods * (self.methods - 1) // 2


def contest(group: Group, floor: float = 0.0) -> Contest:
    """Over all suites. Lossy methods take no part: the fastest of them is the one that loses most. Nor does a method
    whose answers belie its claim, nor one of an imported file, which has none."""
    if group.run.imported:
        return Contest()
    claiming = [method for method in group.pooled.methods if _bears_out(group, method)]
    known = [method for method in claiming if not _unknown(method)]
    ranked = sorted(known, key=lambda method: method.estimate(SPEEDUP).value or 0.0, reverse=True)
    labels = [method.label for method in ranked]
    beats = _beaten(_ratios(group.frame, labels), floor) if len(labels) > 1 else set()
    return Contest(tuple(ranked), tuple(method.label for method in claiming if _unknown(method)), frozenset(beats))


def fastest(group: Group, floor: float = 0.0) -> Winner | None:
    """None where fewer than two methods compete, or where each is beaten by another, as it may be where they answered
    different prompts."""
    found = contest(group, floor)
    best = next((method for method in found.methods if not found.is_beaten(method, found.methods)), None)
    if best is None or len(found.methods) < 2:
        return None
    others = [method.label for method in found.methods if method is not best]
    slower = tuple(label for label in others if (best.label, label) in found.beats)
    untold = tuple(label for label in others if label not in slower)
    partly = len({(method.prompts, method.generations) for method in found.methods}) > 1
    return Winner(best.label, best.estimate(SPEEDUP), slower, untold, floor, partly, found.aside)


def sentence(group: Group, winner: Winner) -> str:
    """What to say of it in a report."""
    return " ".join(_sentences(group, winner))


def holm(p_values: Mapping[_Pair, float], level: float = LEVEL) -> set[_Pair]:
    """Which of these comparisons show a difference, so that the chance of a single wrong one among them is `level`.

    The least p-value must be below level / n, the next below level / (n - 1), and so on until one is not.
    Example: of 0.01, 0.02 and 0.04 all three are told at 0.05, of 0.01, 0.03 and 0.04 only the first.
    """
    told: set[_Pair] = set()
    for tested, found in enumerate(sorted(p_values, key=lambda found: p_values[found])):
        if p_values[found] > level / (len(p_values) - tested):
            break
        told.add(found)
    return told


@dataclass(frozen=True)
class _Ratio:
    """How much longer the second of a pair takes than the first, and the chance of that were they equal."""

    logarithm: float
    p_value: float


def _bears_out(group: Group, method: MethodFigures) -> bool:
    """Whether a method that was timed claims to be exact, and no answer belies it. A baseline is asked like any other,
    for a lossy method may stand in for it."""
    claims = claims_exact(method.exactness, group.run.temperature)
    return claims and not broken(method.fidelity, group.run.dtype) and method.estimate(SPEEDUP).value is not None


def _unknown(method: MethodFigures) -> bool:
    """Whether it is not known of each answer that it is the target's."""
    return method.fidelity.failed + method.fidelity.unjudged > 0


def _beaten(ratios: Mapping[_Pair, _Ratio], floor: float) -> set[_Pair]:
    """The pairs whose difference is told and above the floor, the faster of each first."""
    told = holm({found: ratio.p_value for found, ratio in ratios.items()})
    beyond = [found for found in told if abs(ratios[found].logarithm) > log(1 + floor)]
    return {(one, other) if ratios[one, other].logarithm > 0 else (other, one) for one, other in beyond}


def _ratios(frame: pd.DataFrame, labels: Sequence[str]) -> dict[_Pair, _Ratio]:
    """Of each pair of labels over what both answered, best first as in `labels`."""
    valid = frame[frame["error"].isna() & ~frame["round_invalid"] & frame["label"].isin(labels)]
    times = valid.pivot(index=_GENERATION, columns="label", values="whole_s")
    places = times.reset_index()[_GENERATION]
    sessions, prompts = (
        places.groupby(keys).ngroup().to_numpy().astype(np.int64) for keys in (["file", "session"], ["suite", "batch"])
    )
    seconds = {label: times[label].to_numpy(float) for label in labels if label in times}
    return {
        (one, other): _together(seconds[one], seconds[other], sessions, prompts) or _apart(frame, one, other)
        for one, other in combinations(labels, 2)
    }


def _together(one: Floats, other: Floats, sessions: Ints, prompts: Ints) -> _Ratio | None:
    both = ~(np.isnan(one) | np.isnan(other))
    if not both.any():
        return None
    return _ratio(other[both], one[both], Levels(sessions[both], prompts[both]))


def _apart(frame: pd.DataFrame, one: str, other: str) -> _Ratio:
    """Of two labels that were measured in different sessions."""
    pairs = pair(frame, one, other)
    if pairs.empty:
        return _Ratio(0.0, 1.0)
    above, below = (pairs[name].to_numpy(float) for name in ("whole_s_baseline", "whole_s"))
    return _ratio(above, below, levels(pairs))


def _ratio(above: Floats, below: Floats, level: Levels) -> _Ratio:
    return _Ratio(log(above.sum() / below.sum()), p_value(above, below, level))


def _sentences(group: Group, winner: Winner) -> Iterator[str]:
    estimate = winner.speedup
    interval = f" [{estimate.interval.low:.2f}, {estimate.interval.high:.2f}]" if estimate.interval else ""
    itself = winner.label == group.run.baseline
    over = "the baseline itself" if itself else f"{estimate.value or 0:.2f}x{interval} over the baseline"
    yield f"Fastest of {winner.methods} that give the target's own answers: {winner.label}, {over}."
    if winner.untold:
        yield f"It cannot be told from {', '.join(winner.untold)}."
    else:
        yield "It is faster than each of the others."
    if winner.partly:
        yield "Where not all answered, two are compared by what both did."
    if winner.aside:
        yield f"Not among them, as some of their answers failed or have no verdict: {', '.join(winner.aside)}."
    pairs = "1 pair" if winner.pairs == 1 else f"{winner.pairs} pairs"
    floor = f"; a difference below {winner.floor:.1%} counts as none" if winner.floor else ""
    yield f"(95% sure, Holm's correction for {pairs}{floor}.)"
    if count(group) == 1:
        yield "It was so in one session; --sessions 3 would tell whether it is in others."
