"""Conditions for programs: answers that are the target's, or as good, and speed-ups that did not fall."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import exp, hypot, log
from typing import Final, Literal

import pandas as pd

from benchctl.analysis.comparison import Group, differences
from benchctl.analysis.judges.figures import FEWEST_PROMPTS, SCORE_DIFFERENCE
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.stats.intervals import Interval
from benchctl.errors import UserError

Requirement = Literal["identical", "tie", "numeric", "lossless"]
REQUIREMENTS: Final[tuple[Requirement, ...]] = ("identical", "tie", "numeric", "lossless")


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


@dataclass(frozen=True)
class Gates:
    """The conditions of a comparison and their result.

    `failed` has what breaks `required`, or is worse by more than `quality` points; `inconclusive` the judges that
    cannot show the latter. Nothing is required of `unsupported` methods. `regressions` compare speed-ups with an
    earlier run: none may be slower, to `least` or less.
    """

    required: Requirement | None
    least: float | None
    failed: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    regressions: tuple[Regression, ...] = ()
    quality: float | None = None
    inconclusive: tuple[str, ...] = ()

    @property
    def slower(self) -> tuple[str, ...]:
        """The methods that became slower."""
        return tuple(each.label for each in self.regressions if self.least is not None and each.slower(self.least))

    @property
    def passed(self) -> bool:
        return not (self.failed or self.slower or self.inconclusive)

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
            "inconclusive": list(self.inconclusive),
            "unsupported": list(self.unsupported),
            "fail_below": self.least,
            "kept": kept,
        }


def check_gates(
    group: Group, required: Requirement | None, earlier: Group | None, least: float | None, quality: float | None = None
) -> Gates:
    """The result of all conditions; see `unmet`, `worse` and `regressions`, and what they raise."""
    failed = (*(unmet(group, required) if required else ()), *(() if quality is None else worse(group, quality)))
    unsupported = tuple(
        f"{method.label} was not measured ({method.unsupported}): nothing is required of it."
        for method in group.methods
        if method.unsupported and (required or quality is not None)
    )
    kept = regressions(group, earlier) if earlier else ()
    blind = group.judging.blind if group.judging and quality is not None else ()
    inconclusive = tuple(
        f"{judge.name} prefers no answer to a different one, or none in both orders: it has not shown that it can tell "
        "answers apart. Judge with another model."
        for judge in blind
    )
    return Gates(required, least, tuple(dict.fromkeys(failed)), unsupported, kept, quality, inconclusive)


def unmet(group: Group, required: Requirement) -> Iterator[str]:
    """What breaks the requirement, in sentences.

    `identical`, `tie` and `numeric` allow this verdict and stricter ones. `lossless` also requires that the method
    claims to be, and that the dtype can explain numeric differences (see fidelity.is_lossless). Answers that failed,
    were sampled, or whose control failed, break it, as do answers that are missing from the run. Methods that could not
    run here are no part of it.
    """
    yield from _unmeasured(group, required)
    for method in group.pooled.methods:
        counts = asdict(method.fidelity)
        del counts["median_first_divergence"]
        good = sum(counts[verdict] for verdict in REQUIREMENTS[: REQUIREMENTS.index(required) + 1] if verdict in counts)
        meets = method.lossless if required == "lossless" else good > 0 and good == sum(counts.values())
        if not (meets or method.is_baseline):
            counted = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none has a verdict"
            claim = f" and claims to be {method.exactness.replace('_', ' ')}" if required == "lossless" else ""
            yield f"{method.label} is not {required}: of its answers {counted}{claim}."


def worse(group: Group, margin: float) -> Iterator[str]:
    """The methods that a judge does not show to be worse by at most `margin` points, in sentences.

    Every judge that gives points must show it: the interval of the mean difference lies above -margin, on at least
    FEWEST_PROMPTS prompts, with all turns judged, and pairs in both orders.
    """
    yield from _unmeasured(group, "as good")
    for method in group.pooled.methods:
        if method.is_baseline:
            continue
        judged = [figures for figures in method.judged if figures.judge.in_points]
        if not judged:
            yield f"{method.label} has no points of a judge: run `benchctl judge` with gpt or local."
        for figures in judged:
            name, count, turns = figures.judge.name, figures.prompts, _answered_turns(group, method.label)
            estimate = figures.estimate(SCORE_DIFFERENCE)
            interval = estimate.interval
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
            elif interval is None or interval.low < -margin:
                ends = f"{interval.low:+.2f}, {interval.high:+.2f}" if interval else "n/a"
                yield (
                    f"{method.label} is not shown to be as good as {group.run.baseline} up to {margin:g} points: the "
                    f"mean difference by {name} is {estimate.value or 0:+.2f} [{ends}] on {count} prompts."
                )


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
    measured = []
    for method in earlier.pooled.methods:
        if not method.is_baseline and (then := method.estimate(SPEEDUP)).value:
            new = now.get(method.label, Estimate(SPEEDUP, None, None))
            ratio = None if new.value is None else new.value / then.value
            measured.append(Regression(method.label, new.value, then.value, ratio, quotient(new, then)))
    if not measured:
        raise UserError("no_speedup", f"{earlier.files[0].path}: measured no speed-up to compare with.")
    return tuple(measured)


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
        if result == "ok" and each.ratio < least:
            result = f"below {least:g}, but not significantly slower: measure more prompts or sessions"
        yield f"{each.label}: {each.now:.2f}x now, {each.then:.2f}x before, ratio {each.ratio:.3f}{spread}: {result}"


def _unmeasured(group: Group, what: str) -> Iterator[str]:
    """The methods that lack answers, as after a run that was killed. Turns are known from the answers there are."""
    if all(method.is_baseline for method in group.pooled.methods):
        yield f"only {group.run.baseline} was measured, so no method is {what}."
    asked = sum(suite.prompts for suite in group.run.suites)
    turns = _turns(group.frame)
    for method in group.methods:
        answered = _turns(group.frame[group.frame["label"] == method.label])
        whole = int((answered == turns.reindex(answered.index)).sum())
        if whole < asked and not method.unsupported:
            yield f"{method.label} was measured on {whole} of {asked} prompts: continue its run with --resume."


def _turns(frame: pd.DataFrame) -> pd.Series:
    """How many turns of each prompt were measured."""
    return frame.groupby(["suite", "prompt_id"])["turn"].nunique()


def _answered_turns(group: Group, label: str) -> int:
    """How many turns of prompts both the method and the baseline answered."""
    answers = group.frame[group.frame["error"].isna()]
    keys = ["suite", "prompt_id", "turn"]
    own, theirs = (answers.loc[answers["label"] == each, keys] for each in (label, group.run.baseline))
    return len(own.drop_duplicates().merge(theirs.drop_duplicates()))
