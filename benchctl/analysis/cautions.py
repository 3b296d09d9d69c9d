"""What a reader should know before believing a group's figures, each with what to do about it."""

from collections.abc import Iterator, Sequence
from functools import partial

import pandas as pd

from benchctl.analysis.comparison import Group
from benchctl.analysis.doubts import disturbed, hardly_judged, left_out, planned_rounds, unsteady
from benchctl.analysis.fidelity import broken, claims_exact, last_tries
from benchctl.analysis.imported import imported
from benchctl.analysis.judge_tables import judge_cautions
from benchctl.analysis.loading import THROTTLE
from benchctl.analysis.metrics import EXACT_MATCH, EXACT_MATCH_DIFFERENCE
from benchctl.analysis.mode_tables import mode_cautions
from benchctl.analysis.sessions import measured_apart_once
from benchctl.analysis.stats import Interval
from benchctl.analysis.sweeps import best_of_sweeps
from benchctl.analysis.untold import divergence_left_out, failed_controls
from benchctl.records import Run

_FEW_PROMPTS = 10
_OTHER_LENGTH = 0.1  # share of the baseline's tokens by which a method's answers may be shorter or longer
_LITTLE_TO_LOSE = 0.2  # exact match of a baseline that a method could hardly fall below
_SPARE_CORES = 0.5  # how far the load may pass the cores before somebody has to wait


def cautions(group: Group, floor: float = 0.0) -> tuple[str, ...]:
    """Warnings about the figures of `group`, the gravest first. No difference in speed below `floor` is called one."""
    found = (
        imported,
        measured_apart_once,
        _broken_claims,
        _throttled,
        _other_lengths,
        _little_to_lose,
        _nothing_lost,
        _failures,
        failed_controls,
        left_out,
        mode_cautions,
        judge_cautions,
        _unsupported,
        _unfinished,
        partial(best_of_sweeps, floor=floor),
        _few_prompts,
        _batched,
        _few_batches,
        _one_repeat,
        _embedded,
        _loaded,
        disturbed,
        unsteady,
        hardly_judged,
        divergence_left_out,
        _mixed,
    )
    return tuple(caution for find in found for caution in find(group))


def _broken_claims(group: Group) -> Iterator[str]:
    for method in group.pooled.methods:
        wrong = broken(method.fidelity, group.run.dtype)
        if wrong and claims_exact(method.exactness, group.run.temperature):
            yield (
                f"{method.label} claims to be exact, but {_count(wrong, 'answer')} left the baseline's by more than "
                "rounding: a bug in the method. Do not use its figures; see its lossy or numeric rows."
            )


def _throttled(group: Group) -> Iterator[str]:
    for method in group.pooled.methods:
        if (limit := method.estimate(THROTTLE).value) is not None:
            yield (
                f"{method.label}: loading was throttled to {limit:g} MB/s. Its times are those of such a link, not of "
                "this machine; without bandwidth_mb_s the machine's own are measured."
            )


def _other_lengths(group: Group) -> Iterator[str]:
    for method in group.pooled.methods:
        tokens, usual = method.tokens, method.baseline_tokens
        if abs(tokens - usual) > _OTHER_LENGTH * usual:
            yield (
                f"{method.label} wrote {tokens} tokens where the baseline wrote {usual}: its speed-up is "
                "partly that of another length of text; compare tokens/s and TPOT instead."
            )


def _little_to_lose(group: Group) -> Iterator[str]:
    for method in group.pooled.methods:
        right = method.estimate(EXACT_MATCH).value
        if method.is_baseline and right is not None and right < _LITTLE_TO_LOSE:
            yield (
                f"the baseline itself is right on {right:.0%} of what can be checked, so exact match can show "
                "little loss: use a --model that masters these prompts, or a larger --max-new-tokens where answers "
                "are cut off."
            )


def _nothing_lost(group: Group) -> Iterator[str]:
    """No resample of answers that all agree loses one, so their interval says nothing: the rule of three does."""
    for method in group.pooled.methods:
        agree = method.estimate(EXACT_MATCH_DIFFERENCE).interval == Interval(0.0, 0.0)
        if agree and not method.is_baseline and not claims_exact(method.exactness, group.run.temperature):
            checked = method.checked_prompts
            yield (
                f"{method.label} lost no answer of {checked} that can be checked, which leaves room for a loss of up "
                f"to {min(3 / checked, 1):.0%} (95%): check more prompts to narrow it."
            )


def _failures(group: Group) -> Iterator[str]:
    tries = last_tries(group.frame, group.repeats)
    failed = tries[tries["error"].notna()]
    for label, rows in failed.groupby("label", sort=False):
        first = rows.iloc[0]
        yield (
            f"{label} failed on {_count(len(rows), 'generation')}, first on {first['suite']}/{first['prompt_id']}: "
            f"{first['error']}. They and their counterparts are left out; mend the cause and run again."
        )


def _unsupported(group: Group) -> Iterator[str]:
    for method in group.methods:
        if method.unsupported:
            yield f"{method.label} was not measured: {method.unsupported}."


def _unfinished(group: Group) -> Iterator[str]:
    for number, file in enumerate(group.files):
        asked = sum(suite.prompts for suite in file.run.suites)
        finished = _finished(group.frame[group.frame["file"] == number], file.run)
        if finished < asked:
            yield f"{file.path} has {finished} of {_count(asked, 'prompt')} in full: continue its run with --resume."


def _finished(frame: pd.DataFrame, run: Run) -> int:
    """Prompts that every method answered in every repeat, as far as the turns of a prompt can be told from its rows."""
    labels = sum(not method.unsupported for method in run.methods)
    planned = frame[frame["repeat"] < run.repeats]  # what was measured again makes up for nothing that is missing
    prompts = planned.groupby(["suite", "prompt_id"])["turn"].agg(["size", "nunique"])
    return int((prompts["size"] >= prompts["nunique"] * labels * run.repeats).sum())


def _few_prompts(group: Group) -> Iterator[str]:
    fewest = min(method.prompts for method in group.pooled.methods)
    if fewest < _FEW_PROMPTS:
        yield f"{_count(fewest, 'prompt')} cannot stand for a suite: raise --limit to {_FEW_PROMPTS} or more."


def _batched(group: Group) -> Iterator[str]:
    """A table of batches reads like any other, and half of its columns mean something else."""
    if group.run.batch_size > 1:
        yield (
            "prompts were decoded in batches, whose time counts once: speed-up and tokens/s are of whole batches, TPOT "
            "and TTFT (until all of a batch is prefilled) what an answer in a batch takes. For answers one by one use "
            "--batch-size 1."
        )


def _few_batches(group: Group) -> Iterator[str]:
    batches = len(group.frame.groupby(["suite", "batch"]))
    if group.run.batch_size > 1 and batches < _FEW_PROMPTS:
        yield (
            f"intervals rest on {_count(batches, 'batch')}, whose prompts are no measurements of their own: raise "
            f"--limit to {_FEW_PROMPTS * group.run.batch_size} or more."
        )


def _one_repeat(group: Group) -> Iterator[str]:
    if len(planned_rounds(group).groupby(["file", "session", "repeat"])) == 1:
        yield "each generation was timed once, so noise cannot be told from speed: use --repeats 2 or more."


def _embedded(group: Group) -> Iterator[str]:
    names = [suite.name for suite in group.run.suites if suite.is_sample]
    if names:
        yield (
            f"{', '.join(names)}: embedded samples in the manner of the published prompts, not to be quoted as those. "
            "For the published ones use --data-dir or --source published."
        )


def _loaded(group: Group) -> Iterator[str]:
    for file in group.files:
        load, cores = _first(file.run.machine.get("load_average")), file.run.machine.get("cores")
        if load is not None and isinstance(cores, int) and load + file.run.threads > cores + _SPARE_CORES:
            yield (
                f"{file.path}: the machine was busy at the start (load {load:.1f} on {_count(cores, 'core')}, of which "
                f"the run needs {file.run.threads}): stop other work and measure again."
            )


def _mixed(group: Group) -> Iterator[str]:
    for field in ("versions", "commit"):
        if any(getattr(file.run, field) != getattr(group.run, field) for file in group.files):
            yield f"the runs differ in {field}, which may be why their figures differ: measure all with one version."


def _first(value: object) -> float | None:
    numbers = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return float(numbers[0]) if numbers else None


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
