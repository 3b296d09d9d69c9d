"""`benchctl compare --check` names what cannot be true, and the schema has the same rules for other programs."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from command import cli, ok
from fixtures_records import RUN, baseline_row, batch, drafted_row, exiting_row, failed, usual_rows, write
from jsonschema import Draft202012Validator

from benchctl.records.schema import Row, Run, Totals, to_line

Fields = dict[str, Any]
_compare = partial(cli, "compare")
_check = partial(_compare, "--check")


def test_valid_files_are_counted(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.jsonl", usual_rows(n)) for n in (1, 2)]
    result = ok(_check(tmp_path / "*.jsonl"))
    assert result.stdout.splitlines() == [
        f"{path}: valid, {3 * n} generations, 3 labels, schema 6." for n, path in enumerate(paths, 1)
    ]


def test_every_invalid_file_is_named_with_its_line_and_the_valid_ones_are_still_counted(tmp_path: Path) -> None:
    """A file of somebody else, a line of one (which was only said to lack a suite), NaN for a time, a negative number
    of steps, counts that break the identity, and a file in which another run begins."""
    rows = usual_rows(3)
    good = write(tmp_path / "good.jsonl", rows)
    lines = good.read_bytes().splitlines(keepends=True)
    assert b'"ttft_s":2.0' in lines[2] and b'"committed":[2' in lines[2] and b'"accepted":[1' in lines[2]
    broken = {
        "theirs": (b'{"question_id": 81}\n', ":1: is not the start of a benchctl run"),
        "line": (b'{"question_id": 81}\n', ":3: has no suite, so it is no generation of this run. Remove this line"),
        "nan": (lines[2].replace(b'"ttft_s":2.0', b'"ttft_s":NaN'), ":3: Invalid JSON"),
        "negative": (lines[2].replace(b'"committed":[2', b'"committed":[-2'), ":3: committed[0]: "),
        "identity": (lines[2].replace(b'"accepted":[1', b'"accepted":[3'), ":3: step 0: 2 committed, 3 accepted"),
        "mixed": (lines[0], ":3: another run begins here. Give every run a file of its own."),
    }
    for name, (line, _) in broken.items():
        whole = line if name == "theirs" else b"".join([*lines[:2], line, *lines[3:]])
        (tmp_path / f"{name}.jsonl").write_bytes(whole)
    result = _check(good, *(tmp_path / f"{name}.jsonl" for name in broken))
    assert result.exit_code == 3
    assert result.stdout == f"{good}: valid, 9 generations, 3 labels, schema 6.\n"
    for message, (name, (_, problem)) in zip(result.stderr.splitlines(), broken.items(), strict=True):
        assert message.startswith(f"Error: {tmp_path / name}.jsonl{problem}")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (replace(baseline_row(), mode="replay"), "a row of mode replay in a run of mode free"),
        (replace(failed(baseline_row()), error=None, totals=Totals(new_tokens=3)), "totals without"),
    ],
)
def test_rows_that_are_not_of_their_run_are_named(tmp_path: Path, row: Row, problem: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(to_line(RUN) + to_line(row))
    result = _check(path)
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"run.jsonl:2: {problem}" in result.stderr


def test_a_file_that_cannot_be_read_is_wrong_usage_and_an_invalid_one_counts_more(tmp_path: Path) -> None:
    missing, theirs = tmp_path / "missing.jsonl", tmp_path / "theirs.jsonl"
    theirs.write_text("{}\n")
    assert [_check(*files).exit_code for files in ((), (missing,), (missing, theirs))] == [2, 2, 3]


def test_a_torn_last_line_is_no_fault_but_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", usual_rows(1))
    path.write_bytes(path.read_bytes()[:-9])
    result = ok(_check(path))
    assert "valid, 2 generations" in result.stdout and "the last line is torn" in result.stdout


@pytest.mark.parametrize(("name", "schema"), [("default", 3), ("m2r2-aot", 4)])
def test_files_that_older_versions_wrote_are_valid_also_by_the_schema(root: Path, name: str, schema: int) -> None:
    path = root / "results" / "reference" / f"{name}.jsonl"
    result = ok(_check(path))
    assert all("m2r2_prefetch" in line for line in result.stderr.splitlines())
    assert result.stdout.endswith(f"schema {schema}.\n")
    lines = path.read_bytes().splitlines()
    for line in (lines[0], lines[1], lines[-1]):
        assert list(_schema().iter_errors(json.loads(line))) == []


@cache
def _schema() -> Draft202012Validator:
    schema = json.loads(_compare("--schema", "results").stdout)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize(
    "record",
    [
        RUN,
        replace(RUN, imported="medusa", threads=0),
        replace(RUN, draft=RUN.target, batch_size=4, modes=("free", "replay"), context_fill=9),
        baseline_row(),
        drafted_row(),
        exiting_row(),
        failed(baseline_row()),
        batch(baseline_row("p0"), baseline_row("p1"))[0],
        replace(drafted_row(steps=1), mode="profile", phases={"draft": (0.5,)}, conditions={"clock_mhz": 1.0}),
        replace(failed(baseline_row()), error=None, totals=Totals(new_tokens=5, steps=2, wall_s=0.5)),
    ],
)
def test_the_schema_accepts_what_is_written(record: Run | Row) -> None:
    assert list(_schema().iter_errors(json.loads(to_line(record)))) == []


def _set(name: str, value: object) -> Callable[[Fields], None]:
    return lambda line: line.update({name: value})


def _without(name: str) -> Callable[[Fields], object]:
    return lambda line: line.pop(name)


@pytest.mark.parametrize("change", [
    _set("ttft_s", -1.0), _set("ttft_s", "2"), _set("step_s", [1.0, -1.0]), _set("committed", [0]),
    _set("drafted", [-1]), _set("accepted", [0.5]), _set("token_ids", ["a"]), _set("layers", 12), _set("turn", -1),
    _set("kind", "walk"), _set("mode", "fast"), _set("verdict", "fine"), _set("stop_reason", "tired"),
    _set("wonder", 1), _set("totals", {"new_tokens": -1}), _set("counters", {"loads": -1.0}), _set("energy_j", -1),
    _set("label", None), _without("label"), _without("prompt_id"), _without("repeat"),
])  # fmt: skip
def test_the_schema_refuses_what_a_row_refuses(change: Callable[[Fields], object], tmp_path: Path) -> None:
    """As far as a schema can: it knows each field, and not how they add up."""
    refused(baseline_row(), change, tmp_path, to_line(RUN), to_line(baseline_row("p1")))


@pytest.mark.parametrize("change", [
    _set("threads", -1), _set("schema_version", 7), _set("top_p", 0), _set("repeats", 0), _set("batch_size", 0),
    _set("modes", ["fast"]), _set("suites", [{"name": "koala"}]), _set("wonder", 1), _without("baseline"),
    _without("machine"),
])  # fmt: skip
def test_the_schema_refuses_what_a_run_refuses(change: Callable[[Fields], object], tmp_path: Path) -> None:
    refused(RUN, change, tmp_path)


def refused(
    record: Run | Row, change: Callable[[Fields], object], folder: Path, before: bytes = b"", after: bytes = b""
) -> None:
    """By the schema, and by the verb in a file between other lines."""
    line = json.loads(to_line(record))
    change(line)
    assert not _schema().is_valid(line)
    (folder / "run.jsonl").write_bytes(before + json.dumps(line).encode() + b"\n" + after)
    assert _check(folder / "run.jsonl").exit_code == 3
