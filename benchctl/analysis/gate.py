"""Conditions for programs: answers that are the target's, or as good, and speed-ups that did not fall."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, hypot, log
from typing import Final, Literal

import pandas as pd

from benchctl.analysis.comparison import Group, MethodFigures, differences
from benchctl.analysis.judges.figures import FEWEST_PROMPTS, SCORE_DIFFERENCE
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.stats.bootstrap import Interval
from benchctl.analysis.stats.estimates import Estimate
from benchctl.errors import UserError

Requirement = Literal["identical", "tie", "numeric", "lossless"]
REQUIREMENTS: Final[tuple[Requirement, ...]] = ("identical", "tie", "numeric", "lossless")
_VERDICTS: Final[Mapping[str, tuple[str, ...]]] = {
    "identical": ("identical",),
    "tie": ("identical", "tie"),
    "numeric": ("identical", "tie", "numeric"),
}
_COUNTED = ("identical", "tie", "numeric", "lossy", "sampled", "failed", "unjudged")


@dataclass(frozen=True)
class Regression:
    """A method's speed-up `now`, `then` in an earlier run, and the ratio of both: 1 where nothing changed.

    `now` and `ratio` are None where the method has no speed-up now.
    """

    label: str
    now: float | None
    then: float
    ratio: float | None
    interval: Interval | None

    def slower(self, least: float) -> bool:
        """Whether the method became significantly slower, and the ratio is below `least`.

        Significantly: the interval lies below 1 (it may reach `least`). Without an interval the ratio decides.
        """
        if self.ratio is None:
            return True
        return self.ratio < min(least, 1.0) and (self.interval is None or self.interval.high < 1)

    def undecided(self, least: float) -> bool:
        """Whether the ratio is below `least`, but not significantly below 1."""
        return self.ratio is not None and self.ratio < least and not self.slower(least)


@dataclass(frozen=True)
class Gates:
    """The conditions of a comparison and their result.

    `failed` has what breaks `required`, or is worse by more than `quality` points; nothing is required of
    `unsupported` methods. `regressions` compare speed-ups with an earlier run: none may be slower, to `least` or less.
    """

    required: Requirement | None
    least: float | None
    failed: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    regressions: tuple[Regression, ...] = ()
    quality: float | None = None

    @property
    def slower(self) -> tuple[str, ...]:
        """The methods that became slower."""
        return tuple(each.label for each in self.regressions if self.least is not None and each.slower(self.least))

    @property
    def passed(self) -> bool:
        return not (self.failed or self.slower)

    def document(self) -> dict[str, object]:
        """The result as JSON."""
        kept = [
            {"label": each.label, "now": each.now, "then": each.then, "value": each.ratio}
            | {"interval": asdict(each.interval) if each.interval else None, "slower": each.label in self.slower}
            for each in self.regressions
        ]
        return {
            "passed": self.passed,
            "require": self.required,
            "require_quality": self.quality,
            "unmet": list(self.failed),
            "unsupported": list(self.unsupported),
            "fail_below": self.least,
            "kept": kept,
        }


def check_gates(
    group: Group,
    required: Requirement | None,
    earlier: Group | None,
    least: float | None,
    quality: float | None = None,
) -> Gates:
    """The result of all conditions; see `unmet`, `worse` and `regressions`, and what they raise."""
    failed = (*(unmet(group, required) if required else ()), *(() if quality is None else worse(group, quality)))
    return Gates(
        required,
        least,
        failed=tuple(dict.fromkeys(failed)),
        unsupported=tuple(unsupported(group)) if required or quality is not None else (),
        regressions=regressions(group, earlier) if earlier else (),
        quality=quality,
    )


def unmet(group: Group, required: Requirement) -> Iterator[str]:
    """What breaks the requirement, in sentences.

    `identical`, `tie` and `numeric` allow this verdict and stricter ones. `lossless` also requires that the method
    claims to be, and that the dtype can explain numeric differences (see fidelity.is_lossless). Answers that failed,
    were sampled, or whose control failed, break it, as do answers that are missing from the run. Methods that could not
    run here are no part of it, see `unsupported`.
    """
    methods = [method for method in group.pooled.methods if not method.is_baseline]
    if not methods:
        yield f"only {group.run.baseline} was measured, so no method is {required}."
    yield from _unmeasured(group)
    for method in methods:
        if not _meets(method, required):
            claim = f" and claims to be {method.exactness.replace('_', ' ')}" if required == "lossless" else ""
            yield f"{method.label} is not {required}: of its answers {_counted(method)}{claim}."


def worse(group: Group, margin: float) -> Iterator[str]:
    """The methods that a judge does not show to be worse by at most `margin` points, in sentences.

    Every judge that gives points must show it: the interval of the mean difference lies above -margin, on at least
    FEWEST_PROMPTS prompts, with all turns judged, and pairs in both orders.
    """
    methods = [method for method in group.pooled.methods if not method.is_baseline]
    if not methods:
        yield f"only {group.run.baseline} was measured, so no method is as good."
    yield from _unmeasured(group)
    for method in methods:
        judged = [figures for figures in method.judged if figures.judge.in_points]
        if not judged:
            yield f"{method.label} has no points of a judge: run `benchctl judge` with gpt or local."
        for figures in judged:
            name, count, turns = figures.judge.name, figures.prompts, _answered_turns(group, method.label)
            if figures.turns < turns:
                yield (
                    f"{name} judged {method.label} on {figures.turns} of {turns} turns of prompts: judge the rest, "
                    "with more --tries where replies could not be read."
                )
            elif group.judging and figures.judge in group.judging.one_order:
                yield (
                    f"{name} saw the answers of {method.label} in one order, so its position bias is in the "
                    "difference: judge again with `benchctl judge`."
                )
            elif count < FEWEST_PROMPTS:
                yield f"{name} judged {method.label} on {count} prompts: at least {FEWEST_PROMPTS} are needed."
            elif not figures.worse_by_at_most(margin):
                estimate = figures.estimate(SCORE_DIFFERENCE)
                ends = f"{estimate.interval.low:+.2f}, {estimate.interval.high:+.2f}" if estimate.interval else "n/a"
                yield (
                    f"{method.label} is not shown to be as good as {group.run.baseline} up to {margin:g} points: the "
                    f"mean difference by {name} is {estimate.value or 0:+.2f} [{ends}] on {count} prompts."
                )


def unsupported(group: Group) -> Iterator[str]:
    """The methods that could not run here, so that nothing is required of them."""
    for method in group.methods:
        if method.unsupported:
            yield f"{method.label} was not measured ({method.unsupported}): nothing is required of it."


def regressions(group: Group, earlier: Group) -> tuple[Regression, ...]:
    """The speed-ups of `group` relative to those of `earlier`, for every method that was measured then.

    Each speed-up is over the baseline of its own run, so a machine that became slower does not count. The interval
    combines those of both speed-ups on the logarithms (Zou, Donner: Construction of confidence limits about effect
    measures, 2008, Statistics in Medicine 27), as if the prompts were different ones: so it is rather too wide.
    Raises UserError, naming the setting, where the runs may not be compared, or the earlier run has no speed-up.
    """
    if differing := differences(earlier.run, group.run):
        settings = "; ".join(f"{each.field} is {each.second}, there {each.first}" for each in differing)
        raise UserError("runs_differ", f"not comparable with {earlier.files[0].path}: {settings}.")
    now = {method.label: method.estimate(SPEEDUP) for method in group.pooled.methods}
    then = [(method.label, method.estimate(SPEEDUP)) for method in earlier.pooled.methods if not method.is_baseline]
    measured = tuple(_regression(label, now.get(label), before) for label, before in then if before.value)
    if not measured:
        raise UserError("no_speedup", f"{earlier.files[0].path}: measured no speed-up to compare with.")
    return measured


def quotient(now: Estimate, then: Estimate) -> Interval | None:
    """The interval of `now / then`, for independent estimates with intervals about symmetric on a log scale."""
    if now.interval is None or then.interval is None or now.value is None or then.value is None:
        return None
    if min(now.interval.low, then.interval.low) <= 0:
        return None
    value = now.value / then.value
    down = hypot(log(now.value / now.interval.low), log(then.interval.high / then.value))
    up = hypot(log(now.interval.high / now.value), log(then.value / then.interval.low))
    return Interval(value * exp(-down), value * exp(up))


def regression_lines(measured: Sequence[Regression], least: float) -> Iterator[str]:
    """Each regression in a line."""
    for each in measured:
        if each.ratio is None or each.now is None:
            yield f"{each.label}: no speed-up now, {each.then:.2f}x before: FAIL"
            continue
        spread = f" [{each.interval.low:.3f}, {each.interval.high:.3f}]" if each.interval else " [n/a]"
        result = f"FAIL, significantly slower, and below {least:g}" if each.slower(least) else "ok"
        if each.undecided(least):
            result = f"below {least:g}, but not significantly slower: measure more prompts or sessions"
        yield f"{each.label}: {each.now:.2f}x now, {each.then:.2f}x before, ratio {each.ratio:.3f}{spread}: {result}"


def _unmeasured(group: Group) -> Iterator[str]:
    """The methods that lack answers, as after a run that was killed. Turns are known from the answers there are."""
    asked = sum(suite.prompts for suite in group.run.suites)
    turns = _turns(group.frame)
    for method in group.methods:
        answered = _turns(group.frame[group.frame["label"] == method.label])
        whole = int((answered == turns.reindex(answered.index)).sum())
        if whole < asked and not method.unsupported:
            yield f"{method.label} was measured on {whole} of {asked} prompts: continue its run with --resume."


def _answered_turns(group: Group, label: str) -> int:
    """How many turns of prompts both the method and the baseline answered."""
    answers = group.frame[group.frame["error"].isna()]
    turns = [
        set(answers[answers["label"] == each][["suite", "prompt_id", "turn"]].itertuples(index=False, name=None))
        for each in (label, group.run.baseline)
    ]
    return len(set.intersection(*turns))


def _turns(frame: pd.DataFrame) -> pd.Series:
    """How many turns of each prompt were measured."""
    return frame.groupby(["suite", "prompt_id"])["turn"].nunique()


def _meets(method: MethodFigures, required: Requirement) -> bool:
    if required == "lossless":
        return method.lossless
    counts = _counts(method)
    good = sum(counts[verdict] for verdict in _VERDICTS[required])
    return good > 0 and good == sum(counts.values())


def _counts(method: MethodFigures) -> dict[str, int]:
    return {name: getattr(method.fidelity, name) for name in _COUNTED}


def _counted(method: MethodFigures) -> str:
    """`18 identical, 2 lossy`."""
    counts = _counts(method)
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none has a verdict"


def _regression(label: str, now: Estimate | None, then: Estimate) -> Regression:
    assert then.value is not None
    if now is None or now.value is None:
        return Regression(label, None, then.value, None, None)
    return Regression(label, now.value, then.value, now.value / then.value, quotient(now, then))
