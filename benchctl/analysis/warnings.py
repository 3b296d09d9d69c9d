"""What a reader should know before believing a group's figures, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from benchctl.analysis.frame.comparison import Group
from benchctl.analysis.frame.fidelity import broken, claims_exact, last_tries
from benchctl.analysis.frame.rounds import Round, stands_for
from benchctl.analysis.frame.rows import CONDITION, FIDELITY
from benchctl.analysis.frame.sessions import measured_apart_once
from benchctl.analysis.metrics.experts import THROTTLE
from benchctl.analysis.metrics.metric import EXACT_MATCH, EXACT_MATCH_DIFFERENCE
from benchctl.analysis.stats.bootstrap import Interval
from benchctl.analysis.stats.sweeps import best_of_sweeps
from benchctl.analysis.tables.judges import judge_cautions
from benchctl.analysis.tables.modes import mode_cautions
from benchctl.records.schema import UNKNOWN_TARGET, Run

UNJUDGED = 8  # rounds of a session that pass until what is usual is known: measuring.validity.ENOUGH
_UNSTEADY = 0.1  # by which the slowest twentieth of equal pieces of work may take longer than the median
_MOST_WAITED = 0.05  # of the time ready to run, but without a core: from here on figures are partly others' doing

_JUDGED = (CONDITION + "waited_share", CONDITION + "foreign_cores")  # what rounds are judged by


def left_out(group: Group) -> Iterator[str]:
    """Rounds measured out of bounds, and how many of them another measurement stands in for; of that which spoke
    against one, what the free rows tell."""
    doubted = group.frame[group.frame["round_invalid"]]
    if doubted.empty:
        return
    told = doubted[doubted["invalid"] != ""]
    first = (doubted if told.empty else told).iloc[0]
    why = f"{first['suite']}/{first['prompt_id']}: {first['invalid'] or 'see its rows of other modes'}"
    planned = planned_rounds(group)
    count, good = int(planned["doubted"].sum()), int((planned["doubted"] & planned["good"]).sum())
    left = "was" if count == 1 else "were"
    again = f" {good} of them {'was' if good == 1 else 'were'} measured again, within bounds." if good else ""
    mend = "" if good == count else " Free the machine, and run again or go on with --resume."
    yield (
        f"{count} of {len(planned)} rounds {left} left out of all figures but the counts of verdicts, for all methods "
        f"alike, measured out of bounds, the first on {why}.{again}{mend}"
    )


def planned_rounds(group: Group) -> pd.DataFrame:
    """The rounds that were to be measured: whether any try of one was `doubted`, and any `good`: in bounds, with as
    many answers as any try of it has. So one that a kill cut short, or in which more failed, makes up for nothing."""
    places = list(Round._fields)
    answers = group.frame[[*places, "round_invalid"]].assign(answered=group.frame["error"].isna())
    tried = answers.groupby(places, as_index=False)
    tries = tried.agg(doubted=("round_invalid", "any"), answered=("answered", "sum"))
    tries["repeat"] = stands_for(tries["repeat"], tries["file"].map(group.repeats))
    most = tries.groupby(places)["answered"].transform("max")
    return tries.assign(good=~tries["doubted"] & (tries["answered"] == most)).groupby(places)[["doubted", "good"]].any()


def disturbed(group: Group) -> Iterator[str]:
    """A load that lasted all the time is usual to its session, and marks nothing."""
    column = CONDITION + "waited_share"
    if column not in group.frame:
        return
    for number, file in enumerate(group.files):
        waited = group.frame.loc[group.frame["file"] == number, column].median()
        if waited > _MOST_WAITED:
            yield (
                f"{file.path}: half of its generations waited {waited:.0%} of the time or more for a core that others "
                "used: their times are partly those of the waiting. Stop other work and measure again."
            )


def unsteady(group: Group) -> Iterator[str]:
    """The sentinel is the same work every time; it marks nothing, see measuring.validity."""
    column = CONDITION + "sentinel_s"
    if column not in group.frame:
        return
    longer: dict[str, float] = {}
    for number, file in enumerate(group.files):
        told_s = group.frame.loc[group.frame["file"] == number, column].dropna()
        if len(told_s) and (more := float(told_s.quantile(0.95) / told_s.median()) - 1) > _UNSTEADY:
            longer[str(file.path)] = more
    if longer:
        low, high = (f"{end:.0%}" for end in (min(longer.values()), max(longer.values())))
        yield (
            f"{', '.join(longer)}: the machine was unsteady: beside every twentieth generation equal work took "
            f"{low if low == high else f'{low} to {high}'} longer than usual, or more. `benchctl doctor` says what to "
            "mend; more --repeats help."
        )


def hardly_judged(group: Group) -> Iterator[str]:
    """Rounds that are told of, but too few to be held against each other."""
    told = group.frame[[name for name in group.frame if name in _JUDGED]].notna().any(axis=1)
    for number, file in enumerate(group.files):
        of_file = group.frame[told & (group.frame["file"] == number)]
        sessions = of_file[list(Round._fields)].drop_duplicates().groupby("session").size()
        if len(sessions) and sessions.max() <= UNJUDGED:
            yield (
                f"{file.path}: the first {UNJUDGED} rounds of a session, warm-up included, only tell what is usual, so "
                f"of its {sessions.max()} hardly any could be judged: use more prompts or --repeats."
            )


def failed_controls(group: Group) -> Iterator[str]:
    """Answers behind which a control failed, as for lack of memory; what was timed of them stands."""
    for label, rows in last_tries(group.frame, group.repeats).groupby("label", sort=False):
        count = int((_told(rows, "failed_controls") > 0).sum())
        if count:
            yield (
                f"{label}: of {count} of {len(rows)} answers the verdict, or how near they are to the target, could "
                "not be found out, and the run said why. Their times count, but no claim rests on them: measure again "
                "with more memory to spare, or a smaller --max-new-tokens."
            )


def divergence_left_out(group: Group) -> Iterator[str]:
    """Answers that the mean KL leaves out, of those whose rounds are in figures at all."""
    for label, rows in group.frame[~group.frame["round_invalid"]].groupby("label", sort=False):
        kinds = ("kl_tokens", "kl_infinite_tokens", "kl_unrepeated_tokens")
        told, infinite, unrepeated = (int(_told(rows, name).notna().sum()) for name in kinds)
        if infinite or unrepeated:
            yield (
                f"{label}: its KL is of {told} of {told + infinite + unrepeated} answers. It is infinite for "
                f"{infinite}, and {unrepeated} were not given a second time: the others may be the better ones."
            )


def _told(rows: pd.DataFrame, name: str) -> pd.Series:
    found = rows.get(FIDELITY + name)
    return pd.Series(float("nan"), index=rows.index) if found is None else found.astype(float)


if TYPE_CHECKING:
    from benchctl.analysis.frame.comparison import Group


def imported(group: Group) -> Iterator[str]:
    """The cautions that stand beside imported figures."""
    if group.run.imported:
        yield (
            f"imported from files of {group.run.imported}, which hold no token ids: tokens and steps are as those "
            "programs counted them, perhaps past the stop token, there are no verdicts, and machine, warm-up and order "
            "are unknown. To publish a figure, measure it with `benchctl run`."
        )
        if group.run.target.name.startswith(UNKNOWN_TARGET):
            yield (
                "the target is unknown, so nothing tells whether these answers are of one and the same: name it with "
                "`benchctl import --target`, one import for each target."
            )


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
            "For the published ones set BENCHCTL_DATA or use --source published."
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
