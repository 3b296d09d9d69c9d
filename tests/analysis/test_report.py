"""The answer first, tables that fit the terminal, the same figures in every format, full precision for programs."""

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
from refusals import refused

from benchctl.analysis.comparison import compare
from benchctl.analysis.tables.grids import Grid, Paragraph, markdown, tex
from benchctl.analysis.tables.text import Format, View, render
from benchctl.analysis.warnings import _TEMPLATES
from benchctl.records.schema import Row, Run, Verdict
from benchctl.records.writer import read

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
BRIEF, FULL = View(), View(full=True)
FORMATS: tuple[Format, ...] = ("table", "md", "tex", "csv", "json")
LONG = "early_exit[confidence=softmax_gap,threshold=0.95,kv=deferred_exact]"


def _text(
    tmp_path: Path, format: Format = "table", rows: list[Row] | None = None, run: Run = RUN, view: View = BRIEF
) -> str:
    file = read(write(tmp_path / "run.jsonl", usual_rows() if rows is None else rows, run))
    return _ANSI.sub("", render(compare([file]), format, view))


def _cells(text: str, name: str) -> list[list[str]]:
    """The words of each line of a table that begins with this name."""
    return [words for line in text.splitlines() if (words := line.split())[:1] == [name] and len(words) > 3]


def _broken(row: Row) -> Row:
    return replace(row, verdict="lossy", first_divergence=1) if row.label == DRAFTED else row


def _figures(tmp_path: Path, rows: list[Row] | None = None, run: Run = RUN) -> dict[str, dict[str, Any]]:
    methods = json.loads(_text(tmp_path, "json", rows, run))["groups"][0]["suites"][-1]["methods"]
    return {method["label"]: method for method in methods}


def _two_long_labels() -> tuple[list[Row], Run]:
    """The drafting method under a long label, and under another one with another threshold."""
    labels = [LONG, LONG.replace("0.95", "0.5")]
    rows = [row for row in usual_rows() if row.label != EXITING]
    rows = [replace(row, label=label) for row in rows for label in (labels if row.label == DRAFTED else [row.label])]
    return rows, replace(RUN, methods=(RUN.methods[0], *(method(label, "exact_greedy") for label in labels)))


def _two_suites() -> tuple[list[Row], Run]:
    rows = usual_rows(3) + [replace(row, suite="mt-bench") for row in usual_rows(3)]
    return rows, replace(RUN, suites=(KOALA, MT_BENCH))


def test_the_answer_comes_first_in_few_lines(tmp_path: Path) -> None:
    """Two lines of heading, one table, two lines of summary."""
    rows = [replace(row, repeat=repeat) for row in usual_rows() for repeat in (0, 1)]
    lines = _text(tmp_path, rows=rows, view=View(width=120)).splitlines()
    assert len(lines) == 11 and max(map(len, lines)) <= 120
    assert "20 prompts, 1 session" in lines[0] and "float32, cpu, 1 thread, greedy" in lines[1]
    assert lines[7].split() == ["two_model", "draft_tokens=3", "1.59x", "[1.57,", "1.61]", "1.4", "1.000", "yes"]
    assert lines[10].startswith("two_model ") and "1.59x [1.57, 1.61]" in lines[10]


def test_the_heading_counts_files_and_the_suites_that_were_measured(tmp_path: Path) -> None:
    """A line too long named one file of three, and an unfinished run of five samples was of 3 suites (5 embedded)."""
    files = [read(write(tmp_path / f"{'long' * 5}-{number}.jsonl", usual_rows())) for number in range(3)]
    heads = [render(compare(files), "table", View(width=width)).splitlines()[0] for width in (120, 60)]
    assert [head.partition(":")[0] for head in heads] == [f"{'long' * 5}-0.jsonl and 2 more", "3 files"]
    samples = [replace(KOALA, name=name, source="embedded") for name in ("a", "b", "c")]
    rows = [replace(row, suite=name) for name in ("a", "b") for row in usual_rows(3)]
    assert ": 2 suites (embedded), " in _text(tmp_path, rows=rows, run=replace(RUN, suites=tuple(samples)))


def test_fidelity_is_target_agreement_where_it_was_measured(tmp_path: Path) -> None:
    scored = {"target_agreed_tokens": 6.0, "scored_tokens": 8.0}
    rows = [replace(row, fidelity=scored) if row.label == EXITING else row for row in usual_rows()]
    figure = _figures(tmp_path, rows)[EXITING]["metrics"]["target_agreement"]["value"]
    assert figure is not None and _cells(_text(tmp_path, rows=rows), EXITING)[0][-2] == f"{figure:.3f}"
    assert _cells(_text(tmp_path), EXITING)[0][-2] == "0.183"


def test_the_full_view_has_every_table_and_label(tmp_path: Path) -> None:
    text = _text(tmp_path, rows=[of(f"p{n}") for n in range(5) for of in (baseline_row, drafted_row)], view=FULL)
    lines = _cells(text, "two_model")
    assert lines[2] == ["two_model", "1.67x", "[1.67,", "1.67]", "2.00x", "1.5", "500.00", "2000.0", "5"]
    assert lines[3] == ["two_model", "draft_tokens=3", *["1.67x", "[1.67,", "1.67]"] * 2]
    assert lines[4] == ["two_model", "draft_tokens=3", "2.00", "1.00", "0.333", "1.000"]
    assert lines[5] == ["two_model", "1.000", "5", "0", "0", "0", "exact", "yes"]
    assert "Labels:" not in text  # the table has them whole


def test_rows_and_columns_that_contain_nothing_are_left_out_of_the_full_view(tmp_path: Path) -> None:
    """Only the baseline's energy is known: its table has one row and one column."""
    rows = [replace(row, energy_j=1.0) if row.label == BASELINE else row for row in usual_rows()]
    machine = _text(tmp_path, rows=rows, view=FULL).partition("Machine")[2].partition("\n\n")[0]
    assert [words[0] for line in machine.splitlines()[2:] if (words := line.split())][-1] == BASELINE
    assert DRAFTED.partition("[")[0] not in machine and EXITING not in machine


@pytest.mark.parametrize("width", [60, 80, 97, 140])
@pytest.mark.parametrize("full", [True, False])
def test_a_table_fits_the_terminal_and_breaks_no_word(tmp_path: Path, full: bool, width: int) -> None:
    """Labels that differ in one option show only that; a wide table becomes several."""
    rows, run = _two_long_labels()
    text = _text(tmp_path, rows=rows, run=run, view=View(full=full, width=width))
    assert max(map(len, text.splitlines())) <= width
    assert all(re.search(rf"early_exit threshold={threshold} ", text) for threshold in ("0.95", "0.5"))
    assert (LONG in "".join(text.split())) == full


@pytest.mark.parametrize("letter", ["m", "模"])
def test_no_figure_is_cut_by_the_name_of_a_suite(tmp_path: Path, letter: str) -> None:
    """A letter may take two places in a terminal."""
    suites = tuple(replace(RUN.suites[0], name=letter * number) for number in (20, 45))
    rows = [replace(row, suite=suite.name) for suite in suites for row in usual_rows()]
    view = View(width=80, by_suite=True, names={DRAFTED: letter * 16})
    assert "…" not in _text(tmp_path, rows=rows, run=replace(RUN, suites=suites), view=view)


def test_what_means_something_in_markdown_and_latex_is_escaped() -> None:
    parts: list[Paragraph | Grid] = [
        Grid("", ("name", "x"), {"": (("a|b", "1"),)}),
        Paragraph(("one\ntwo",), "warning"),
    ]
    assert "| a\\|b | 1 |" in markdown(parts)
    assert "% one\n% two" in tex(parts)


def test_a_name_longer_than_half_the_terminal_is_cut_and_no_figure_is(tmp_path: Path) -> None:
    """A name of 83 characters, as imported files have, once left two characters to each figure."""
    name = "m" * 83
    text = _text(tmp_path, view=View(width=80, names={DRAFTED: name}))
    assert max(len(line) for line in text.splitlines() if not line.startswith(name[:80])) <= 80
    assert "1.59x [1.57, 1.61]" in text.partition("mmm")[2].partition("\n")[0] and "…" not in text


def test_names_replace_labels_and_columns_are_chosen_by_their_names_in_csv(tmp_path: Path) -> None:
    view = View(columns=("tpot_s", "identical", "speedup"), names={"two_model": "Ours", EXITING: "Theirs"})
    for format in ("table", "md", "tex"):
        text = _text(tmp_path, format, view=view).replace("|", " ").replace("&", " ")
        assert _cells(text, "Ours")[0][:3] == ["Ours", "570.10", "20"]
        assert _cells(text, "Theirs")[0][:3] == ["Theirs", "616.91", "0"]
        assert "two_model" not in text and "lossless" not in text.partition("Ours")[0]


@pytest.mark.parametrize(
    ("view", "id", "known"),
    [
        (View(columns=("speedup", "pace")), "unknown_column", "tokens_per_s"),
        (View(names={"medusa": "Ours"}), "unknown_label", DRAFTED),
        (View(names={DRAFTED: "Ours", EXITING: "Ours"}), "name_twice", "Ours"),
        (View(names={DRAFTED: BASELINE}), "name_twice", BASELINE),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(tmp_path: Path, view: View, id: str, known: str) -> None:
    with refused(id, known):
        _text(tmp_path, view=view)


def test_latex_has_a_line_for_each_row_and_escapes_what_is_special(tmp_path: Path) -> None:
    rows, run = _two_suites()
    text = _text(tmp_path, "tex", rows, run, View(by_suite=True, names={EXITING: "50% & more"}))
    table = [line for line in text.splitlines() if line and not line.startswith("% ")]
    assert table[0] == r"\begin{tabular}{lrrrr}" and table[-1] == r"\end{tabular}"
    lines = [line.removesuffix(r" \\").split(" & ") for line in table if line.endswith(r"\\")]
    assert lines[0][1] == r"speed-up [95\%]" and {len(line) for line in lines} == {5, 1}
    assert [line for line in table if r"\emph" in line] == [
        rf"\multicolumn{{5}}{{l}}{{\emph{{{name}}}}} \\" for name in ("koala", "mt-bench", "all suites")
    ]
    assert sum(line[0].startswith(r"two\_model") for line in lines) == 3
    assert re.fullmatch(r"\$1\.\d\d\\times\$ (\[1\.\d\d, 1\.\d\d\]|n/a \(3 prompts\))", lines[3][1])
    assert r"50\% \& more" in text and text.count("rule") == 2 + 3


def test_by_suite_the_table_has_each_suite_and_all(tmp_path: Path) -> None:
    rows, run = _two_suites()
    assert len(_cells(_text(tmp_path, rows=rows, run=run), "two_model")) == 1 + 1  # the table, and the summary
    text = _text(tmp_path, rows=rows, run=run, view=View(by_suite=True))
    assert [line.strip() for line in text.splitlines() if line.strip() in ("koala", "mt-bench", "all suites")] == [
        *("koala", "mt-bench", "all suites")
    ]
    assert len(_cells(text, "two_model")) == 3 + 1
    assert _text(tmp_path, "md", rows, run, View(by_suite=True)).count("| two_model draft_tokens=3 |") == 3


def test_at_most_three_warnings_have_a_line_each_and_the_others_are_counted(tmp_path: Path) -> None:
    rows = [_broken(row) for row in usual_rows(2)]
    run = replace(RUN, suites=(replace(KOALA, source="embedded"),), machine={"cores": 2, "load_average": [9.0] * 3})
    text = _text(tmp_path, rows=rows, run=run)
    lines = [line for line in text.splitlines() if line.startswith("Warning: ")]
    assert len(lines) == 3 and "two_model" in lines[0] and max(map(len, lines)) <= 80
    (left,) = re.findall(r"^(\d+) more warnings: --full$", text, re.MULTILINE)
    full = _text(tmp_path, rows=rows, run=run, view=FULL)
    assert full.count("Warning: ") == 3 + int(left)


def test_every_short_warning_fits_a_line() -> None:
    """With the names and numbers that are usual."""
    for id, (line, _) in _TEMPLATES.items():
        words: dict[str, object] = {name: "two_model" for name in re.findall(r"\{(\w+)\}", line)}
        words |= {name: 0.5 for name in re.findall(r"\{(\w+):", line)}
        words |= {name: 1234 for name in ("tokens", "baseline_tokens", "rounds", "cores") if name in words}
        assert len(line.format(**words)) <= 80 - len("Warning: "), id


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
    text = _text(tmp_path, rows=rows, run=run, view=FULL)
    table = text[text.index("Exact match") :]
    assert re.search(r"autoregressive +1\.000 \[0\.832, 1\.000\] +baseline +20\n", table)
    assert re.search(r"two_model[^\n]* 1\.000 \[0\.832, 1\.000\] +\+0\.000 \[\+0\.000, \+0\.000\] +20\n", table)
    assert re.search(r"early_exit +0\.750 \[0\.\d+, 0\.\d+\] +-0\.250 \[-0\.\d+, -0\.\d+\] +20\n", table)
    assert re.search(r"\| \+0\.000 \[\+0\.000, \+0\.000\] \| 20 \|", _text(tmp_path, "md", rows, run, FULL))
    lost = _figures(tmp_path, rows, run)[EXITING]
    assert (lost["metrics"]["exact_match"]["value"], lost["checked_prompts"]) == (0.75, 20)
    assert lost["metrics"]["exact_match_difference"]["high"] < 0
    line = list(csv.DictReader(io.StringIO(_text(tmp_path, "csv", rows, run))))[2]
    assert (line["exact_match"], line["exact_match_difference"], line["checked_prompts"]) == ("0.75", "-0.25", "20")


@pytest.mark.parametrize("format", ["table", "md"])
def test_exact_match_is_left_out_where_there_is_nothing_to_check(tmp_path: Path, format: Format) -> None:
    assert "exact match" not in _text(tmp_path, format, view=FULL).lower()
    assert _figures(tmp_path)[DRAFTED]["metrics"]["exact_match"]["value"] is None


def test_json_has_full_precision_and_no_number_that_json_lacks(tmp_path: Path) -> None:
    figures = _figures(tmp_path)
    speedup = figures[DRAFTED]["metrics"]["speedup"]
    assert speedup["low"] < speedup["value"] < speedup["high"]
    assert speedup["value"] != round(speedup["value"], 6)
    assert figures[BASELINE]["metrics"]["acceptance_rate"]["value"] is None
    assert "NaN" not in _text(tmp_path, "json")


@pytest.mark.parametrize(
    ("run", "verdict"), [(replace(RUN, temperature=0.7), "sampled"), (replace(RUN, imported="x"), None)]
)
def test_json_says_of_no_answers_that_were_not_compared_whether_they_are_lossless(
    tmp_path: Path, run: Run, verdict: Verdict | None
) -> None:
    """The table had a dash, and JSON "lossless": false."""
    rows = [replace(row, verdict=row.verdict and verdict, first_divergence=None) for row in usual_rows()]
    assert {figure["lossless"] for figure in _figures(tmp_path, rows, run).values()} == {None}


def test_csv_has_a_line_per_suite_and_method_with_the_figures_of_json(tmp_path: Path) -> None:
    both, run = _two_suites()
    lines = list(csv.DictReader(io.StringIO(_text(tmp_path, "csv", both, run))))
    assert [line["suite"] for line in lines] == ["koala"] * 3 + ["mt-bench"] * 3 + ["all suites"] * 3
    figures = _figures(tmp_path, both, run)
    for line in lines[-3:]:
        for name, figure in figures[line["label"]]["metrics"].items():
            assert line[name] == ("" if figure["value"] is None else str(figure["value"]))
    assert [line["lossless"] for line in lines[:3]] == ["", "True", "False"] and lines[1]["identical"] == "3"
    assert figures[BASELINE]["lossless"] is None and figures[DRAFTED]["lossless"] is True


@pytest.mark.parametrize("format", FORMATS)
def test_no_format_lets_an_embedded_sample_pass_for_the_published_suite(tmp_path: Path, format: Format) -> None:
    text = _text(tmp_path, format, run=replace(RUN, suites=(replace(KOALA, source="embedded"),)))
    assert "embedded" in text


def test_sampled_answers_have_a_column_of_their_own_and_no_agreement(tmp_path: Path) -> None:
    rows = [replace(row, verdict="sampled", first_divergence=None) if row.verdict else row for row in usual_rows()]
    text = _text(tmp_path, rows=rows, run=replace(RUN, temperature=0.7, top_p=0.9, top_k=50), view=FULL)
    assert "temperature 0.7, top-p 0.9, top-k 50" in " ".join(text.split())
    line = _cells(text, "two_model")[-1]
    assert line == ["two_model", "draft_tokens=3", "20", "0", "exact"]


@pytest.mark.parametrize("format", FORMATS)
def test_groups_that_are_not_comparable_name_what_differs(tmp_path: Path, format: Format) -> None:
    one = write(tmp_path / "1.jsonl", usual_rows())
    two = write(tmp_path / "2.jsonl", usual_rows(), replace(RUN, threads=2, dtype="bfloat16"))
    text = render(compare([read(one), read(two)]), format)
    if format in ("table", "md", "tex"):
        plain = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
        assert "bfloat16 (group 1: float32); threads is 2" in plain
    elif format == "json":
        differs = [group["differs_from_first_group"] for group in json.loads(text)["groups"]]
        assert [[found["field"] for found in fields] for fields in differs] == [[], ["dtype", "threads"]]
    else:
        assert [line["group"] for line in csv.DictReader(io.StringIO(text))] == ["1"] * 3 + ["2"] * 3
