"""Conditions for a build: true claims, answers as good as before, and speed that did not fall.

Every label passes, fails, or is inconclusive: then the data cannot show a change of the size that matters.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log
from typing import Final, Literal

import numpy as np
import pandas as pd

from benchctl.analysis.comparison import Group, MethodFigures, differing
from benchctl.analysis.frame.build import claims_exact
from benchctl.analysis.judges.figures import FEWEST_PROMPTS, SCORE_DIFFERENCE
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.metrics.speed import SPEEDUP, TOKENS_PER_S
from benchctl.analysis.stats.intervals import LEAST_PROMPTS, Observations, Quotient, quotient
from benchctl.analysis.warnings import Warning, warnings
from benchctl.analysis.winner import holm
from benchctl.errors import InvalidData, UserError

Requirement = Literal["identical", "tie", "numeric", "lossless"]
REQUIREMENTS: Final[tuple[Requirement, ...]] = ("identical", "tie", "numeric", "lossless")
Outcome = Literal["passed", "inconclusive", "failed"]
_OUTCOMES: Final[tuple[Outcome, ...]] = ("passed", "inconclusive", "failed")  # from the best to the worst
_MACHINE = ("cpu", "gpu", "cores", "memory_bytes")  # facts of which absolute times depend
_UNDER_TEST = ("code", "engine")  # differences that a gate is for: other versions of a plug-in and of an engine
# Spreads of sessions, where each run has only one. Of tokens/s: three published runs of one program on one machine had
# 101.3, 102.6 and 94.7 (Medusa on Vicuna-7B). Of speed-ups: the five sessions results/reference/all-*.jsonl.
_SESSION_SPREADS = {SPEEDUP.label: 0.026, TOKENS_PER_S.label: 0.043}
_MOST_PROMPTS = 10_000  # more are no advice
_COUNTED = ("identical", "tie", "numeric", "lossy", "sampled", "failed", "unjudged")
_MACHINE_WARNINGS = (
    "rounds_disturbed",
    "machine_busy",
    "waited_for_cores",
    "baseline_waits",
    "threads_left_running",
    "times_overlap",
)
_REFUSED = {
    "claim_broken": "answers differ from the baseline's, against its claim",
    "other_weights": "it chooses too few of the target's tokens to have its weights",
    "remembers": "it took other steps when it answered a prompt again, so it remembers answers",
    "impossibly_fast": "its passes took less than half the time of the baseline's",
}


@dataclass(frozen=True)
class Conditions:
    """What is asked. `speedup` and `tokens_per_s` are the least allowed ratios to the previous run."""

    require: Requirement | None = None
    quality: float | None = None
    speedup: float = 0.9
    tokens_per_s: float = 0.8


@dataclass(frozen=True)
class Change:
    """A figure relative to the previous run, which may fall to `least`.

    `quotient` is of the prompts that both runs have, None where the figure is missing now or there are too few prompts.
    `lower`: it is significantly lower, after Holm's correction for all figures of the gate.
    """

    figure: str
    quotient: Quotient | None
    least: float
    lower: bool = False
    missing: bool = False

    @property
    def ratio(self) -> float | None:
        return self.quotient and self.quotient.now / self.quotient.then

    @property
    def outcome(self) -> Outcome:
        """Failed where it is significantly lower, and below `least`; passed where the interval excludes that."""
        if self.quotient is None or self.ratio is None:
            return "failed" if self.missing else "inconclusive"
        if self.ratio < self.least and self.lower:
            return "failed"
        return "passed" if self.quotient.interval.low >= self.least else "inconclusive"

    @property
    def prompts_needed(self) -> int | None:
        """About how many prompts decide: with them, half of the interval is as long as the distance from the ratio to
        `least`, or to 1 if the ratio is below `least` (on the logarithm).

        None where it is decided, or where sessions alone make the interval that wide.
        """
        if self.outcome != "inconclusive" or self.quotient is None or self.ratio is None:
            return None
        distance = -log(self.ratio) if self.ratio < self.least else log(self.ratio / self.least)
        room = distance**2 - self.quotient.by_sessions**2
        return ceil(self.quotient.prompts * self.quotient.by_prompts**2 / room) if room > 0 else None

    def text(self) -> str:
        """Example: `speed-up 1.29x, was 1.40x (ratio 0.921 [0.852, 0.996])`."""
        found = self.quotient
        if found is None:
            lacks = f"{self.figure} is missing in this run, but not in the previous one"
            return lacks if self.missing else f"{self.figure}: fewer than {LEAST_PROMPTS} common prompts"
        pattern = SPEEDUP.cell if self.figure == SPEEDUP.label else TOKENS_PER_S.cell
        ends = f"[{found.interval.low:.3f}, {found.interval.high:.3f}]"
        now, then = pattern.format(found.now), pattern.format(found.then)
        return f"{self.figure} {now}, was {then} (ratio {self.ratio:.3f} {ends}){self._advice()}"

    def _advice(self) -> str:
        if self.outcome != "inconclusive" or self.quotient is None:
            return ""
        needed = self.prompts_needed
        if needed is None or not self.quotient.prompts < needed <= _MOST_PROMPTS:
            return "; more sessions would decide"
        return f"; about {needed} prompts would decide, {self.quotient.prompts} were compared"


@dataclass(frozen=True)
class Problem:
    """Why a label does not pass, apart from speed."""

    id: str
    text: str
    outcome: Outcome = "failed"


@dataclass(frozen=True)
class LabelResult:
    label: str
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]

    @property
    def outcome(self) -> Outcome:
        changes, problems = ([part.outcome for part in parts] for parts in (self.changes, self.problems))
        return _worst([*changes, *problems])

    @property
    def prompts_needed(self) -> int | None:
        """Most that any of its changes needs; None where none is known."""
        return max(filter(None, (change.prompts_needed for change in self.changes)), default=None)

    def text(self) -> str:
        """One line."""
        parts = [problem.text for problem in self.problems] + [change.text() for change in self.changes]
        return f"{self.label}: {'; '.join(parts) or 'all conditions hold'}"


@dataclass(frozen=True)
class GateResult:
    conditions: Conditions
    labels: tuple[LabelResult, ...]
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        return _worst([label.outcome for label in self.labels])

    def of(self, outcome: Outcome) -> tuple[LabelResult, ...]:
        return tuple(label for label in self.labels if label.outcome == outcome)


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    return max(outcomes, key=_OUTCOMES.index, default="passed")


def check(group: Group, conditions: Conditions, previous: Group | None = None) -> GateResult:
    """Checks every label of `group` against the conditions, and with `previous` its speed against that run.

    Raises InvalidData, naming the setting, where the two runs cannot be compared, and UserError for new files of
    several commits or files that are on both sides, as a pattern without quotes makes them.
    """
    if previous:
        _check_sides(group, previous)
    problems = defaultdict[str, list[Problem]](list)
    for label, problem in _all_problems(group, conditions, previous is not None):
        if problem not in problems[label]:
            problems[label].append(problem)
    changes, notes = _changes(group, previous, conditions) if previous else ({}, ())
    unsupported = tuple(
        f"{method.label} was not measured ({method.unsupported}), so it is not checked."
        for method in group.methods
        if method.unsupported and method.label not in changes
    )
    measured = [method.label for method in group.methods if not method.unsupported]
    labels = dict.fromkeys((*measured, *changes, *problems))
    results = (LabelResult(label, changes.get(label, ()), tuple(problems[label])) for label in labels)
    asked = conditions.require or conditions.quality is not None
    baseline = group.run.baseline
    kept = [result for result in results if result.changes or result.problems or (asked and result.label != baseline)]
    runs = {"This run": group} | ({"Previous run": previous} if previous else {})
    seen = tuple(f"{name}: {each.text}" for name, run in runs.items() for each in _disturbances(run))
    return GateResult(conditions, tuple(kept), (*unsupported, *notes, *seen))


def _disturbances(group: Group) -> Iterator[Warning]:
    """Warnings that a busy machine, and no slower code, may be the reason."""
    return (warning for warning in warnings(group) if warning.id in _MACHINE_WARNINGS)


def _check_sides(group: Group, previous: Group) -> None:
    """Without quotes the shell gives the first file of a pattern to --previous, and the others become new files."""
    if both := {file.path.resolve() for file in group.files} & {file.path.resolve() for file in previous.files}:
        raise UserError("same_file_twice", f"{sorted(both)[0]} is a new and a previous file. Put patterns in quotes.")
    plug_ins = {(method.name, method.source_sha256) for file in group.files for method in file.run.methods}
    if len({file.run.commit for file in group.files}) > 1 or len(plug_ins) > len(dict(plug_ins)):
        raise UserError(
            "mixed_commits",
            "the new files are of several commits, or versions of a plug-in. Name those of one, and put patterns in "
            "quotes.",
        )


def _all_problems(group: Group, conditions: Conditions, has_previous: bool) -> Iterator[tuple[str, Problem]]:
    for method in group.pooled.methods:
        if method.refused:
            yield method.label, Problem(method.refused, _REFUSED[method.refused])
    if conditions.require or conditions.quality is not None or has_previous:
        yield from _unmeasured(group)
    if conditions.quality is not None or has_previous:  # speed and quality are those of the answers that are left
        for method in group.pooled.methods:
            if failed := method.fidelity.failed:
                yield method.label, Problem("answers_failed", f"{failed} of its answers failed with an error")
    if conditions.require:
        yield from _unmet(group, conditions.require)
    if conditions.quality is not None:
        yield from _worse(group, conditions.quality)


def _unmet(group: Group, required: Requirement) -> Iterator[tuple[str, Problem]]:
    """`identical`, `tie` and `numeric` allow this verdict and stricter ones of all methods.

    `lossless` checks the methods that claim the target's own answers; the others pass. Answers that failed,
    were sampled, or whose control failed, break a requirement.
    """
    for method in group.pooled.methods:
        claims = claims_exact(method.exactness, group.run.temperature)
        if method.is_baseline or (required == "lossless" and not claims):
            continue
        counts = {verdict: getattr(method.fidelity, verdict) for verdict in _COUNTED}
        good = sum(counts[verdict] for verdict in REQUIREMENTS[: REQUIREMENTS.index(required) + 1] if verdict in counts)
        meets = method.lossless if required == "lossless" else good > 0 and good == sum(counts.values())
        if not meets:
            counted = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "without a verdict"
            yield method.label, Problem("requirement_unmet", f"not {required}: its answers are {counted}")


def _worse(group: Group, margin: float) -> Iterator[tuple[str, Problem]]:
    """The methods that a judge does not show to be worse by at most `margin` points.

    Every judge that gives points must show it: the interval of the mean difference lies above -margin, on at least
    FEWEST_PROMPTS prompts, with all turns judged, and pairs in both orders.
    """
    for method in group.pooled.methods:
        if method.is_baseline:
            continue
        judged = [figures for figures in method.judged if figures.judge.in_points]
        if not judged:
            yield method.label, Problem("not_judged", "no judge gave points: run `benchctl judge` with gpt or local")
        for figures in judged:
            name, count, turns = figures.judge.name, figures.prompts, _answered_turns(group, method.label)
            estimate = figures.estimate(SCORE_DIFFERENCE)
            interval = estimate.interval
            if figures.turns < turns:
                text = f"{name} judged {figures.turns} of {turns} turns: judge the rest (more --tries, another judge)"
                yield method.label, Problem("turns_not_judged", text)
            elif group.judging and figures.judge in group.judging.one_order:
                text = f"{name} saw its answers in one order, so position bias is in the difference: judge again"
                yield method.label, Problem("judged_in_one_order", text)
            elif group.judging and figures.judge in group.judging.blind:
                text = f"{name} does not distinguish answers: judge with another model"
                yield method.label, Problem("judge_blind", text, "inconclusive")
            elif count < FEWEST_PROMPTS:
                text = f"{name} judged {count} prompts: at least {FEWEST_PROMPTS} are needed"
                yield method.label, Problem("few_prompts_judged", text, "inconclusive")
            elif interval is None or interval.low < -margin:
                ends = f"{interval.low:+z.2f}, {interval.high:+z.2f}" if interval else "n/a"
                is_worse = interval is not None and interval.high < -margin
                yield (
                    method.label,
                    Problem(
                        "quality_not_shown",
                        f"not shown to be as good as {group.run.baseline} up to {margin:g} points: the mean difference "
                        f"by {name} is {estimate.value or 0:+z.2f} [{ends}] on {count} prompts",
                        "failed" if is_worse else "inconclusive",
                    ),
                )


def _changes(
    group: Group, previous: Group, conditions: Conditions
) -> tuple[Mapping[str, tuple[Change, ...]], tuple[str, ...]]:
    """For every label that was measured then: its speed-up, and on the same machine its tokens/s."""
    apart = [each for each in differing(previous.files, group.files) if each.field not in (*_MACHINE, *_UNDER_TEST)]
    if apart:
        settings = "; ".join(f"{each.field} is {each.second} (previous run: {each.first})" for each in apart)
        raise InvalidData("runs_differ", f"not comparable with {previous.files[0].path}: {settings}.")
    both = [file.run.machine for file in (*group.files, *previous.files)]
    moved = [fact for fact in _MACHINE if len({machine.get(fact) for machine in both}) > 1]
    notes = []
    if moved:
        notes.append(f"The machines differ in {', '.join(moved)}, so tokens/s are not compared, only speed-ups.")
    if group.sessions == previous.sessions == 1:
        notes.append(
            "Each run has one session, so the spread of sessions is assumed: "
            f"{_SESSION_SPREADS[SPEEDUP.label]:.1%} for speed-ups, {_SESSION_SPREADS[TOKENS_PER_S.label]:.1%} for "
            "tokens/s. To measure it, use --sessions 3 for both."
        )
    now = {method.label: method for method in group.pooled.methods}
    labels = [method.label for method in previous.pooled.methods]
    if new := [label for label in now if label not in labels]:
        notes.append(f"Not in the previous run, so without a comparison: {', '.join(new)}.")
    found: dict[tuple[str, str], Change] = {}
    for method in previous.pooled.methods:
        metrics = ([] if method.is_baseline else [SPEEDUP]) + ([] if moved else [TOKENS_PER_S])
        for metric in metrics:
            if method.estimate(metric).value:
                least = conditions.speedup if metric is SPEEDUP else conditions.tokens_per_s
                found[method.label, metric.label] = _change(
                    metric, group, previous, now.get(method.label), method, least
                )
    if not found:
        raise InvalidData(
            "no_speedup", f"{previous.files[0].path}: has no speed to compare with. Name a finished run as --previous."
        )
    significant = holm({key: change.quotient.p_value for key, change in found.items() if change.quotient})
    lower = {key for key in significant if (found[key].ratio or 1) < 1}
    changes = {
        label: tuple(replace(change, lower=key in lower) for key, change in found.items() if key[0] == label)
        for label in labels
    }
    return changes, tuple(notes)


def _change(
    metric: Metric, group: Group, previous: Group, now: MethodFigures | None, then: MethodFigures, least: float
) -> Change:
    if now is None or now.estimate(metric).value is None:
        return Change(metric.label, None, least, missing=True)
    ours, theirs = (_observations(each, then.label, metric) for each in (group, previous))
    return Change(metric.label, quotient(ours, theirs, _SESSION_SPREADS[metric.label]), least)


def _observations(group: Group, label: str, metric: Metric) -> Observations:
    """One for each round, which is all turns of a prompt, or of a batch of prompts, in a repeat."""
    pairs = group.pairs(label)
    columns = pd.DataFrame({"top": metric.top(pairs), "bottom": metric.bottom(pairs)}).astype(float)
    sums = columns.groupby([pairs[name] for name in ("suite", "batch", "file", "session", "repeat")]).sum()
    sessions = sums.groupby(level=["file", "session"]).ngroup().to_numpy().astype(np.int64)
    prompts = [key[:2] for key in sums.index]
    return Observations(sums["top"].to_numpy(), sums["bottom"].to_numpy(), sessions, prompts)


def _unmeasured(group: Group) -> Iterator[tuple[str, Problem]]:
    """The methods that lack answers, as after a run that was killed. Turns are known from the answers there are."""
    if all(method.is_baseline for method in group.pooled.methods):
        yield group.run.baseline, Problem("only_baseline", "nothing else was measured")
    asked = sum(suite.prompts for suite in group.run.suites)
    turns = _turns(group.frame)
    for method in group.methods:
        answered = _turns(group.frame[group.frame["label"] == method.label])
        whole = int((answered == turns.reindex(answered.index)).sum())
        if whole < asked and not method.unsupported:
            text = f"measured on {whole} of {asked} prompts: continue its run with --resume"
            yield method.label, Problem("not_all_measured", text)


def _turns(frame: pd.DataFrame) -> pd.Series:
    """How many turns of each prompt were measured."""
    return frame.groupby(["suite", "prompt_id"])["turn"].nunique()


def _answered_turns(group: Group, label: str) -> int:
    """How many turns of prompts both the method and the baseline answered."""
    answers = group.frame[group.frame["error"].isna()]
    keys = ["suite", "prompt_id", "turn"]
    own, theirs = (answers.loc[answers["label"] == each, keys] for each in (label, group.run.baseline))
    return len(own.drop_duplicates().merge(theirs.drop_duplicates()))
