"""Tables fit the terminal and say the same in every format; programs get full precision."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures_records import (
    BASELINE,
    DRAFTED,
    EXITING,
    KOALA,
    MT_BENCH,
    RUN,
    baseline_row,
    drafted_row,
    method,
    usual_rows,
    write,
)

from benchctl.analysis.tables.text import Format, summary
from benchctl.records.schema import Row, Run

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
FORMATS: tuple[Format, ...] = ("table", "brief", "md", "csv", "json")


def _text(tmp_path: Path, format: Format = "table", rows: list[Row] | None = None, run: Run = RUN) -> str:
    found = summary([write(tmp_path / "run.jsonl", usual_rows() if rows is None else rows, run)], format)
    return _ANSI.sub("", found)


def _cells(text: str, name: str) -> list[list[str]]:
    """The words of each line of a method without those of its options, which stand beside the name if there is room."""
    found = [line.split() for line in text.splitlines() if line.split()[:1] == [name]]
    return [[word for word in words if "=" not in word] for words in found]


def _broken(row: Row) -> Row:
    return replace(row, verdict="lossy", first_divergence=1) if row.label == DRAFTED else row


def _figures(tmp_path: Path, rows: list[Row] | None = None, run: Run = RUN) -> dict[str, dict[str, Any]]:
    methods = json.loads(_text(tmp_path, "json", rows, run))["groups"][0]["suites"][-1]["methods"]
    return {method["label"]: method for method in methods}


def test_the_table_holds_every_figure_and_names_the_baseline(tmp_path: Path) -> None:
    text = _text(tmp_path, rows=[of(f"p{n}") for n in range(5) for of in (baseline_row, drafted_row)])
    heading = "Baseline autoregressive on reference (12 layers), eager executor, float32, cpu, 1 thread, greedy"
    assert heading in " ".join(text.split())
    lines = _cells(text, "two_model")
    assert lines[0] == ["two_model", "1.67x", "[1.67,", "1.67]", "2.00x", "1.5", "500.00", "2000.0", "5"]
    assert lines[1] == ["two_model", *["1.67x", "[1.67,", "1.67]"] * 2]
    assert lines[2] == ["two_model", "2.00", "1.00", "0.333", "1.000"]
    assert lines[3] == ["two_model", "1.000", "5", "0", "0", "0", "exact", "yes"]


def test_the_table_fits_80_columns_and_cuts_no_label(tmp_path: Path) -> None:
    label = "early_exit[confidence=softmax_gap,threshold=0.95,kv=deferred_exact]"
    rows = [replace(row, label=label) if row.label == DRAFTED else row for row in usual_rows()]
    run = replace(RUN, methods=(*RUN.methods, method(label, "exact_greedy")))
    text = _text(tmp_path, rows=rows, run=run)
    assert max(map(len, text.splitlines())) <= 80
    joined = "".join(text.partition("Ratios of sums")[0].split())
    assert [joined.count(part) for part in ("confidence=softmax_gap", "threshold=0.95", "kv=deferred_exact")] == [4] * 3


@pytest.mark.slow
def test_options_stand_beside_the_name_where_the_screen_has_room(tmp_path: Path) -> None:
    """Twelve methods with an option on each line made five hundred lines of a comparison, on any screen."""
    label = "early_exit[confidence=softmax_gap,threshold=0.95]"
    rows = [replace(row, label=label) if row.label == DRAFTED else row for row in usual_rows()]
    path = write(tmp_path / "run.jsonl", rows, replace(RUN, methods=(*RUN.methods, method(label, "exact_greedy"))))
    for width in range(
        95, 161
    ):  # one column more or less of room, and lines were broken again where they had been filled
        lines = _ANSI.sub("", summary([path], width=width)).splitlines()
        named = [line.strip() for line in lines if re.match(r" ?(confidence|threshold)=", line)]
        assert all(line.startswith(" ") for line in lines if line.strip() in named), width
        assert max(map(len, lines)) <= width
    assert sum(line.startswith("early_exit confidence=softmax_gap threshold=0.95 ") for line in lines) == 4


def test_a_single_prompt_has_no_interval(tmp_path: Path) -> None:
    rows = [baseline_row(), drafted_row()]
    assert "1.67x n/a (1 prompt)" in _text(tmp_path, rows=rows)
    assert _figures(tmp_path, rows)[DRAFTED]["metrics"]["speedup"] == {
        "value": 10 / 6,
        "low": None,
        "high": None,
        "unit": "ratio",
        "better": "higher",
    }


def _checked(lost: int) -> tuple[list[Row], Run]:
    """All 20 answers of the baseline and the drafting method are right; the lossy one's are wrong on the first few."""
    rows = [
        replace(row, text="7" if row.label == EXITING and int(row.prompt_id[1:]) < lost else "4")
        for row in usual_rows()
    ]
    return rows, replace(RUN, suites=(replace(KOALA, exact_answers={f"p{n}": ("4",) for n in range(20)}),))


def test_the_loss_of_a_lossy_method_is_shown_with_interval_and_count(tmp_path: Path) -> None:
    rows, run = _checked(lost=5)
    text = _text(tmp_path, rows=rows, run=run)
    assert max(map(len, text.splitlines())) <= 80
    table = text[text.index("Exact match") :]
    assert re.search(r"autoregressive +1\.000 \[1\.000, 1\.000\] +baseline +20\n", table)
    assert re.search(r"two_model[^\n]* 1\.000 \[1\.000, 1\.000\] +\+0\.000 \[\+0\.000, \+0\.000\] +20\n", table)
    assert re.search(r"early_exit +0\.750 \[0\.\d+, 0\.\d+\] +-0\.250 \[-0\.\d+, -0\.\d+\] +20\n", table)
    assert re.search(r"\| \+0\.000 \[\+0\.000, \+0\.000\] \| 20 \|", _text(tmp_path, "md", rows, run))
    lost = _figures(tmp_path, rows, run)[EXITING]
    assert (lost["metrics"]["exact_match"]["value"], lost["checked_prompts"]) == (0.75, 20)
    assert lost["metrics"]["exact_match_difference"]["high"] < 0
    line = list(csv.DictReader(io.StringIO(_text(tmp_path, "csv", rows, run))))[2]
    assert (line["exact_match"], line["exact_match_difference"], line["checked_prompts"]) == ("0.75", "-0.25", "20")


@pytest.mark.parametrize("format", ["table", "md"])
def test_exact_match_is_left_out_where_there_is_nothing_to_check(tmp_path: Path, format: Format) -> None:
    assert "exact match" not in _text(tmp_path, format).lower()
    assert _figures(tmp_path)[DRAFTED]["metrics"]["exact_match"]["value"] is None


def test_json_has_full_precision_and_no_number_that_json_lacks(tmp_path: Path) -> None:
    figures = _figures(tmp_path)
    speedup = figures[DRAFTED]["metrics"]["speedup"]
    assert speedup["low"] < speedup["value"] < speedup["high"]
    assert speedup["value"] != round(speedup["value"], 6)
    assert figures[BASELINE]["metrics"]["acceptance_rate"]["value"] is None
    assert "NaN" not in _text(tmp_path, "json")


def test_csv_has_a_line_per_suite_and_method_with_the_figures_of_json(tmp_path: Path) -> None:
    both = usual_rows(3) + [replace(row, suite="mt-bench") for row in usual_rows(3)]
    run = replace(RUN, suites=(KOALA, MT_BENCH))
    lines = list(csv.DictReader(io.StringIO(_text(tmp_path, "csv", both, run))))
    assert [line["suite"] for line in lines] == ["koala"] * 3 + ["mt-bench"] * 3 + ["all suites"] * 3
    figures = _figures(tmp_path, both, run)
    for line in lines[-3:]:
        for name, figure in figures[line["label"]]["metrics"].items():
            assert line[name] == ("" if figure["value"] is None else str(figure["value"]))
    assert lines[1]["lossless"] == "True" and lines[1]["identical"] == "3"


@pytest.mark.parametrize("format", FORMATS)
def test_no_format_lets_an_embedded_sample_pass_for_the_published_suite(tmp_path: Path, format: Format) -> None:
    text = _text(tmp_path, format, run=replace(RUN, suites=(replace(KOALA, source="embedded"),)))
    assert "embedded" in text


def test_in_brief_there_is_one_table_of_all_suites_together(tmp_path: Path) -> None:
    both = usual_rows(3) + [replace(row, suite="mt-bench") for row in usual_rows(3)]
    text = _text(tmp_path, "brief", both, replace(RUN, suites=(KOALA, MT_BENCH)))
    figures = _figures(tmp_path, both, replace(RUN, suites=(KOALA, MT_BENCH)))
    lines = {words[0]: words[1:] for line in text.splitlines() if len(words := line.split()) > 4}
    pooled = figures[EXITING]["metrics"]
    speed, tokens, agreed = (pooled[name] for name in ("speedup", "tokens_per_s", "token_agreement"))
    spread = [f"{speed['value']:.2f}x", f"[{speed['low']:.2f},", f"{speed['high']:.2f}]"]
    assert lines[EXITING] == [*spread, f"{tokens['value']:.1f}", f"{agreed['value']:.3f}", "–", "no"]
    assert lines["two_model"][-3:] == ["1.000", "–", "yes"]
    assert text.count("\ntwo_model ") == text.count("\nearly_exit ") == 1


@pytest.mark.parametrize("format", ["table", "brief", "md"])
def test_warnings_stand_below_the_table(tmp_path: Path, format: Format) -> None:
    broken = [_broken(row) for row in usual_rows()]
    text = " ".join(_text(tmp_path, format, broken).split())
    assert f"{DRAFTED} claims to be exact" in text
    assert text.index("claims to be exact") > text.index("lossless")


def test_sampled_answers_have_a_column_of_their_own_and_no_agreement(tmp_path: Path) -> None:
    rows = [replace(row, verdict="sampled", first_divergence=None) if row.verdict else row for row in usual_rows()]
    text = _text(tmp_path, rows=rows, run=replace(RUN, temperature=0.7, top_p=0.9, top_k=50))
    assert "temperature 0.7, top-p 0.9, top-k 50" in " ".join(text.split())
    line = _cells(text, "two_model")[3]
    assert line == ["two_model", "20", "0", "exact", "–"]


@pytest.mark.parametrize("format", FORMATS)
def test_groups_that_are_not_comparable_name_what_differs(tmp_path: Path, format: Format) -> None:
    one = write(tmp_path / "1.jsonl", usual_rows())
    two = write(tmp_path / "2.jsonl", usual_rows(), replace(RUN, threads=2, dtype="bfloat16"))
    text = summary([one, two], format)
    if format in ("table", "brief", "md"):
        plain = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
        assert "bfloat16, there float32; threads is 2" in plain
    elif format == "json":
        differs = [group["differs_from_first_group"] for group in json.loads(text)["groups"]]
        assert [[found["field"] for found in fields] for fields in differs] == [[], ["dtype", "threads"]]
    else:
        assert [line["group"] for line in csv.DictReader(io.StringIO(text))] == ["1"] * 3 + ["2"] * 3
