"""docs/file-format.md says what files hold: each field of the schemas and no other, names in maps, exit codes."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from documents import DOCS, blocks

from benchctl.analysis.comparison import compare
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.cli import VERBS
from benchctl.decoding.experts.fast_tier import Counts
from benchctl.decoding.phases import PHASES, UNSPLIT
from benchctl.measuring.machine.gpu import GpuMoment, conditions
from benchctl.measuring.machine.host import CpuMoment, between, machine_facts, versions
from benchctl.records.schema import Row, Run, json_schema
from benchctl.records.scores import Score
from benchctl.records.writer import read

PAGE = DOCS / "file-format.md"
TEXT = PAGE.read_text(encoding="utf-8")
RECORDS = ("Run", "ModelInfo", "SuiteInfo", "MethodInfo", "EngineInfo", "Row", "Totals", "Score")


def section(heading: str) -> str:
    """What stands below a heading, up to the next one."""
    return re.split(r"^#+ ", TEXT.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def table(heading: str) -> list[list[str]]:
    """The cells of the rows of a section's table, its head left out."""
    lines = re.findall(r"^\|(.*)\|$", section(heading), re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


def schemas() -> dict[str, Any]:
    """The records by name, as JSON Schema."""
    results, scores = json.loads(json_schema(Run, Row)), json.loads(json_schema(Score))
    return {**results["$defs"], **scores["$defs"]}


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_of_a_record_is_named_once_with_a_type_and_a_choice_of_words_is_shown_whole(record: str) -> None:
    assert sorted(schemas()) == sorted(RECORDS)
    rows, fields = table(f"`{record}`"), schemas()[record]["properties"]
    assert all(len(row) == 3 and row[1] for row in rows)
    named = [(name, row) for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(name for name, _ in named) == sorted(fields)
    for name, row in named:
        words = [word for part in (fields[name], *fields[name].get("anyOf", ())) for word in part.get("enum", ())]
        for word in words:
            if name != "kind" and isinstance(word, str) and word:
                assert f"`{word}`" in row[2], (name, word)


def named_in_maps(word: str) -> set[str]:
    """What the paragraph on one of a row's maps names."""
    (paragraph,) = re.findall(rf"^\*\*`{word}`\*\*.*?(?=\n\n)", section("`Row`"), re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`(\w+)`", paragraph)) - {word}


def test_the_counters_and_conditions_are_those_of_loading_experts_and_of_machines() -> None:
    others = {"prefill_loads", "prefill_stall_s", "expert_bytes", "bandwidth_mb_s"}
    assert named_in_maps("counters") == {*Counts().as_numbers(), *others}
    gpu = GpuMoment(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1, 1)
    cpu = [CpuMoment(at_s, 1.0, 1.0, {0: 1.0}, {"package": 1.0}, {"package": 9.0}) for at_s in (0.0, 1.0)]
    seen = {"sentinel_s"} | conditions(gpu, gpu).keys() | between(*cpu).keys()
    assert named_in_maps("conditions") == seen - {"energy_j"}  # a field of its own


def test_the_phases_and_the_facts_of_a_machine_are_named() -> None:
    phases, machine, programs = (
        next(row[2] for row in table(f"`{record}`") if row[0] == f"`{field}`")
        for record, field in (("Row", "phases"), ("Run", "machine"), ("Run", "versions"))
    )
    assert {*re.findall(r"`(\w+)`", phases)} - {"profile"} == {*PHASES, UNSPLIT}
    others = {"memory_bandwidth_mb_s", "one_row_cost", "stop_ids_from"}
    assert {*re.findall(r"`(\w+)`", machine)} == {*machine_facts("cpu"), *others}
    assert all(name in programs for name in versions())


@pytest.mark.slow
def test_the_lines_for_pandas_give_the_speedups_of_compare(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio of sums, computed by nothing of benchctl."""
    monkeypatch.chdir(root)
    (code,), printed = blocks(PAGE, "python"), StringIO()
    assert len(re.sub(r"^import.*\n", "", code).strip().splitlines()) <= 5
    with redirect_stdout(printed):
        exec(compile(code, str(PAGE), "exec"), {})
    shown = dict(re.findall(r"^(\S.*?) +([\d.]+)$", printed.getvalue(), re.MULTILINE))
    (group,) = compare([read("results/reference/embedded.jsonl")])
    expected = {method.label: method.estimate(SPEEDUP).value for method in group.pooled.methods}
    assert {label: float(value) for label, value in shown.items()} == pytest.approx(expected, rel=1e-5)


def test_exit_codes_and_versions_are_those_of_the_command_line_and_of_the_reader() -> None:
    rows = table("Exit codes")
    assert {row[0] for row in rows if row[0]} == {"0", "1", "2", "3", "4", "130"}
    assert {name for row in rows for name in re.findall(r"`(\w+)[ `]", row[1])} <= set(VERBS)
    versions_read = schemas()["Run"]["properties"]["schema_version"]["enum"]
    assert [row[0] for row in table("Versions")] == list(map(str, versions_read))
