"""Warnings about a group's figures, the gravest first: what happened, why it matters, what to do.

To add one, write its sentences into _TEMPLATES and yield it where its condition is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import shorten

import numpy as np
import pandas as pd

from benchctl.analysis.comparison import Group
from benchctl.analysis.frame.build import Round, broken, claims_exact, last_tries, planned_repeat
from benchctl.analysis.frame.rows import CONDITION, COUNTER, FIDELITY
from benchctl.analysis.judges.figures import FEWEST_PROMPTS, FIRST_WINS, LONGER_WINS
from benchctl.analysis.metrics.faithfulness import DEGENERATION, EXACT_MATCH_DIFFERENCE
from benchctl.analysis.metrics.speed import SOUND_SPEEDUP, SPEEDUP
from benchctl.analysis.stats.estimates import measured_apart
from benchctl.analysis.stats.intervals import Interval
from benchctl.analysis.winner import best_labels
from benchctl.records.labels import old_defaults
from benchctl.records.progress import finished_prompts
from benchctl.records.schema import COUNTED_SINCE, UNKNOWN_TARGET, Run

_OTHER_LENGTH = 0.1  # share of the baseline's tokens by which a method's answers may be shorter or longer
_UNREADABLE = 0.02  # share of judgements that may be unreadable without a warning
_UNBIASED = 0.5  # share that the first, or the longer, answer wins of a judge without that bias
_LONG_DRAFTS, _FORESEEN = 6, 0.98  # tokens a step, and the share of them accepted, that no drafter reaches
_MORE_CORES = 1.25  # times the threads of the run, that the process may use while the baseline decodes
_LESS_BUSY = 0.85  # times the methods' share of processor time, that the baseline's is at least
_CLOCK_STEP_S = 0.05  # by which the wall clock may be set back without a warning
_SPARE_CORES = 0.5  # by which load and threads may exceed the cores
_MOST_OF_ONE_ROW = 1.05  # the time of one row / that of four rows
_PUBLISHED_PROMPTS = 100
_REPETITION = 1.05  # the speed-up / that without degenerate answers
_MOST_WAITED = 0.05  # of the time ready to run, but without a core


@dataclass(frozen=True)
class Warning:
    """`template` has the sentences to print, `values` the names and numbers in it; tests check `id` and `values`."""

    id: str
    template: str
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.template.format(**self.values)

    def line(self, names: Mapping[str, str], width: int) -> str:
        """One line of at most `width` characters; `names` has what to call labels. A long name is cut, not the rest."""
        template, label = f"Warning: {_TEMPLATES[self.id][0]}", str(self.values.get("label", ""))
        name = names.get(label, label)
        room = width - len(template.format(**{**self.values, "label": ""}))
        name = shorten(name, max(room, len(name.split(" ")[0]) + 4), placeholder=" ...")
        return shorten(template.format(**{**self.values, "label": name}), width, placeholder=" ...")


_TEMPLATES: dict[str, tuple[str, str]] = {  # the gravest first; a line of at most 71 characters, then the whole text
    "imported": (
        "imported from {program}: no verdicts; measure with `benchctl run`",
        "The figures come from files of {program}, which have no token ids. So there are no verdicts, and machine, "
        "warm-up and order{target} are unknown. To publish a figure, measure it with `benchctl run`.",
    ),
    "no_shared_session": (
        "methods and baseline in different sessions: measure them in one",
        "{labels} and {baseline} were measured in one session each, and not in the same one. The speed-up includes "
        "the difference between the sessions, so it has no interval. Measure both with one `benchctl run`.",
    ),
    "claim_broken": (
        "{label} is not exact: {answers} answers differ; do not use it",
        "{label} claims to be exact, but {answers} of its answers differ from the baseline's by more than rounding. "
        "The method has a bug: do not use its figures.",
    ),
    "other_weights": (
        "{label} chooses {share:.0%} of the target's tokens: check its model",
        "{label} chooses only {share:.1%} of the target's tokens, so its weights are not the target's. Its speed is "
        "that of another model. Check which model or file it runs. Name quantised weights with `quantised=FILE` "
        "(llama_cpp) or `dtype=quantised` (openai).",
    ),
    "not_examined": (
        "{label}: claims are unproven; run `benchctl doctor --method`",
        "`benchctl doctor --method {label}` {found}. The claims and the speed of {label} are unproven until all "
        "checks pass. Run doctor, then measure again.",
    ),
    "impossibly_fast": (
        "{label} is faster than its passes can be: do not use its figures",
        "{label} took less than half the baseline's time for each pass over the target. No pass can be that fast: "
        "work was done outside the clock, or the clock is wrong. Do not use its figures.",
    ),
    "weak_baseline": (
        "one row takes {cost:.2f}x the time of four: speed-ups are too high",
        "{file}: a pass of one row took {cost:.2f} times as long as a pass of four rows, though both read the same "
        "weights. So the baseline is slow on this machine, and speed-ups of methods that verify several rows are "
        "too high. Try --weights float16 on a CPU, other --threads or another --dtype.",
    ),
    "remembers": (
        "{label} remembers earlier answers: do not use its figures",
        "{label} took other steps when it answered a prompt again. So it remembers answers, and would be slower on "
        "new prompts. Do not use its figures; in the method, create all state of a prompt in `start`.",
    ),
    "drafts_foreseen": (
        "{label} had {rate:.0%} of its drafts accepted: check if it knows the answers",
        "{label} drafted {drafted:.0f} tokens per step and {rate:.1%} of them were accepted, as if it knew the "
        "answers. Check that it does not read results or earlier answers.",
    ),
    "carries_over": (
        "{label} keeps state between prompts: its speed depends on their order",
        "{label} keeps state from prompt to prompt, so its speed depends on the prompts before and on their order. "
        "Mention it where you quote the figure, or measure with memory=prompt.",
    ),
    "times_overlap": (
        "{generations} generations overlap: a clock is wrong; measure again",
        "{file}: {generations} generations took longer than the time until the next one started. A clock is wrong. "
        "Do not use these times, and measure again.",
    ),
    "threads_left_running": (
        "a method left threads running, which slow the baseline: stop them",
        "{file}: while the baseline decoded, the process used {cores:.1f} cores, but has {threads} threads. A "
        "method left threads running, which slows the baseline. Stop them in the method and measure again.",
    ),
    "baseline_waits": (
        "{baseline} waited while it decoded, so speed-ups may be too high",
        "{file}: while {baseline} decoded, the process computed for {share:.0%} of the time, and for {others:.0%} "
        "of that of the methods. If something makes the baseline wait, all speed-ups are too high. Remove it and "
        "measure again.",
    ),
    "output_length_differs": (
        "{label} wrote {tokens} tokens, the baseline {baseline_tokens}: compare tokens/s",
        "{label} wrote {tokens} tokens, the baseline {baseline_tokens}. Part of its speed-up comes from the "
        "different length. Compare tokens/s and TPOT instead.",
    ),
    "no_loss_observed": (
        "{label}: no loss on {prompts} prompts, but up to {possible:.0%} is possible",
        "{label} lost none of {prompts} answers that can be checked. A loss of up to {possible:.0%} remains "
        "possible (95% confidence). Check more prompts to narrow it.",
    ),
    "generations_failed": (
        "{label} failed on {generations} generations: fix the cause, run again",
        "{label} failed on {generations} generations in {mode} mode, first on {prompt}: {error}. They and their "
        "counterparts are left out. Fix the cause and run again.",
    ),
    "verdict_unknown": (
        "{label}: {answers} of {generations} answers lack a verdict; measure again",
        "{label}: for {answers} of {generations} answers the check against the target failed. Their times count, "
        "but no claim rests on them. Measure again with more free memory, a smaller --max-new-tokens, or another "
        "--dtype, since numbers may have overflowed.",
    ),
    "fidelity_unknown": (
        "{label}: {answers} of {generations} answers without agreement or KL",
        "{label}: for {answers} of {generations} answers agreement or KL could not be computed. Target agreement is "
        "left out, and KL is the mean over the other answers. Measure again with more free memory, or a smaller "
        "--max-new-tokens.",
    ),
    "prefix_cache_unproved": (
        "{engine} does not report its prefix cache: switch it off",
        "{label}: {engine} does not report whether it read prompts from its cache, which would make repeats faster. "
        "Start it without a prefix cache.",
    ),
    "counts_wrong": (
        "{label}: {answers} of {generations} answers have impossible counts",
        "{label}: the engine's counts of {answers} of {generations} answers cannot be true, and are left out. Use "
        "another version of the engine.",
    ),
    "scores_notice": ("{notice}", "{notice}"),
    "scores_left_out": (
        "some scores are of other answers and are left out: run `benchctl judge`",
        "Scores are left out: {changed} of texts that differ from the answers here, {gone} of answers that are not "
        "here, {elsewhere} of other methods or baselines. Judge these answers with `benchctl judge`.",
    ),
    "judge_incomplete": (
        "{judge}: {unreadable} of {asked} replies unreadable, or not all judged",
        "{judge}: {unreadable} of {asked} replies could not be read, so {pairs} pairs have no verdict. Prompts of "
        "{missing} were never judged. If these are hard ones, the scores are too high. Judge the rest, with more "
        "--tries where replies could not be read.",
    ),
    "judge_prompts_mixed": (
        "{judge} used different prompts, so scores do not compare: judge again",
        "{judge} judged answers with different versions of its prompt, so its scores are not comparable. Judge all "
        "answers with one of them, or keep the lines of one `template` in the scores file.",
    ),
    "judge_one_order": (
        "{judge} saw each pair in one order: judge again with `benchctl judge`",
        "{judge} saw each pair in one order, so its position bias is in its figures. Judge again with `benchctl "
        "judge`.",
    ),
    "judge_blind": (
        "{judge} does not distinguish answers: judge with another model",
        "{judge} preferred no answer in both orders, although answers differ. So its scores show no difference between "
        "answers. Judge with another model.",
    ),
    "judge_position_bias": (
        "{judge} prefers the {favoured} answer: do not use single verdicts",
        "{judge} prefers the {favoured} answer (significant for {labels}). Both orders cancel this bias only in the "
        "mean. Do not use single verdicts.",
    ),
    "judge_length_bias": (
        "{judge} prefers the {favoured} answer: use another judge too",
        "{judge} prefers the {favoured} answer (significant for {labels}), so its scores include a length bias. "
        "Compare with a judge of another kind.",
    ),
    "not_measured": ("{label} was not measured: {reason}", "{label} was not measured: {reason}."),
    "run_unfinished": (
        "{finished} of {prompts} prompts complete: continue the run with --resume",
        "{file} has {finished} of {prompts} prompts complete, so the figures may change. Continue its run with "
        "--resume.",
    ),
    "best_of_many_labels": (
        "best of {labels} labels of {name}: overestimated; use new prompts",
        "The best of {labels} labels of {name} by the lower end of its interval is {label}: {speedup:.2f}x "
        "[{low:.2f}, {high:.2f}]; {slower} of the others are significantly slower. It was chosen on these prompts, "
        "which overestimates it. Measure it again on others.",
    ),
    "few_prompts": (
        "only {count} {unit}: use {limit} prompts for a first look",
        "The figures rest on {count} {unit}, too few to represent a suite. Use {limit} prompts or more for a first "
        "look, and {publish} to publish.",
    ),
    "kl_incomplete": (
        "{label}: KL covers {finite} of {answers} answers; do not compare it",
        "{label}: the mean KL covers {finite} of {answers} answers, and the others may be worse. It is infinite for "
        "{infinite}; {unrepeated} were not repeated. Do not compare it between methods.",
    ),
    "versions_differ": (
        "the runs differ in {field}: measure all with one version",
        "The runs differ in {field}, which may be why their figures differ. Measure all with one version.",
    ),
    "answers_repeat": (
        "{share:.0%} of answers end in a loop; {label} without them: {sound:.2f}x",
        "{share:.0%} of the baseline's answers repeat a phrase to their end, and such text is easy to draft. Without "
        "these answers {label} has {sound:.2f}x instead of {speedup:.2f}x. Quote both, or choose prompts, a model or a "
        "--max-new-tokens with fewer of them.",
    ),
    "embedded_sample": (
        "embedded prompts are not the published ones: use --source published",
        "{suites}: the prompts are embedded samples in the style of the published ones. Do not quote the figures as "
        "theirs; use --source published for that.",
    ),
    "old_defaults": (
        "{label} has other defaults than today: --full",
        "{label} was measured with {options}, the defaults of version 0.1. The same label means other options today: "
        "give these options to measure it again.",
    ),
    "counts_reported": (
        "file of an earlier version: steps are not counted; measure again",
        "{files}: an earlier version wrote this, so tokens per step, acceptance and depth are what the methods "
        "reported. To have them counted, measure again.",
    ),
    "rounds_disturbed": (
        "{disturbed} of {rounds} rounds were disturbed; {repeated} were measured again",
        "{disturbed} of {rounds} rounds were disturbed, first {prompt} ({reason}). Their times are left out for all "
        "methods. {repeated} of them were measured again.",
    ),
    "machine_busy": (
        "the machine was busy {when} (load {load:.1f}): measure again",
        "{file}: the machine was busy {when} (load {load:.1f}; usable cores: {cores}; needed: {threads}), so "
        "times include waiting. Stop other work and measure again.",
    ),
    "waited_for_cores": (
        "other processes used the cores {waited:.0%} of the time: stop them",
        "{file}: half of its generations waited at least {waited:.0%} of their time for a core that other processes "
        "used. Stop other work and measure again.",
    ),
}


def warnings(group: Group) -> tuple[Warning, ...]:
    """Everything a reader should know before using the group's figures."""
    kinds = (_of_group, _of_methods, _of_repetition, _of_generations, _of_rounds, _of_scores, _of_files)
    ranks = {id: rank for rank, id in enumerate(_TEMPLATES)}
    return tuple(sorted((each for kind in kinds for each in kind(group)), key=lambda each: ranks[each.id]))


def _warn(id: str, more: str = "", /, **values: object) -> Warning:
    return Warning(id, _TEMPLATES[id][1] + more, values)


def _of_group(group: Group) -> Iterator[Warning]:
    run = group.run
    if run.imported:
        target = ", and even the target (see --target)," if run.target.name.startswith(UNKNOWN_TARGET) else ""
        yield _warn("imported", program=run.imported, target=target)
    for result in best_labels(group):
        estimate = result.best.estimate(SPEEDUP)
        assert estimate.interval is not None
        yield _warn(
            "best_of_many_labels",
            labels=result.labels,
            name=result.name,
            label=result.best.label,
            speedup=estimate.value or 0.0,
            low=estimate.interval.low,
            high=estimate.interval.high,
            slower=result.slower,
        )
    prompts = min(method.prompts for method in group.pooled.methods)
    # Prompts of a batch share one time, so the batches of a batched run count too.
    batches = len(group.frame.groupby(["suite", "batch"])) if run.batch_size > 1 else prompts
    if (count := min(prompts, batches)) < FEWEST_PROMPTS:
        one, many = ("batch", "batches") if batches < prompts else ("prompt", "prompts")
        unit = one if count == 1 else many
        sizes = {"limit": FEWEST_PROMPTS * run.batch_size, "publish": _PUBLISHED_PROMPTS * run.batch_size}
        yield _warn("few_prompts", count=count, unit=unit, **sizes)
    for name in ("versions", "commit"):
        if any(getattr(file.run, name) != getattr(run, name) for file in group.files):
            yield _warn("versions_differ", field=name)
    if samples := [suite.name for suite in run.suites if suite.is_sample]:
        yield _warn("embedded_sample", suites=", ".join(samples))


def _of_methods(group: Group) -> Iterator[Warning]:
    run, apart = group.run, list[str]()
    for method in group.pooled.methods:
        label, speedup, answers = method.label, method.estimate(SPEEDUP), broken(method.fidelity, run.dtype)
        claims = claims_exact(method.exactness, run.temperature)
        # One session measured the method and another one the baseline, and each was measured in one session only.
        if speedup.value is not None and speedup.interval is None and measured_apart(group.pairs(label)):
            apart.append(label)
        if answers and claims:
            yield _warn("claim_broken", label=label, answers=answers)
        if label in group.other_weights:
            yield _warn("other_weights", label=label, share=group.other_weights[label])
        if label in group.remembering:
            yield _warn("remembers", label=label)
        if old := old_defaults(label, next(each.options for each in group.methods if each.label == label)):
            yield _warn("old_defaults", label=label, options=old)
        if group.is_impossibly_fast(label):
            yield _warn("impossibly_fast", label=label)
        drafted, rate = _drafts(group.pairs(label))
        if drafted >= _LONG_DRAFTS and rate >= _FORESEEN and method.prompts >= FEWEST_PROMPTS:
            yield _warn("drafts_foreseen", label=label, drafted=drafted, rate=rate)
        tokens, baseline_tokens = method.tokens, method.baseline_tokens
        if tokens and baseline_tokens and abs(tokens - baseline_tokens) > _OTHER_LENGTH * baseline_tokens:
            yield _warn("output_length_differs", label=label, tokens=tokens, baseline_tokens=baseline_tokens)
        # Answers that all agree give an interval without width. The rule of three applies.
        agree = method.estimate(EXACT_MATCH_DIFFERENCE).interval == Interval(0.0, 0.0)
        if agree and not method.is_baseline and not claims:
            prompts = method.checked_prompts
            yield _warn("no_loss_observed", label=label, prompts=prompts, possible=min(3 / prompts, 1.0))
    if apart:
        yield _warn("no_shared_session", labels=", ".join(apart), baseline=run.baseline)
    found = {"failed": "found that it fails a check", "never": "has not examined this version of the plug-in"}
    for name, result in {(info.name, info.doctor): None for info in group.methods if info.doctor in found}:
        yield _warn("not_examined", label=name, found=found[result])
    for info in group.methods:
        if "memory=run" in info.label and not info.unsupported:
            yield _warn("carries_over", label=info.label)
        if info.unsupported:
            yield _warn("not_measured", label=info.label, reason=info.unsupported)


def _of_repetition(group: Group) -> Iterator[Warning]:
    """The fastest exact method whose speed-up rests on answers that repeat themselves."""
    exact = (each for each in group.pooled.methods if claims_exact(each.exactness, group.run.temperature))
    methods = [each for each in exact if not each.refused]
    values = ((each, each.estimate(SPEEDUP).value, each.estimate(SOUND_SPEEDUP).value) for each in methods)
    found = [(speedup, sound, each) for each, speedup, sound in values if speedup and sound]
    repeating = [each for each in found if each[0] > _REPETITION * each[1]]
    if repeating:
        speedup, sound, method = max(repeating, key=lambda each: each[0])
        share = next(each for each in group.pooled.methods if each.is_baseline).estimate(DEGENERATION).value or 0.0
        yield _warn("answers_repeat", label=method.label, share=share, speedup=speedup, sound=sound)


def _drafts(pairs: pd.DataFrame) -> tuple[float, float]:
    """Drafted tokens per step that drafted, and the share of them that was accepted; zeros without such steps.

    Engines may report what they drafted in all, and no steps.
    """
    pairs = pairs[pairs["drafting_steps"] > 0]
    drafted, steps = float(pairs["drafted_tokens"].sum()), float(pairs["drafting_steps"].sum())
    return (drafted / steps, float(pairs["accepted_tokens"].sum()) / drafted) if drafted else (0.0, 0.0)


def _of_generations(group: Group) -> Iterator[Warning]:
    for mode, frame in {"free": group.frame, **group.others}.items():  # replay and profile leave failures out too
        tries = last_tries(frame, group.repeats)
        for label, rows in tries[tries["error"].notna()].groupby("label", sort=False):
            first = rows.iloc[0]
            prompt = f"{first['suite']}/{first['prompt_id']}"
            values = {"generations": len(rows), "mode": mode, "prompt": prompt, "error": first["error"]}
            yield _warn("generations_failed", label=str(label), **values)
    # A pass that checks the answer failed, for example for lack of memory; the times still count.
    for label, rows in last_tries(group.frame, group.repeats).groupby("label", sort=False):
        unverified = rows[rows["verdict"].isna()]  # version 0.1 counted both kinds of failure as controls
        for id, name, of in (
            ("verdict_unknown", "failed_controls", unverified),
            ("fidelity_unknown", "failed_fidelity", rows),
        ):
            answers = int((of[FIDELITY + name].astype(float) > 0).sum()) if FIDELITY + name in of else 0
            if answers:
                yield _warn(id, label=str(label), answers=answers, generations=len(rows))
    for method in group.methods:
        if method.engine is not None and method.engine.prefix_cache == "unproved":
            yield _warn("prefix_cache_unproved", label=method.label, engine=method.engine.name)
    wrong = COUNTER + "wrong_counts"
    for label, rows in group.frame.groupby("label", sort=False) if wrong in group.frame else ():
        if answers := int(rows[wrong].notna().sum()):
            yield _warn("counts_wrong", label=str(label), answers=answers, generations=len(rows))
    # The mean KL leaves out answers, of those whose rounds are in figures at all.
    for label, rows in group.frame[~group.frame["round_invalid"]].groupby("label", sort=False):
        finite, infinite, unrepeated = (
            int(rows[FIDELITY + name].notna().sum()) if FIDELITY + name in rows else 0
            for name in ("kl_tokens", "kl_infinite_tokens", "kl_unrepeated_tokens")
        )
        if infinite or unrepeated:
            counts = {"finite": finite, "answers": finite + infinite + unrepeated}
            yield _warn("kl_incomplete", label=label, **counts, infinite=infinite, unrepeated=unrepeated)


def _of_rounds(group: Group) -> Iterator[Warning]:
    invalid = group.frame[group.frame["round_invalid"]]
    if invalid.empty:
        return
    with_reason = invalid[invalid["invalid"] != ""]
    first = (invalid if with_reason.empty else with_reason).iloc[0]
    planned = planned_rounds(group)
    disturbed, repeated = int(planned["disturbed"].sum()), int((planned["disturbed"] & planned["good"]).sum())
    yield _warn(
        "rounds_disturbed",
        " Free the machine, then run again or continue with --resume." if repeated < disturbed else "",
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


def _of_scores(group: Group) -> Iterator[Warning]:
    if not (judging := group.judging):
        return
    for notice in judging.notices:
        yield _warn("scores_notice", notice=notice)
    if left := judging.judged.left_out:
        yield _warn("scores_left_out", changed=left["changed"], gone=left["gone"], elsewhere=left["elsewhere"])
    changed = {judge for (judge, _), hashes in judging.judged.templates.items() if len(hashes) > 1}
    for name in sorted(changed | judging.judged.mixed):
        yield _warn("judge_prompts_mixed", judge=name)
    for judge in judging.one_order:
        yield _warn("judge_one_order", judge=judge.name)
    for judge in judging.blind:
        yield _warn("judge_blind", judge=judge.name)
    for judge in judging.judges:
        methods = group.pooled.methods
        figures = [(method, each) for method in methods for each in method.judged if each.judge == judge]
        unreadable, asked, pairs = (
            sum(getattr(each, name) for _, each in figures) for name in ("unreadable", "asked", "incomplete")
        )
        asked_prompts = {method.label: each.asked_prompts for method, each in figures}
        judgeable = (each for each in methods if not each.is_baseline or each.label in asked_prompts)
        due = "checked_prompts" if judge.protocol == "exact" else "prompts"  # others have no exact answer
        missing = [each.label for each in judgeable if asked_prompts.get(each.label, 0) < getattr(each, due)]
        if unreadable > _UNREADABLE * asked or missing:
            counts = {"unreadable": unreadable, "asked": asked, "pairs": pairs}
            yield _warn("judge_incomplete", judge=judge.name, **counts, missing=", ".join(missing) or "no method")
        for id, metric, names in (
            ("judge_position_bias", FIRST_WINS, ("first", "second")),
            ("judge_length_bias", LONGER_WINS, ("longer", "shorter")),
        ):
            intervals = {
                method.label: each.estimate(metric).interval for method, each in figures if not method.is_baseline
            }
            above = [label for label, interval in intervals.items() if interval and interval.low > _UNBIASED]
            below = [label for label, interval in intervals.items() if interval and interval.high < _UNBIASED]
            for favoured, labels in zip(names, (above, below), strict=True):
                if labels:
                    yield _warn(id, judge=judge.name, favoured=favoured, labels=", ".join(labels))


def _of_files(group: Group) -> Iterator[Warning]:
    older = [
        str(file.path) for file in group.files if file.run.schema_version < COUNTED_SINCE and not file.run.imported
    ]
    if older:
        yield _warn("counts_reported", files=", ".join(older))
    waited_share, foreign_cores = CONDITION + "waited_share", CONDITION + "foreign_cores"
    for number, file in enumerate(group.files):
        run, name, frame = file.run, str(file.path), group.frame[group.frame["file"] == number]
        generations = frame[["suite", "prompt_id", "turn", "repeat"]].itertuples(index=False, name=None)
        finished, prompts = finished_prompts(run, generations, modes=1)
        if finished < prompts and not run.imported:
            yield _warn("run_unfinished", file=name, finished=finished, prompts=prompts)
        # A load that lasts for the whole session marks no single round.
        loads, cores = run.machine.get("load_average"), run.machine.get("cores")
        load, when = float(loads[0]) if loads and isinstance(loads, list | tuple) else 0.0, "at the start"
        attached = any(method.engine is not None and method.engine.run == "attached" for method in run.methods)
        if foreign_cores in frame and frame[foreign_cores].notna().any() and not attached:
            # What others used of the cores that the run may use; a server that it did not start is no other.
            load, when = float(frame[foreign_cores].median()), "throughout"
        if isinstance(cores, int) and load + run.threads > cores + _SPARE_CORES:
            yield _warn("machine_busy", file=name, load=load, when=when, cores=cores, threads=run.threads)
        cost = run.machine.get("one_row_cost")
        if isinstance(cost, float) and cost > _MOST_OF_ONE_ROW:
            yield _warn("weak_baseline", file=name, cost=cost)
        yield from _of_clock(name, group, number)
        yield from _of_processor_time(name, run, frame)
        waited = float(frame[waited_share].median()) if waited_share in frame else 0.0
        if waited > _MOST_WAITED:
            yield _warn("waited_for_cores", file=name, waited=waited)


def _of_clock(name: str, group: Group, number: int) -> Iterator[Warning]:
    """Generations of one process follow each other, in all modes."""
    frames = [frame[frame["file"] == number] for frame in (group.frame, *group.others.values())]
    timed = pd.concat([frame[["started_s", "whole_s"]].dropna().astype(float) for frame in frames])
    # Rows of a batch share their start, and its time by equal parts.
    whole_s = timed.groupby("started_s")["whole_s"].sum().sort_index()
    overlapping = int((whole_s.to_numpy()[:-1] > np.diff(whole_s.index.to_numpy()) + _CLOCK_STEP_S).sum())
    if overlapping:
        yield _warn("times_overlap", file=name, generations=overlapping)


def _of_processor_time(name: str, run: Run, frame: pd.DataFrame) -> Iterator[Warning]:
    """What the process did while the baseline decoded, and while methods did."""
    answered = frame[frame["error"].isna() & frame["cpu_s"].notna() & (frame["whole_s"] > 0)]
    cores = (answered["cpu_s"].astype(float) / answered["whole_s"]).groupby(answered["label"] == run.baseline).median()
    if True not in cores:
        return
    if cores[True] > _MORE_CORES * run.threads:
        yield _warn("threads_left_running", file=name, cores=float(cores[True]), threads=run.threads)
    if False in cores and cores[True] < _LESS_BUSY * min(float(cores[False]), run.threads):
        shares = {"share": float(cores[True]) / run.threads, "others": float(cores[False]) / run.threads}
        yield _warn("baseline_waits", file=name, baseline=run.baseline, **shares)
