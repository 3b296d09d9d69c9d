"""Speed-ups of several machines are put together, with the machines as a level; their times are not."""

import json
from dataclasses import replace

import numpy as np
import pytest
from compared import file_of
from fixtures_records import DRAFTED, RUN, baseline_row, drafted_row
from scipy import stats

from benchctl.analysis.comparison import compare
from benchctl.analysis.machines import pooled_speedups
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.tables.text import render
from benchctl.records.writer import RunFile

MACHINES = (("a", 1.0), ("b", 2.0))


def machine(cpu: str, step_s: float, **changes: object) -> RunFile:
    """Measured on this processor, whose baseline takes this long for a step."""
    rows = [row for prompt in ("p0", "p1") for row in (baseline_row(prompt, step_s=step_s), drafted_row(prompt))]
    run = replace(RUN, machine={**RUN.machine, "cpu": cpu}, **changes)  # type: ignore[arg-type]
    return file_of(rows, run, f"{cpu}-{run.threads}.jsonl")


def test_the_interval_is_students_t_over_the_machines_logarithms() -> None:
    groups = compare([machine("a", 1.0), machine("b", 2.0), machine("c", 1.5)])
    speedups = [group.pooled.methods[1].estimate(SPEEDUP).value for group in groups]
    assert len(groups) == 3 and len(set(speedups)) == 3
    (pooled,) = pooled_speedups(groups)
    logs = np.log(np.array(speedups, dtype=float))
    low, high = stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs))
    assert (pooled.label, pooled.each) == (DRAFTED, tuple(speedups))
    assert pooled.value == pytest.approx(stats.gmean(speedups))
    assert (pooled.interval.low, pooled.interval.high) == pytest.approx((np.exp(low), np.exp(high)))


def test_only_machines_are_put_together() -> None:
    same, slower = machine("a", 1.0), machine("b", 2.0)
    assert pooled_speedups(compare([same])) == ()
    assert pooled_speedups(compare([same, machine("b", 2.0, threads=2)])) == ()
    groups = compare([same, slower, machine("c", 1.0, threads=2)])
    assert [len(each.each) for each in pooled_speedups(groups)] == [2]
    document = json.loads(render(groups, "json"))
    assert [each["label"] for each in document["machines"]] == [DRAFTED] and len(document["groups"]) == 3
    assert "Several machines" in render(groups) and "machines" not in json.loads(render(compare([same]), "json"))


def test_a_sweep_of_two_settings_pools_the_machines_of_each() -> None:
    """Those of the second were left out without a word."""
    groups = compare([machine(cpu, step_s, threads=threads) for threads in (1, 2) for cpu, step_s in MACHINES])
    assert len(groups) == 4
    first, second = pooled_speedups(groups)
    assert first.label == second.label == DRAFTED and first.of != second.of
    assert [len(each.each) for each in (first, second)] == [2, 2]
    assert f"as {second.of}" in render(groups)


def test_one_machine_with_other_modules_is_no_further_machine() -> None:
    """Modules count only where both runs have their label, so each fits the first file, but not the other."""

    def drafting(cpu: str, sha256: str) -> RunFile:
        methods = tuple(replace(each, modules_sha256=sha256 if each.label == DRAFTED else "") for each in RUN.methods)
        return machine(cpu, 2.0, methods=methods)

    alone = machine("a", 1.0, methods=RUN.methods[:1])
    groups = compare([alone, drafting("b", "1" * 64), drafting("b", "2" * 64)])
    assert len(groups) == 3 and pooled_speedups(groups) == ()
