"""The answer of a comparison: the winner, or why there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compared import file_of, group_of, value_of
from fixtures_records import BASELINE, failed, method
from test_winner import rows_of, run_of

from benchctl.analysis.comparison import compare, over
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.winner import summarise


def numbers(paces: dict[str, float], noise: float = 0.001) -> tuple[str, tuple[str, ...]]:
    found = summarise(group_of(rows_of(paces, noise), run_of(paces)))
    return found.headline, found.lines


def test_the_winner_has_its_interval_and_no_method_is_level_with_it() -> None:
    headline, (first, second) = numbers({"a": 1.4, "b": 1.5})
    assert headline.startswith("b: 1.50x") and first.startswith("b ") and "1.50x [1.50, 1.50]" in first
    assert BASELINE in first and "1.4" not in second


def test_methods_that_are_not_significantly_slower_are_named_with_their_speed_up() -> None:
    paces = {"a": 1.4, "b": 1.5, "c": 1.501}
    headline, (first, second) = numbers(paces, noise=0.003)
    best, level = ("b", "c") if headline.startswith("b:") else ("c", "b")
    assert first.startswith(f"{best} ") and f"{level} (1.50x)" in second and "1.40x" not in second


def test_without_a_significant_difference_nothing_is_called_fastest() -> None:
    paces = {"a": 1.001, "b": 0.999}
    group = group_of(rows_of(paces, noise=0.3), run_of(paces))
    found = summarise(group)
    best = max(paces, key=lambda label: value_of(group, SPEEDUP, label) or 0)
    assert BASELINE in found.headline and f"{best}, {value_of(group, SPEEDUP, best):.2f}x [" in found.lines[1]


def test_a_faster_baseline_beats_all() -> None:
    headline, (_, second) = numbers({"a": 0.8})
    assert BASELINE in headline and "a, 0.80x [0.80, 0.80]" in second


@pytest.mark.parametrize("case", ["few", "imported", "alone"])
def test_where_methods_cannot_be_compared_there_is_one_line_with_the_reason(case: str) -> None:
    paces = {} if case == "alone" else {"a": 1.5}
    rows, run = rows_of(paces), run_of(paces)
    if case == "few":
        rows = [row for row in rows if row.prompt_id in ("p0", "p1")]
    if case == "imported":
        run = replace(run, imported="medusa")
    (line,) = summarise(group_of(rows, run)).lines
    assert "x [" not in line and ("5 prompts" in line) == (case == "few")


def test_names_replace_labels() -> None:
    paces = {"a[x=1]": 1.5, "a[x=2]": 1.2}
    group = group_of(rows_of(paces), run_of(paces))
    assert summarise(group).lines[0].startswith("a x=1 ")
    assert summarise(group, {"a[x=1]": "Ours", "a[x=2]": "Other", BASELINE: "Plain"}).headline.startswith("Ours:")


def test_speed_ups_over_a_baseline_that_takes_no_part_are_judged_too() -> None:
    """With one failed answer of the baseline, 1.50x [1.50, 1.50] was "not significantly faster"."""
    paces = {"a": 1.4, "b": 1.5}
    rows = [failed(row) if row.label == BASELINE and row.prompt_id == "p3" else row for row in rows_of(paces)]
    found = summarise(group_of(rows, run_of(paces)))
    assert found.headline.startswith("b: 1.50x") and BASELINE in found.lines[-1]
    run = run_of(paces)
    lossy = replace(run, methods=(method(BASELINE, "lossy"), *run.methods[1:]))
    assert summarise(group_of(rows_of(paces), lossy)).headline.startswith("b: 1.50x")


@pytest.mark.parametrize("paces", [{"b": 2.0}, {"a": 0.9, "b": 2.0}])
def test_a_method_with_a_failed_answer_is_named_whatever_the_finding(paces: dict[str, float]) -> None:
    rows = [failed(row) if (row.label, row.prompt_id) == ("b", "p3") else row for row in rows_of(paces)]
    found = summarise(group_of(rows, run_of(paces)))
    assert found.lines[-1].endswith(": b.") and len(found.lines) == len(paces) + 1
    assert "failed" in found.headline or len(paces) > 1


def test_the_same_answers_are_claimed_only_where_all_are_identical() -> None:
    """Ties are lossless too, but their texts differ: 20 ties were once called the same answers."""
    rows, run = rows_of({"a": 1.5}), run_of({"a": 1.5})
    tied = [replace(row, verdict="tie", first_divergence=1) if row.label == "a" else row for row in rows]
    same, differ = (summarise(group_of(each, run)).headline for each in (rows, tied))
    assert "same answers" in same and "same answers" not in differ and "lossless" in differ


@pytest.mark.parametrize("same", [0, 12, 20])
def test_equal_answers_of_a_method_without_a_claim_are_counted(same: int) -> None:
    """llama.cpp in float16 gave 6 of 6 equal answers, and the finding said that no method did."""
    run = replace(run_of({"a": 1.5}), methods=(method(BASELINE, "lossy"), method("a", "lossy")))
    rows = rows_of({"a": 1.5})
    other = [row for row in rows if row.label == "a"][same:]
    rows = [replace(row, verdict="lossy", first_divergence=1) if row in other else row for row in rows]
    found = summarise(group_of(rows, run))
    assert f"{same} of 20" in found.headline and f"{same} of 20" in found.lines[0]


def test_sampled_answers_are_not_called_lossless() -> None:
    """A sampled run once had "lossless, 0 answers identical", though nothing had been compared."""
    rows, run = rows_of({"a": 1.5}), run_of({"a": 1.5})
    sampled = [replace(row, verdict="sampled" if row.label == "a" else None) for row in rows]
    headline = summarise(group_of(sampled, replace(run, temperature=0.7))).headline
    assert "sampled" in headline and "lossless" not in headline


def test_a_wide_interval_of_any_method_leaves_the_decision_open() -> None:
    paces = {"a": 1.0, "b": 0.95}
    rows = rows_of({"a": 1.0}, 0.001) + [row for row in rows_of({"b": 1.1}, 0.5) if row.label == "b"]
    narrow, wide = summarise(group_of(rows_of(paces, 0.001), run_of(paces))), summarise(group_of(rows, run_of(paces)))
    assert narrow.advice.split()[0] == "Keep" and wide.advice.split()[:3] == ["Not", "decided:", "b,"]


def test_one_exact_method_over_a_lossy_one_is_not_said_to_be_none() -> None:
    paces = {"a": 1.5, "b": 1.6}
    run = replace(run_of(paces), methods=(method(BASELINE), method("a", "lossy"), method("b")))
    rows = [row for row in rows_of(paces) if row.label != BASELINE]
    (group,) = compare([over(file_of(rows, run), "a")])
    assert "only one method with the same answers" in summarise(group).headline


def test_a_method_with_an_answer_without_a_verdict_is_named_as_left_out() -> None:
    paces = {"a": 1.5, "b": 1.6}
    rows = [
        replace(row, verdict=None, fidelity={"failed_controls": 1.0})
        if row.label == "b" and row.prompt_id == "p3"
        else row
        for row in rows_of(paces)
    ]
    *_, last = summarise(group_of(rows, run_of(paces))).lines
    assert "Not included" in last and last.endswith(" b.")
