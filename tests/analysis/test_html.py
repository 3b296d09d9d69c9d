"""The report says what compare says, nothing in it is more than text, and it needs nothing but itself."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner
from fixtures_records import BASELINE, DRAFTED, EXITING, RUN, failed, usual_rows, write
from pages import (
    HOSTILE,
    TWO_SUITES,
    Parsed,
    groups_of,
    hostile_file,
    page_of,
    parse,
    two_suites,
    usual_groups,
    usual_page,
)
from refusals import refused

from benchctl.analysis.comparison import compare
from benchctl.analysis.html import report as html
from benchctl.analysis.html.report import report
from benchctl.analysis.tables.text import blocks
from benchctl.analysis.warnings import warnings
from benchctl.cli import main
from benchctl.records.schema import Row, Totals
from benchctl.records.writer import read


def _lines_of_tables(parsed: Parsed) -> dict[str, list[str]]:
    """The cells of each method's lines, one table after the other."""
    found: dict[str, list[str]] = {}
    label = ""
    for element in parsed.elements:
        if element.name == "th" and element.attributes.get("scope") == "row":
            label = element.text
        elif element.name == "td":
            found.setdefault(label, []).append(element.text)
    return found


def _cells_of_compare() -> dict[str, list[str]]:
    """The cells of each method in all tables of `compare --full`."""
    (group,) = usual_groups()
    columns = [column for block in blocks(group) for column in block.columns]
    return {method.label: [column.cell(method) for column in columns] for method in group.pooled.methods}


def test_the_tables_have_the_cells_of_compare() -> None:
    assert _lines_of_tables(parse(usual_page())) == _cells_of_compare()


def test_the_words_have_the_speedups_and_warnings_of_compare() -> None:
    items = [element.text for element in parse(usual_page()).named("li")]
    speedup = _cells_of_compare()[EXITING][0]
    assert f"{2 * 20 / (7 * 9 + 7 * 11 + 6 * 13):.3f}" == "0.183", (
        "two tokens of each of 20 answers of 9, 11 or 13 tokens"
    )
    assert f"{EXITING}: {speedup}; 0 of 20 answers are the baseline's, token agreement 0.183." in items
    found = {warning.text for group in usual_groups() for warning in warnings(group)}
    assert found and found <= set(items)


def test_numeric_answers_are_told(tmp_path: Path) -> None:
    """A method was called lossless beside a count of answers that left the numeric ones out, as if they were lost."""
    rows = [
        replace(row, verdict="numeric", first_divergence=1, margin=0.1, noise=0.0)
        if row.label == DRAFTED and row.prompt_id in ("p1", "p4")
        else row
        for row in usual_rows()
    ]
    page = page_of(groups_of(tmp_path, rows, replace(RUN, dtype="bfloat16")))
    items = [element.text for element in parse(page).named("li")]
    assert any("lossless: 18 of 20 answers are the baseline's, 2 more up to rounding." in text for text in items)


def test_failed_and_sampled_answers_are_told(tmp_path: Path) -> None:
    rows = [failed(row) if row.label == EXITING and row.prompt_id == "p3" else row for row in usual_rows()]
    items = [element.text for element in parse(page_of(groups_of(tmp_path, rows))).named("li")]
    assert any(text.startswith(EXITING) and "1 generations failed" in text for text in items)
    sampled = [row if row.label == BASELINE else replace(row, verdict="sampled", first_divergence=None, margin=None,
               noise=None) for row in usual_rows()]  # fmt: skip
    page = page_of(groups_of(tmp_path, sampled, replace(RUN, temperature=0.7)))
    assert "20 sampled answers" in page
    assert "No plot" in page


def test_whatever_is_written_in_the_files_stays_text(tmp_path: Path) -> None:
    page = page_of(compare([read(hostile_file(tmp_path))]))
    parsed = parse(page)
    assert [element.attributes.get("type") for element in parsed.named("script")] == ["application/json", None]
    assert parsed.named("img") == []
    assert not any(name.startswith("on") for element in parsed.elements for name in element.attributes)
    assert any(HOSTILE in element.text for element in parsed.named("dd"))
    assert f"{DRAFTED} says {HOSTILE}" in parsed.answers["texts"]
    assert parsed.answers["answers"][0]["place"]["prompt_id"].endswith(HOSTILE)


def test_the_json_of_the_page_has_no_character_that_html_or_a_script_could_misread(tmp_path: Path) -> None:
    page = page_of(compare([read(hostile_file(tmp_path))]))
    island = page.partition('id="answers">')[2].partition("</script>")[0]
    assert len(island) > 1000 and not set("<>&\u2028\u2029") & set(island)


def test_the_policy_lets_only_the_page_s_own_script_run_and_fetches_nothing() -> None:
    parsed = parse(usual_page())
    policy = next(meta.attributes["content"] for meta in parsed.named("meta") if "http-equiv" in meta.attributes)
    rules = dict(rule.split(" ", 1) for rule in (policy or "").split("; "))
    assert rules["default-src"] == "'none'" and rules["base-uri"] == "'none'"
    for name, text in (("script-src", parsed.named("script")[1].text), ("style-src", parsed.named("style")[0].text)):
        assert rules[name] == f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
    addresses = [element.attributes.get(name) for element in parsed.elements for name in ("src", "href", "action")]
    assert all((address or "#").startswith("#") for address in addresses)
    assert not any("style" in element.attributes for element in parsed.elements)


@pytest.mark.slow
def test_every_suite_and_method_can_be_toggled(tmp_path: Path) -> None:
    parsed = parse(page_of(groups_of(tmp_path, two_suites(), TWO_SUITES)))
    boxes = [element.attributes for element in parsed.named("input")]
    suites = [box["data-shows-suite"] for box in boxes if "data-shows-suite" in box]
    assert suites == ["all suites", "koala", "mt-bench"]
    assert [box["data-shows-method"] for box in boxes if "data-shows-method" in box] == ["0", "1", "2"]
    assert {element.attributes["data-suite"] for element in parsed.named("tbody")} == set(suites)
    assert {element.attributes["data-suite"] for element in parsed.named("figure")
            if element.attributes.get("class") == "panel"} == set(suites)  # fmt: skip


def test_groups_that_may_not_be_compared_are_apart_and_say_why(tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", usual_rows(), replace(RUN, threads=2))
    groups = compare([read(write(tmp_path / "run.jsonl", usual_rows())), read(other)])
    page = page_of(groups)
    assert "2 groups of runs" in page
    assert "threads is 2, there 1" in page
    assert len([element for element in parse(page).named("section")]) == 2


def test_the_manifest_has_settings_machine_and_versions() -> None:
    text = " ".join(element.text for element in parse(usual_page()).named("div") if element.attributes == {})
    for fact in ("max new tokens64", "torch2", "cores2", "ordernot", "koala20 prompts, published"):
        assert (fact in text) == (fact != "ordernot"), fact


def _long(rows: list[Row]) -> list[Row]:
    return [replace(row, text=f"{row.label} {row.prompt_id} " + "é😀<" * 5000) for row in rows]


def test_long_answers_are_left_out_until_the_page_is_small_and_it_says_how_many(tmp_path: Path) -> None:
    groups = groups_of(tmp_path, _long(usual_rows(60)))
    found = report(groups, lambda run: None, made="")
    assert 1_800_000 < len(found.html.encode()) < html.MOST_BYTES < 2_000_000
    assert 0 < found.shown_answers < found.answers == 120
    left = found.answers - found.shown_answers
    text = parse(found.html).named("footer")[0].text
    assert (
        f"{found.shown_answers} of 120 answers are in this file" in text and f"the other {left} were left out" in text
    )
    assert len(parse(found.html).answers["answers"]) == found.shown_answers


def test_one_giant_answer_does_not_keep_the_others_out(tmp_path: Path) -> None:
    rows = usual_rows()
    first = next(number for number, row in enumerate(rows) if row.label == EXITING)
    rows[first] = replace(rows[first], text="so " * 900_000)
    found = report(groups_of(tmp_path, rows), lambda run: None, made="")
    assert (found.shown_answers, found.answers) == (39, 40)
    assert len(found.html.encode()) < 500_000


def test_what_an_imported_file_does_not_tell_is_left_open(tmp_path: Path) -> None:
    rows = [
        replace(row, totals=Totals(wall_s=2.0), token_ids=(), step_s=(), committed=(), drafted=(), accepted=(),
                rows=(), layers=(), ttft_s=None, stop_reason=None, verdict=None, first_divergence=None, margin=None,
                noise=None)
        for row in usual_rows()
    ]  # fmt: skip
    page = page_of(groups_of(tmp_path, rows, replace(RUN, imported="EAGLE")))
    items = [element.text for element in parse(page).named("li")]
    assert any("is not known" in text for text in items)
    assert "No plot" in page and "Latency" not in page and "Acceptance" not in page
    assert len(parse(page).answers["answers"]) == 40


def test_a_page_too_large_without_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MOST_BYTES", 1000)
    with refused("report_too_large", "1 files"):
        page_of(usual_groups())


def test_report_writes_the_page_and_says_what_is_in_it(tmp_path: Path) -> None:
    path, out = write(tmp_path / "run.jsonl", usual_rows()), tmp_path / "new" / "page.html"
    result = CliRunner().invoke(main, ["report", str(path), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert re.fullmatch(rf"Report: {re.escape(str(out))} \(0\.\d MB, 40 of 40 answers\)\n", result.stdout)
    assert parse(out.read_text("utf-8")).named("title")[0].text == "benchctl report: reference on A"


def test_report_never_writes_over_what_is_not_a_page(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", usual_rows())
    before = path.read_bytes()
    result = CliRunner().invoke(main, ["report", str(path), "-o", str(path)])
    assert result.exit_code == 2 and "End --out in .html" in result.stderr
    assert path.read_bytes() == before
