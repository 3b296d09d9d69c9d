"""What a comparison can be held to by a program: answers that are the target's, or as good, and speed-ups that last."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, log
from typing import Final, Literal

import pandas as pd

from benchctl.analysis.frame.comparison import Estimate, Group, MethodFigures
from benchctl.analysis.frame.groups import differences
from benchctl.analysis.judges.figures import FEWEST_PROMPTS, SCORE_DIFFERENCE
from benchctl.analysis.metrics.metric import SPEEDUP
from benchctl.analysis.stats.bootstrap import Interval
from benchctl.analysis.tables.cells import spread
from benchctl.errors import UserError

Requirement = Literal["identical", "tie", "numeric", "lossless"]
REQUIREMENTS: Final[tuple[Requirement, ...]] = ("identical", "tie", "numeric", "lossless")
_VERDICTS: Final[Mapping[str, tuple[str, ...]]] = {
    "identical": ("identical",),
    "tie": ("identical", "tie"),
    "numeric": ("identical", "tie", "numeric"),
}


@dataclass(frozen=True)
class Kept:
    """A method's speed-up as a part of an earlier one: `value` is 1 where nothing changed, None where there is none."""

    label: str
    now: float | None
    then: float
    value: float | None
    interval: Interval | None

    def slower(self, least: float, floor: float = 0.0) -> bool:
        """Whether it became slower beyond chance, and the estimate of what is left is below `least`.

        Beyond chance: the interval does not reach 1 (it may reach `least`), and what is lost is more than `floor`, the
        share below which a machine's noise hides any difference. Without an interval the value decides.
        """
        if self.value is None:
            return True
        return self.value < min(least, 1 - floor) and (self.interval is None or self.interval.high < 1)

    def untold(self, least: float, floor: float = 0.0) -> bool:
        """Whether the estimate of what is left is below `least`, but perhaps it did not become slower at all."""
        return self.value is not None and self.value < least and not self.slower(least, floor)


@dataclass(frozen=True)
class Gates:
    """What a comparison was held to, and what came of it.

    `unmet` breaks what was `required`, or is worse than by `quality` points; of `unsupported` nothing was. `kept` are
    the speed-ups beside those of an earlier run, none of which may have become slower, to `least` or less.
    """

    required: Requirement | None
    least: float | None
    floor: float
    unmet: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()
    quality: float | None = None

    @property
    def slower(self) -> tuple[str, ...]:
        """The methods that became it."""
        return tuple(one.label for one in self.kept if self.least is not None and one.slower(self.least, self.floor))

    @property
    def passed(self) -> bool:
        return not (self.unmet or self.slower)


def hold(
    group: Group,
    required: Requirement | None,
    earlier: Group | None,
    least: float | None,
    floor: float = 0.0,
    quality: float | None = None,
) -> Gates:
    """Hold a comparison to what is required, and to an earlier one; see `unmet`, `worse` and `kept`, and what they
    raise."""
    broken = (*(unmet(group, required) if required else ()), *(() if quality is None else worse(group, quality)))
    return Gates(
        required,
        least,
        floor,
        unmet=tuple(dict.fromkeys(broken)),
        unsupported=tuple(unsupported(group)) if required or quality is not None else (),
        kept=kept(group, earlier) if earlier else (),
        quality=quality,
    )


def unmet(group: Group, required: Requirement) -> Iterator[str]:
    """What breaks the requirement, in sentences. An answer that failed, was sampled, or whose control failed, meets
    none.

    Nor does what was to be measured and was not: a method without answers, or with answers to some of the prompts. A
    method that could not run here is no part of what is required; see unsupported.
    `identical`, `tie` and `numeric` allow answers this verdict and the stricter ones; `lossless` asks in addition that
    the method claims to be, and that this dtype can explain what is numeric (see fidelity.is_lossless).
    """
    methods = [method for method in group.pooled.methods if not method.is_baseline]
    if not methods:
        yield f"nothing but {group.run.baseline} was measured, so nothing can be {required}."
    yield from _unmeasured(group)
    for method in methods:
        if not _meets(method, required):
            claim = f" and claims to be {method.exactness.replace('_', ' ')}" if required == "lossless" else ""
            yield f"{method.label} is not {required}: of its answers {_counted(method)}{claim}."


def worse(group: Group, margin: float) -> Iterator[str]:
    """Which methods no judge, or not every judge that gives points, shows to be as good as the baseline but for so many
    of them, in sentences: the interval of the mean difference reaches further down, or not all turns of prompts were
    judged, or pairs in one order alone. Nor does what was to be measured and was not."""
    methods = [method for method in group.pooled.methods if not method.is_baseline]
    if not methods:
        yield f"nothing but {group.run.baseline} was measured, so nothing can be as good."
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
                    f"{name} saw the answers of {method.label} in one order, so its liking for a place is in the "
                    "difference: judge with --orders both."
                )
            elif count < FEWEST_PROMPTS:
                yield f"{name} judged {method.label} on {count} prompts: fewer than {FEWEST_PROMPTS} show nothing."
            elif not figures.worse_by_at_most(margin):
                difference = spread(figures.estimate(SCORE_DIFFERENCE), "+.2f")
                yield (
                    f"{method.label} is not shown to be as good as {group.run.baseline} but for {margin:g} points: "
                    f"{name} says {difference} on {count} prompts."
                )


def unsupported(group: Group) -> Iterator[str]:
    """Of which methods a requirement says nothing, as they could not run here."""
    for method in group.methods:
        if method.unsupported:
            yield f"{method.label} was not measured ({method.unsupported}): nothing is required of it."


def kept(group: Group, earlier: Group) -> tuple[Kept, ...]:
    """The speed-ups of `group` beside those of `earlier`, for every method that was measured then.

    Each is set against the baseline of its own run, so that a machine that became slower does not count. The interval
    joins those of both speed-ups on the logarithms (Zou, Donner: Construction of confidence limits about effect
    measures, 2008, Statistics in Medicine 27), as if the prompts were not the same: so it is rather too wide.
    Raises UserError, naming the setting, where the runs may not be compared, or nothing of then has a speed-up.
    """
    if found := differences(earlier.run, group.run):
        settings = "; ".join(f"{one.field} is {one.other}, there {one.one}" for one in found)
        raise UserError(f"not comparable with {earlier.files[0].path}: {settings}.")
    now = {method.label: method.estimate(SPEEDUP) for method in group.pooled.methods}
    then = [(method.label, method.estimate(SPEEDUP)) for method in earlier.pooled.methods if not method.is_baseline]
    measured = tuple(_kept(label, now.get(label), was) for label, was in then if was.value)
    if not measured:
        raise UserError(f"{earlier.files[0].path}: measured no speed-up to compare with.")
    return measured


def quotient(now: Estimate, then: Estimate) -> Interval | None:
    """The interval of `now / then`, for independent estimates whose own intervals lie about evenly on a log scale."""
    mine, theirs = now.interval, then.interval
    if mine is None or theirs is None or now.value is None or then.value is None or min(mine.low, theirs.low) <= 0:
        return None
    value = now.value / then.value
    down = hypot(log(now.value / mine.low), log(theirs.high / then.value))
    up = hypot(log(mine.high / now.value), log(then.value / theirs.low))
    return Interval(value * exp(-down), value * exp(up))


def told(found: Sequence[Kept], least: float, floor: float = 0.0) -> Iterator[str]:
    """What became of each speed-up, in a line."""
    for one in found:
        if one.value is None or one.now is None:
            yield f"{one.label}: no speed-up now, {one.then:.2f}x before: FAIL"
            continue
        spread = f" [{one.interval.low:.3f}, {one.interval.high:.3f}]" if one.interval else " [n/a]"
        end = f"FAIL, slower beyond chance, its estimate below {least:g}" if one.slower(least, floor) else "ok"
        if one.untold(least, floor):
            end = f"below {least:g}, but perhaps by chance: measure more prompts or sessions"
        yield f"{one.label}: {one.now:.2f}x now, {one.then:.2f}x before, {one.value:.3f}{spread} of it: {end}"


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
    found = method.fidelity
    names = ("identical", "tie", "numeric", "lossy", "sampled", "failed", "unjudged")
    return {name: getattr(found, name) for name in names}


def _counted(method: MethodFigures) -> str:
    """`18 identical, 2 lossy`."""
    return ", ".join(f"{count} {name}" for name, count in _counts(method).items() if count) or "none has a verdict"


def _kept(label: str, now: Estimate | None, then: Estimate) -> Kept:
    assert then.value is not None
    if now is None or now.value is None:
        return Kept(label, None, then.value, None, None)
    return Kept(label, now.value, then.value, now.value / then.value, quotient(now, then))
