"""`benchctl simulate`: from a recorded trace to a table, each output labelled as a simulation."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny import tiny_folder

from benchctl.cli import main

SMALL = ("--tokens", "4", "--policy", "lru", "--policy", "oracle", "--bandwidth", "50000")


def _run(*arguments: object) -> tuple[int, str]:
    found = CliRunner().invoke(main, ["simulate", *map(str, arguments)])
    return found.exit_code, found.output


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moe")
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "Say something."}\n')
    model, out = tiny_folder(folder / "model", "olmoe", stop_ids=()), folder / "trace.jsonl"
    code, text = _run("record", "--model", model, "--bench", prompts, "--max-new-tokens", 4, "--out", out)
    assert code == 0, text
    assert "3 tokens of 1 answers" in text and "Measured: TPOT" in text
    return out


def test_a_recorded_trace_becomes_a_table_that_says_it_is_simulated(trace: Path) -> None:
    code, text = _run("offload", "--trace", trace)
    assert code == 0
    assert text.startswith("Simulation, not a measurement. expert_offload[prefetch=next_gate] on model")
    assert all(
        word in text for word in ("on_demand", "least_stale", "oracle", "recorded", "4 experts in the fast tier")
    )


def test_the_synthetic_trace_is_labelled_in_every_format() -> None:
    code, table = _run("offload", *SMALL)
    assert code == 0 and "synthetic routing" in table and "aot 0.9+0" in table
    assert max(map(len, table.splitlines())) <= 80
    lines = list(csv.DictReader(io.StringIO(_run("offload", *SMALL, "--format", "csv")[1])))
    assert {line["simulation"] for line in lines} == {"synthetic trace"}
    document = json.loads(_run("offload", *SMALL, "--format", "json")[1])
    assert document["simulation"] is True
    assert [(line["policy"], line["prefetch"]) for line in document["lines"]] == [
        (policy, prefetch) for policy in ("lru", "oracle") for prefetch in ("blocking", "none", "next", "aot")
    ]


def test_each_recall_bandwidth_and_capacity_is_a_line_of_its_own() -> None:
    asked = ("--tokens", 2, "--policy", "lru", "--prefetch", "aot", "--recall", 0.5, "--recall", 1, "--spare", 2)
    code, text = _run("offload", *asked, "--capacity", 200, "--capacity", 300, "--bandwidth", 9e4, "--format", "csv")
    assert code == 0
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [(line["capacity"], line["recall_assumed"], line["spare"]) for line in lines] == [
        (capacity, recall, "2") for capacity in ("200", "300") for recall in ("0.5", "1.0")
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--capacity", "4"), "capacity 4 is below the 8 experts that a token needs"),
        (("--prefetch", "recorded"), "the trace has no predictions"),
        (("--policy", "random"), "'random' is not one of"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments: tuple[str, ...], message: str) -> None:
    code, text = _run("offload", "--tokens", 2, *arguments)
    assert code == 2
    assert message in text
