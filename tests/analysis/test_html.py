"""The report has the figures of compare, everything from a file is text in it, and it needs no other file."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html import unescape
from pathlib import Path

import pytest
from command import cli
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

from benchctl.analysis.comparison import by_suite, compare
from benchctl.analysis.html import report as html
from benchctl.analysis.html.page import MAIN, picture, section, table_rows
from benchctl.analysis.html.report import report
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.tables.columns import Block, Column, brief
from benchctl.analysis.tables.text import blocks
from benchctl.analysis.warnings import warnings
from benchctl.analysis.winner import summarise
from benchctl.records.schema import Row, Totals
from benchctl.records.writer import read


def _cells(parsed: Parsed) -> dict[str, list[str]]:
    """The cells of each method's rows by its label, one table after the other."""
    found: dict[str, list[str]] = {}
    label = ""
    for element in parsed.elements:
        if element.name == "th" and element.attributes.get("scope") == "row":
            label = element.attributes["title"] or ""
        elif element.name == "td":
            found.setdefault(label, []).append(element.text.replace("\u00a0", " "))
    return found


def _fast(rows: list[Row], label: str) -> list[Row]:
    """The rows, in which this method takes little more than half of its time."""
    return [
        replace(row, ttft_s=(row.ttft_s or 0) / 1.9, step_s=tuple(step / 1.9 for step in row.step_s))
        if row.label == label
        else row
        for row in rows
    ]


def test_the_tables_contain_the_brief_table_first_and_all_others() -> None:
    (group,) = usual_groups()
    cells = _cells(parse(usual_page()))
    methods = group.pooled.methods
    tables = [table_rows(block, methods) for block in (brief(group), *blocks(group))]
    assert cells == {
        method.label: [cell for rows in tables for label, own in rows if label == method.label for cell in own]
        for method in methods
    }
    agreement = f"{2 * 20 / (7 * 9 + 7 * 11 + 6 * 13):.3f}"  # two tokens of each of 20 answers of 9, 11 or 13 tokens
    assert agreement == "0.183" and agreement in " ".join(cells[EXITING])


def test_a_method_without_a_figure_has_no_row_in_a_table() -> None:
    (group,) = usual_groups()
    methods = group.pooled.methods
    columns = (Column("acceptance", lambda method: "0.333" if method.label == DRAFTED else "–"),)
    assert table_rows(Block("Drafting", columns), methods) == [(DRAFTED, ["0.333"])]
    assert [label for label, _ in table_rows(Block("", columns), methods)] == [BASELINE, DRAFTED, EXITING]


def test_the_page_recommends_the_fastest_lossless_method(tmp_path: Path) -> None:
    (group,) = groups_of(tmp_path, _fast(usual_rows(), DRAFTED))
    found = summarise(group)
    assert found.advice.split()[:2] == ["Use", "two_model"] and len(found.lines) == 1
    assert parse(page_of([group])).named("h1")[0].text == found.advice


def test_the_page_recommends_the_baseline_where_no_lossless_method_is_faster(tmp_path: Path) -> None:
    (group,) = groups_of(tmp_path, _fast(usual_rows(), BASELINE))
    found = summarise(group)
    assert found.advice.split() == ["Keep", BASELINE] and len(found.lines) == 2


def test_the_page_recommends_nothing_on_four_prompts(tmp_path: Path) -> None:
    (group,) = groups_of(tmp_path, usual_rows(4))
    found = summarise(group)
    assert found.advice == found.headline and found.advice.split()[0] not in ("Use", "Keep", "Not")


def test_methods_that_were_left_out_are_named_where_no_winner_is(tmp_path: Path) -> None:
    rows = [failed(row) if (row.label, row.prompt_id) == (DRAFTED, "p0") else row for row in usual_rows(6)]
    (group,) = groups_of(tmp_path, rows)
    (reason,) = section([group], group, frozenset()).reasons
    assert "two_model" in reason


def test_the_fastest_method_is_in_the_first_row() -> None:
    rows = [element.attributes["title"] for element in parse(usual_page()).named("th") if "title" in element.attributes]
    (group,) = usual_groups()
    speedups = {method.label: method.estimate(SPEEDUP).value or 0 for method in group.pooled.methods}
    assert rows[:3] == sorted(speedups, key=lambda label: -speedups[label])


def test_warnings_are_folded_and_counted() -> None:
    (group,) = usual_groups()
    texts = [warning.text for warning in warnings(group)]
    parsed = parse(usual_page())
    assert texts and [each.text for each in parsed.named("li") if each.attributes.get("class") == "warning"] == texts
    assert parsed.named("summary")[0].text.split()[0] == str(len(texts))


def test_answers_of_an_embedded_model_are_announced_as_poor() -> None:
    poor = report(usual_groups(), frozenset(["reference"]), made="").html
    assert "9.0 million parameters: " in poor and "9.0 million parameters: " not in usual_page()


@pytest.mark.parametrize(("name", "poor"), [("ref-dense", True), ("smollm2", False)])
def test_only_models_that_the_package_holds_whole_are_poor(name: str, poor: bool, tmp_path: Path) -> None:
    """The report called answers of smollm2 poor, a chat model that is fetched."""
    path = write(tmp_path / "run.jsonl", usual_rows(), replace(RUN, target=replace(RUN.target, name=name)))
    result = cli("report", path, "-o", tmp_path / "run.html")
    assert result.exit_code == 0, result.output
    assert ("its answers are poor" in (tmp_path / "run.html").read_text(encoding="utf-8")) is poor


def test_sampled_runs_have_no_pareto_plot(tmp_path: Path) -> None:
    sampled = [row if row.label == BASELINE else replace(row, verdict="sampled", first_divergence=None, margin=None,
               noise=None) for row in usual_rows()]  # fmt: skip
    (group,) = groups_of(tmp_path, sampled, replace(RUN, temperature=0.7))
    found = picture(MAIN, group, "")
    assert found.svg == "" and found.problem in unescape(page_of([group]))


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


@pytest.mark.slow
def test_each_suite_has_its_picture_and_tables(tmp_path: Path) -> None:
    (group,) = groups_of(tmp_path, two_suites(), TWO_SUITES)
    pooled, koala = (section([each], each, frozenset()) for each in (group, by_suite([group])[0]))
    assert [part.title for part in (pooled.pooled, *pooled.suites)] == ["all suites", "koala", "mt-bench"]
    assert "koala, mt-bench: 40 prompts" in pooled.pooled.picture.svg
    assert "koala: 20 prompts" in pooled.suites[0].picture.svg
    cells = _cells(parse(page_of([group])))[EXITING]
    assert len(cells) == 3 * sum(len(block.columns) for block in pooled.tables)
    assert koala.suites == ()


def test_groups_that_cannot_be_compared_are_apart_with_the_setting_that_differs(tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", usual_rows(), replace(RUN, threads=2))
    groups = compare([read(write(tmp_path / "run.jsonl", usual_rows())), read(other)])
    assert [section(groups, group, frozenset()).differs.partition(": ")[2] for group in groups] == [
        "",
        "threads is 2 (group 1: 1).",
    ]
    parsed = parse(page_of(groups))
    assert len(parsed.named("section")) == 2
    assert [link.attributes["href"] for link in parsed.named("a")] == ["#group-1", "#group-2"]


def test_the_manifest_has_settings_machine_and_versions() -> None:
    text = " ".join(element.text for element in parse(usual_page()).named("div") if element.attributes == {})
    for fact in ("max new tokens64", "torch2", "cores2", "orderabba", "koala20 prompts, published"):
        assert fact in text, fact


def _long(rows: list[Row]) -> list[Row]:
    return [replace(row, text=f"{row.label} {row.prompt_id} " + "é😀<" * 5000) for row in rows]


def test_long_answers_are_left_out_until_the_page_is_small_and_it_says_how_many(tmp_path: Path) -> None:
    groups = groups_of(tmp_path, _long(usual_rows(60)))
    found = report(groups, frozenset(), made="")
    assert 1_750_000 < len(found.html.encode()) < html.MOST_BYTES < 2_000_000
    assert 0 < found.shown_answers < found.answers == 120
    left = found.answers - found.shown_answers
    numbers = re.findall(r"\d+", parse(found.html).named("footer")[0].text)
    assert numbers == [str(found.shown_answers), "120", str(left)]
    assert len(parse(found.html).answers["answers"]) == found.shown_answers


def test_one_giant_answer_does_not_keep_the_others_out(tmp_path: Path) -> None:
    rows = usual_rows()
    first = next(number for number, row in enumerate(rows) if row.label == EXITING)
    rows[first] = replace(rows[first], text="so " * 900_000)
    found = report(groups_of(tmp_path, rows), frozenset(), made="")
    assert (found.shown_answers, found.answers) == (39, 40)
    assert len(found.html.encode()) < 500_000


def test_an_imported_file_without_steps_has_tables_and_answers_but_no_pictures(tmp_path: Path) -> None:
    rows = [
        replace(row, totals=Totals(wall_s=2.0), token_ids=(), step_s=(), committed=(), drafted=(), accepted=(),
                rows=(), layers=(), ttft_s=None, stop_reason=None, verdict=None, first_divergence=None, margin=None,
                noise=None)
        for row in usual_rows()
    ]  # fmt: skip
    (group,) = groups_of(tmp_path, rows, replace(RUN, imported="EAGLE"))
    found = section([group], group, frozenset())
    assert (found.pooled.picture.svg, found.pictures) == ("", ())
    entries = parse(page_of([group])).answers["answers"]
    assert len(entries) == 40 and {entry["answer"]["tokens"] for entry in entries} == {None}


def test_a_page_too_large_without_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MOST_BYTES", 1000)
    with refused("report_too_large", "1 files"):
        page_of(usual_groups())


def test_report_writes_the_page_and_says_what_is_in_it(tmp_path: Path) -> None:
    path, out = write(tmp_path / "run.jsonl", usual_rows()), tmp_path / "new" / "page.html"
    result = cli("report", path, "-o", out)
    assert result.exit_code == 0, result.output
    assert re.fullmatch(rf"Report: {re.escape(str(out))} \(0\.\d MB, 40 of 40 answers\)\n", result.stdout)
    assert parse(out.read_text("utf-8")).named("title")[0].text == "benchctl report: reference on A (run.jsonl)"


def test_report_never_writes_over_what_is_not_a_page(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", usual_rows())
    before = path.read_bytes()
    result = cli("report", path, "-o", path)
    assert result.exit_code == 2 and "--out" in result.stderr
    assert path.read_bytes() == before
