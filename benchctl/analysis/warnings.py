"""Warnings about a group's figures, the gravest first: what happened, why it matters, what to do.

To add one, write a function that yields `Warning`s and name it in _CONDITIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.frame.build import Round, broken, claims_exact, last_tries, planned_repeat
from benchctl.analysis.frame.rows import CONDITION, FIDELITY
from benchctl.analysis.judges.figures import FIRST_WINS, LONGER_WINS, JudgedFigures
from benchctl.analysis.judges.judgements import Judge
from benchctl.analysis.metrics.faithfulness import EXACT_MATCH_DIFFERENCE
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.metrics.modes import STEP, STEP_PHASES
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.stats.bootstrap import Interval
from benchctl.analysis.stats.estimates import measured_apart
from benchctl.analysis.winner import best_labels
from benchctl.records.schema import UNKNOWN_TARGET, Run

_FEW_PROMPTS = 10
_OTHER_LENGTH = 0.1  # share of the baseline's tokens by which a method's answers may be shorter or longer
_UNREADABLE = 0.02  # share of judgements that may be unreadable without a warning
_UNBIASED = 0.5  # share that the first, or the longer, answer wins of a judge without that bias
_SUM_WITHIN = 0.02  # by which the phases of a step may miss its time
_SPARE_CORES = 0.5  # by which load and threads may exceed the cores
_MOST_WAITED = 0.05  # of the time ready to run, but without a core


@dataclass(frozen=True)
class Warning:
    """`template` is the sentence to print, `values` the names and numbers in it; tests check `id` and `values`."""

    id: str
    template: str
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.template.format(**self.values)

    def __str__(self) -> str:
        return self.text


def _warn(id: str, template: str, **values: object) -> Warning:
    return Warning(id, template, values)


def warnings(group: Group) -> tuple[Warning, ...]:
    """Everything a reader should know before using the group's figures."""
    return tuple(warning for condition in _CONDITIONS for warning in condition(group))


def _imported(group: Group) -> Iterator[Warning]:
    if group.run.imported:
        unknown = group.run.target.name.startswith(UNKNOWN_TARGET)
        yield _warn(
            "imported",
            "The figures come from files of {program}, which have no token ids. So there are no verdicts, and machine, "
            "warm-up and order{target} are unknown. To publish a figure, measure it with `benchctl run`.",
            program=group.run.imported,
            target=", and even the target (see --target)," if unknown else "",
        )


def _no_shared_session(group: Group) -> Iterator[Warning]:
    """One session measured the method and another one the baseline, and each was measured in one session only."""
    labels = [
        method.label
        for method in group.pooled.methods
        if method.estimate(SPEEDUP).value is not None
        and method.estimate(SPEEDUP).interval is None
        and measured_apart(group.pairs(method.label))
    ]
    if labels:
        yield _warn(
            "no_shared_session",
            "{labels} and {baseline} were measured in one session each, and not in the same one. The speed-up includes "
            "the difference between the sessions, so it has no interval. Measure both with one `benchctl run`.",
            labels=", ".join(labels),
            baseline=group.run.baseline,
        )


def _claim_broken(group: Group) -> Iterator[Warning]:
    for method in group.pooled.methods:
        answers = broken(method.fidelity, group.run.dtype)
        if answers and claims_exact(method.exactness, group.run.temperature):
            yield _warn(
                "claim_broken",
                "{label} claims to be exact, but {answers} of its answers differ from the baseline's by more than "
                "rounding. The method has a bug: do not use its figures.",
                label=method.label,
                answers=answers,
            )


def _output_length_differs(group: Group) -> Iterator[Warning]:
    for method in group.pooled.methods:
        if abs(method.tokens - method.baseline_tokens) > _OTHER_LENGTH * method.baseline_tokens:
            yield _warn(
                "output_length_differs",
                "{label} wrote {tokens} tokens, the baseline {baseline_tokens}. Part of its speed-up comes from the "
                "different length: compare tokens/s and TPOT instead.",
                label=method.label,
                tokens=method.tokens,
                baseline_tokens=method.baseline_tokens,
            )


def _no_loss_observed(group: Group) -> Iterator[Warning]:
    """Resamples of answers that all agree never lose one, so the interval has no width. The rule of three applies."""
    for method in group.pooled.methods:
        agree = method.estimate(EXACT_MATCH_DIFFERENCE).interval == Interval(0.0, 0.0)
        if agree and not method.is_baseline and not claims_exact(method.exactness, group.run.temperature):
            yield _warn(
                "no_loss_observed",
                "{label} lost none of {prompts} answers that can be checked. A loss of up to {possible:.0%} remains "
                "possible (95% confidence): check more prompts to narrow it.",
                label=method.label,
                prompts=method.checked_prompts,
                possible=min(3 / method.checked_prompts, 1.0),
            )


def _generations_failed(group: Group) -> Iterator[Warning]:
    """Of each mode, since replay and profile figures leave failures out too."""
    for mode, frame in {"free": group.frame, **group.others}.items():
        tries = last_tries(frame, group.repeats)
        for label, rows in tries[tries["error"].notna()].groupby("label", sort=False):
            first = rows.iloc[0]
            yield _warn(
                "generations_failed",
                "{label} failed on {generations} generations in {mode} mode, first on {prompt}: {error}. They and "
                "their counterparts are left out. Fix the cause and run again.",
                label=str(label),
                generations=len(rows),
                mode=mode,
                prompt=f"{first['suite']}/{first['prompt_id']}",
                error=first["error"],
            )


def _verdict_unknown(group: Group) -> Iterator[Warning]:
    """A control pass failed, for example for lack of memory; the times still count."""
    name = FIDELITY + "failed_controls"
    if name not in group.frame:
        return
    for label, rows in last_tries(group.frame, group.repeats).groupby("label", sort=False):
        answers = int((rows[name].astype(float) > 0).sum())
        if answers:
            yield _warn(
                "verdict_unknown",
                "{label}: for {answers} of {generations} answers the check against the target failed. Their times "
                "count, but no claim rests on them. Measure again with more free memory, or a smaller "
                "--max-new-tokens.",
                label=str(label),
                answers=answers,
                generations=len(rows),
            )


def _rounds_disturbed(group: Group) -> Iterator[Warning]:
    invalid = group.frame[group.frame["round_invalid"]]
    if invalid.empty:
        return
    with_reason = invalid[invalid["invalid"] != ""]
    first = (invalid if with_reason.empty else with_reason).iloc[0]
    planned = planned_rounds(group)
    disturbed, repeated = int(planned["disturbed"].sum()), int((planned["disturbed"] & planned["good"]).sum())
    again = " Free the machine, then run again or continue with --resume." if repeated < disturbed else ""
    yield _warn(
        "rounds_disturbed",
        "{disturbed} of {rounds} rounds were disturbed, first {prompt} ({reason}). Their times are left out for all "
        "methods. {repeated} of them were measured again." + again,
        disturbed=disturbed,
        rounds=len(planned),
        repeated=repeated,
        prompt=f"{first['suite']}/{first['prompt_id']}",
        reason=first["invalid"] or "see its rows of other modes",
    )


def planned_rounds(group: Group) -> pd.DataFrame:
    """For each planned round, whether any try of it was `disturbed`, and whether any was `good`.

    A good try is undisturbed and has as many answers as any try of the round. So a try that a kill cut short does not
    replace a disturbed one.
    """
    keys = list(Round._fields)
    answers = group.frame[[*keys, "round_invalid"]].assign(answered=group.frame["error"].isna())
    tried = answers.groupby(keys, as_index=False)
    tries = tried.agg(disturbed=("round_invalid", "any"), answered=("answered", "sum"))
    tries["repeat"] = planned_repeat(tries["repeat"], tries["file"].map(group.repeats))
    most = tries.groupby(keys)["answered"].transform("max")
    good = ~tries["disturbed"] & (tries["answered"] == most)
    return tries.assign(good=good).groupby(keys)[["disturbed", "good"]].any()


def _machine_busy(group: Group) -> Iterator[Warning]:
    """A load that lasts for the whole session marks no single round."""
    column = CONDITION + "waited_share"
    for number, file in enumerate(group.files):
        load, cores = _first(file.run.machine.get("load_average")), file.run.machine.get("cores")
        if load is not None and isinstance(cores, int) and load + file.run.threads > cores + _SPARE_CORES:
            yield _warn(
                "machine_busy",
                "{file}: the machine was busy at the start (load {load:.1f} on {cores} cores, {threads} needed), so "
                "times include waiting. Stop other work and measure again.",
                file=str(file.path),
                load=load,
                cores=cores,
                threads=file.run.threads,
            )
        waited = group.frame.loc[group.frame["file"] == number, column].median() if column in group.frame else 0.0
        if waited > _MOST_WAITED:
            yield _warn(
                "waited_for_cores",
                "{file}: half of its generations waited at least {waited:.0%} of their time for a core that other "
                "processes used. Stop other work and measure again.",
                file=str(file.path),
                waited=float(waited),
            )


def _not_measured(group: Group) -> Iterator[Warning]:
    for method in group.methods:
        if method.unsupported:
            yield _warn(
                "not_measured", "{label} was not measured: {reason}.", label=method.label, reason=method.unsupported
            )


def _run_unfinished(group: Group) -> Iterator[Warning]:
    for number, file in enumerate(group.files):
        prompts = sum(suite.prompts for suite in file.run.suites)
        finished = _finished(group.frame[group.frame["file"] == number], file.run)
        if finished < prompts:
            yield _warn(
                "run_unfinished",
                "{file} has {finished} of {prompts} prompts complete. Continue its run with --resume.",
                file=str(file.path),
                finished=finished,
                prompts=prompts,
            )


def _finished(frame: pd.DataFrame, run: Run) -> int:
    """Prompts that every method answered in every planned repeat; the turns of a prompt are known from its rows."""
    labels = sum(not method.unsupported for method in run.methods)
    planned = frame[frame["repeat"] < run.repeats]
    prompts = planned.groupby(["suite", "prompt_id"])["turn"].agg(["size", "nunique"])
    return int((prompts["size"] >= prompts["nunique"] * labels * run.repeats).sum())


def _best_of_many_labels(group: Group) -> Iterator[Warning]:
    for result in best_labels(group):
        estimate = result.best.estimate(SPEEDUP)
        assert estimate.interval is not None
        yield _warn(
            "best_of_many_labels",
            "The best of {labels} labels of {name} by the lower end of its interval is {label}: {speedup:.2f}x "
            "[{low:.2f}, {high:.2f}]; {slower} of the others are significantly slower. It was chosen on these prompts, "
            "which overestimates it: measure it again on others.",
            labels=result.labels,
            name=result.name,
            label=result.best.label,
            speedup=estimate.value or 0.0,
            low=estimate.interval.low,
            high=estimate.interval.high,
            slower=result.slower,
        )


def _few_prompts(group: Group) -> Iterator[Warning]:
    """Prompts of a batch share one time, so the batches of a batched run count too."""
    prompts = min(method.prompts for method in group.pooled.methods)
    batches = len(group.frame.groupby(["suite", "batch"])) if group.run.batch_size > 1 else prompts
    count = min(prompts, batches)
    if count < _FEW_PROMPTS:
        yield _warn(
            "few_prompts",
            "The figures rest on {count} {unit}, too few to represent a suite. Raise --limit to {limit} or more.",
            count=count,
            unit="batches" if batches < prompts else "prompts",
            limit=_FEW_PROMPTS * group.run.batch_size,
        )


def _embedded_sample(group: Group) -> Iterator[Warning]:
    names = [suite.name for suite in group.run.suites if suite.is_sample]
    if names:
        yield _warn(
            "embedded_sample",
            "{suites}: the prompts are embedded samples in the style of the published ones. Do not quote the figures "
            "as theirs; use --source published for that.",
            suites=", ".join(names),
        )


def _scores_left_out(group: Group) -> Iterator[Warning]:
    if not group.judging:
        return
    for notice in group.judging.notices:
        yield _warn("scores_notice", "{notice}", notice=notice)
    left = group.judging.judged.left_out
    if left.changed or left.gone or left.elsewhere:
        yield _warn(
            "scores_left_out",
            "Scores are left out: {changed} of texts that differ from the answers here, {gone} of answers that are not "
            "here, {elsewhere} of other methods or baselines. Judge these answers with `benchctl judge`.",
            changed=left.changed,
            gone=left.gone,
            elsewhere=left.elsewhere,
        )


def _judge_incomplete(group: Group) -> Iterator[Warning]:
    for judge, figures in _by_judge(group):
        unreadable, asked = (sum(getattr(each, name) for _, each in figures) for name in ("unreadable", "asked"))
        missing = [method.label for method, each in figures if each.asked_prompts < method.prompts]
        if unreadable > _UNREADABLE * asked or missing:
            yield _warn(
                "judge_incomplete",
                "{judge}: {unreadable} of {asked} replies could not be read, so {pairs} pairs have no verdict, and "
                "prompts of {missing} were never judged. If these are hard ones, the rest is flattering. Judge the "
                "rest, with more --tries where replies could not be read.",
                judge=judge.name,
                unreadable=unreadable,
                asked=asked,
                pairs=sum(each.incomplete for _, each in figures),
                missing=", ".join(missing) or "no method",
            )


def _judge_prompts_mixed(group: Group) -> Iterator[Warning]:
    judged = group.judging.judged if group.judging else None
    changed = {judge for (judge, _), hashes in judged.templates.items() if len(hashes) > 1} if judged else set()
    for name in sorted(changed | (judged.mixed if judged else frozenset())):
        yield _warn(
            "judge_prompts_mixed",
            "{judge} judged answers with different versions of its prompt, so its scores are not comparable. Judge all "
            "answers with one of them, or keep the lines of one `template` in the scores file.",
            judge=name,
        )


def _judge_biased(group: Group) -> Iterator[Warning]:
    for judge in group.judging.one_order if group.judging else ():
        yield _warn(
            "judge_one_order",
            "{judge} saw each pair in one order, so its position bias is in its figures. "
            "Judge again with `benchctl judge`.",
            judge=judge.name,
        )
    for judge, figures in _by_judge(group):
        for id, metric, names, advice in (
            ("judge_position_bias", FIRST_WINS, ("first", "second"), "Both orders cancel this in the mean only."),
            ("judge_length_bias", LONGER_WINS, ("longer", "shorter"), "Compare with a judge of another kind."),
        ):
            for favoured, labels in zip(names, _favoured(metric, figures), strict=True):
                if labels:
                    yield _warn(
                        id,
                        "{judge} prefers the {favoured} answer (significant for {labels}). " + advice,
                        judge=judge.name,
                        favoured=favoured,
                        labels=", ".join(labels),
                    )


def _by_judge(group: Group) -> Iterator[tuple[Judge, list[tuple[MethodFigures, JudgedFigures]]]]:
    for judge in group.judging.judges if group.judging else ():
        methods = group.pooled.methods
        yield judge, [(method, each) for method in methods for each in method.judged if each.judge == judge]


def _favoured(metric: Metric, figures: Sequence[tuple[MethodFigures, JudgedFigures]]) -> tuple[list[str], list[str]]:
    """The methods for which a judge significantly favours what the metric counts, and the opposite."""
    above, below = list[str](), list[str]()
    for method, judged in figures:
        interval = None if method.is_baseline else judged.estimate(metric).interval
        if interval and not interval.low <= _UNBIASED <= interval.high:
            (above if interval.low > _UNBIASED else below).append(method.label)
    return above, below


def _first(value: object) -> float | None:
    numbers = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return float(numbers[0]) if numbers else None


def _kl_incomplete(group: Group) -> Iterator[Warning]:
    """The mean KL leaves out answers, of those whose rounds are in figures at all."""
    for label, rows in group.frame[~group.frame["round_invalid"]].groupby("label", sort=False):
        finite, infinite, unrepeated = (
            int(rows[FIDELITY + name].notna().sum()) if FIDELITY + name in rows else 0
            for name in ("kl_tokens", "kl_infinite_tokens", "kl_unrepeated_tokens")
        )
        if infinite or unrepeated:
            yield _warn(
                "kl_incomplete",
                "{label}: the mean KL covers {finite} of {answers} answers, and the others may be worse. It is "
                "infinite for {infinite}; {unrepeated} were not repeated. Do not compare it between methods.",
                label=label,
                finite=finite,
                answers=finite + infinite + unrepeated,
                infinite=infinite,
                unrepeated=unrepeated,
            )


def _versions_differ(group: Group) -> Iterator[Warning]:
    for name in ("versions", "commit"):
        if any(getattr(file.run, name) != getattr(group.run, name) for file in group.files):
            yield _warn(
                "versions_differ",
                "The runs differ in {field}, which may be why their figures differ. Measure all with one version.",
                field=name,
            )


def _phases_incomplete(group: Group) -> Iterator[Warning]:
    for method in group.pooled.methods if "profile" in group.others else ():
        step = method.estimate(STEP).value
        phases = sum(method.estimate(metric).value or 0.0 for metric in STEP_PHASES)
        if step and abs(phases / step - 1) > _SUM_WITHIN:
            yield _warn(
                "phases_incomplete",
                "{label}: the phases of its steps come to {share:.1%} of the time of the steps, so they are not of "
                "these steps. Profile it again.",
                label=method.label,
                share=phases / step,
            )


_CONDITIONS: tuple[Callable[[Group], Iterator[Warning]], ...] = (
    _imported,
    _no_shared_session,
    _claim_broken,
    _output_length_differs,
    _no_loss_observed,
    _generations_failed,
    _verdict_unknown,
    _rounds_disturbed,
    _scores_left_out,
    _judge_incomplete,
    _judge_prompts_mixed,
    _judge_biased,
    _not_measured,
    _run_unfinished,
    _best_of_many_labels,
    _few_prompts,
    _kl_incomplete,
    _versions_differ,
    _phases_incomplete,
    _embedded_sample,
    _machine_busy,
)
