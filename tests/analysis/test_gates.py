"""A comparison can be held to answers that are the target's, and to speed-ups of an earlier run, by its exit code."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fixtures_records import BASELINE, DRAFTED, EXITING, RUN, drafted_row, failed, usual_rows, write

from benchctl.analysis.gate import REQUIREMENTS, Regression, quotient, regression_lines
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.stats.intervals import Interval
from benchctl.cli import main
from benchctl.records.schema import Row, Run


def _compare(*arguments: str | Path | float) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments), "--format", "json"])


def _warnings(result: Result) -> dict[str, Any]:
    """The values of the warnings of the JSON, by id."""
    return {found["id"]: found["values"] for found in json.loads(result.stdout)["groups"][0]["warnings"]}


def _answers(change: Callable[[Row], Row]) -> list[Row]:
    """Answers of the baseline and the drafting method, every fifth of the latter changed."""
    rows = [row for row in usual_rows() if row.label != EXITING]
    return [change(row) if row.label == DRAFTED and int(row.prompt_id[1:]) % 5 == 0 else row for row in rows]


TWO = replace(RUN, methods=RUN.methods[:2])  # the run of those


def _diverged(verdict: str) -> Callable[[Row], Row]:
    return lambda row: replace(row, verdict=verdict, first_divergence=3)  # type: ignore[arg-type]


def _unjudged(row: Row) -> Row:
    """Its control failed. Such answers were not counted, so that the others met a requirement for them."""
    return replace(row, verdict=None, fidelity={"failed_controls": 1.0})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "dtype", "met"),
    [
        (lambda row: row, "float32", {"identical", "tie", "numeric", "lossless"}),
        (_diverged("tie"), "float32", {"tie", "numeric", "lossless"}),
        (_diverged("numeric"), "bfloat16", {"numeric", "lossless"}),
        (_diverged("numeric"), "float32", {"numeric"}),  # so fine a precision explains no such difference
        (_diverged("lossy"), "bfloat16", set()),
        (lambda row: replace(row, verdict="sampled"), "float32", set()),
        (failed, "float32", set()),
        (_unjudged, "float32", set()),
    ],
)
def test_requirements_are_met_by_their_verdict_and_stricter_ones(
    tmp_path: Path, change: Callable[[Row], Row], dtype: str, met: set[str]
) -> None:
    path = write(tmp_path / "run.jsonl", _answers(change), replace(TWO, dtype=dtype))
    codes = {required: _compare(path, "--require", required).exit_code for required in REQUIREMENTS}
    assert codes == {required: int(required not in met) for required in REQUIREMENTS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "code", "counted"),
    [(failed, 0, "20 identical"), (_unjudged, 0, "20 identical"), (_diverged("lossy"), 1, "19 identical, 1 lossy")],
)
def test_a_try_that_was_made_good_breaks_no_requirement_and_a_lossy_one_always_does(
    tmp_path: Path, first: Callable[[Row], Row], code: int, counted: str
) -> None:
    """No --resume made a method lossless again that had failed once, for lack of memory that others had taken."""
    rows = _answers(lambda row: row)
    of_one = [row for row in rows if row.prompt_id == "p3"]
    tried = [first(row) if row.label == DRAFTED else row for row in of_one]
    rows = [row for row in rows if row.prompt_id != "p3"] + [replace(row, invalid="loud") for row in tried]
    path = write(tmp_path / "run.jsonl", [*rows, *(replace(row, repeat=2) for row in of_one)], TWO)
    for required in REQUIREMENTS:
        result = _compare(path, "--require", required)
        assert result.exit_code == code, result.stderr
        assert (f"of its answers {counted}" in result.stderr) == bool(code)
    assert {"generations_failed", "verdict_unknown"}.isdisjoint(_warnings(result))


def test_a_try_that_failed_and_is_the_last_breaks_every_requirement(tmp_path: Path) -> None:
    rows = _answers(lambda row: row)
    of_one = [replace(row, repeat=2) for row in rows if row.prompt_id == "p3"]
    rows = [replace(row, invalid="loud") if row.prompt_id == "p3" else row for row in rows]
    rows += [failed(row) if row.label == DRAFTED else row for row in of_one]
    result = _compare(write(tmp_path / "run.jsonl", rows, TWO), "--require", "numeric")
    assert result.exit_code == 1 and "19 identical, 1 failed" in result.stderr
    assert _warnings(result)["generations_failed"]["generations"] == 1


@pytest.mark.slow
def test_what_came_of_gates_is_in_the_json_of_acceptance_too(tmp_path: Path) -> None:
    """A program that asked for acceptance had to read it from stderr, in words."""
    path = write(tmp_path / "run.jsonl", usual_rows())
    plain, held = (json.loads(_compare(path, "--acceptance", *more).stdout) for more in ((), ("--require", "tie")))
    usual = json.loads(_compare(path, "--require", "tie").stdout)
    assert "gates" not in plain and held["acceptance"] == plain["acceptance"]
    assert held["gates"] == usual["gates"] and held["gates"]["passed"] is False
    assert _compare(path, "--acceptance", "--require", "tie").exit_code == 1


def test_a_broken_requirement_names_method_and_answers_on_stderr_and_in_the_json(tmp_path: Path) -> None:
    """A program that read the JSON had to read what a gate found from stderr, in words."""
    path = write(tmp_path / "run.jsonl", usual_rows())
    result = _compare(path, "--require", "lossless")
    problem = f"{EXITING} is not lossless: of its answers 20 lossy and claims to be lossy."
    assert result.stderr == f"FAIL: {problem}\n"
    plain, held = json.loads(_compare(path).stdout), json.loads(result.stdout)
    assert "gates" not in plain and held["groups"] == plain["groups"]
    assert held["gates"] == {
        "passed": False,
        "require": "lossless",
        "require_quality": None,
        "unmet": [problem],
        "inconclusive": [],
        "unsupported": [],
        "fail_below": None,
        "kept": [],
    }


def test_identical_answers_of_a_method_that_claims_less_are_not_lossless(tmp_path: Path) -> None:
    """What it was found to do on these prompts is no promise for the next."""
    rows = [replace(row, label=EXITING) if row.label == DRAFTED else row for row in _answers(lambda row: row)]
    path = write(tmp_path / "run.jsonl", rows, replace(RUN, methods=(RUN.methods[0], RUN.methods[2])))
    assert _compare(path, "--require", "identical").exit_code == 0
    assert _compare(path, "--require", "lossless").exit_code == 1


def test_a_file_of_the_baseline_alone_meets_no_requirement(tmp_path: Path) -> None:
    rows = [row for row in usual_rows() if row.label == BASELINE]
    path = write(tmp_path / "run.jsonl", rows, replace(RUN, methods=RUN.methods[:1]))
    result = _compare(path, "--require", "identical")
    assert result.exit_code == 1 and result.stderr.startswith(f"FAIL: only {BASELINE} ")


@pytest.mark.slow
@pytest.mark.parametrize("required", REQUIREMENTS)
def test_what_was_to_be_measured_and_was_not_meets_no_requirement(tmp_path: Path, required: str) -> None:
    """A method without any answer, as one that hangs; a run that was killed; and one that lost a turn of a prompt."""
    rows = _answers(lambda row: row)
    path = tmp_path / "run.jsonl"
    assert _compare(write(path, rows, TWO), "--require", required).exit_code == 0
    result = _compare(write(path, rows, RUN), "--require", required)
    missing = f"FAIL: {EXITING} was measured on 0 of 20 prompts: continue its run with --resume.\n"
    assert (result.exit_code, result.stderr) == (1, missing)
    result = _compare(write(path, rows[:-1], TWO), "--require", required)
    assert (result.exit_code, result.stderr) == (1, missing.replace(EXITING, DRAFTED).replace(" 0 ", " 19 "))
    turns = [replace(row, turn=1) for row in rows if row.label == BASELINE]
    result = _compare(write(path, [*rows, *turns], TWO), "--require", required)
    assert (result.exit_code, result.stderr) == (1, missing.replace(EXITING, DRAFTED))


def test_sessions_that_are_whole_together_meet_a_requirement(tmp_path: Path) -> None:
    rows = _answers(lambda row: row)
    parts = [
        write(tmp_path / f"{n}.jsonl", half, replace(TWO, name=str(n))) for n, half in enumerate((rows[:20], rows[20:]))
    ]
    assert _compare(*parts, "--require", "identical").exit_code == 0
    assert _compare(parts[0], "--require", "identical").exit_code == 1


def test_of_a_method_that_could_not_run_nothing_is_required_and_it_is_said(tmp_path: Path) -> None:
    methods = (*TWO.methods, replace(RUN.methods[2], unsupported="it needs trained exits"))
    path = write(tmp_path / "run.jsonl", _answers(lambda row: row), replace(RUN, methods=methods))
    result = _compare(path, "--require", "identical")
    note = f"Note: {EXITING} was not measured (it needs trained exits): nothing is required of it.\n"
    assert (result.exit_code, result.stderr) == (0, note)


def test_a_requirement_is_not_asked_of_another_baseline(tmp_path: Path) -> None:
    """Which would be let off, for nothing is asked of a baseline."""
    path = write(tmp_path / "run.jsonl", usual_rows())
    assert _compare(path, "--require", "identical", "--over", EXITING).exit_code == 2


def _slowed(rows: Sequence[Row], factor: float, label: str = DRAFTED) -> list[Row]:
    return [
        replace(row, ttft_s=(row.ttft_s or 0) * factor, step_s=tuple(s * factor for s in row.step_s))
        if row.label == label
        else row
        for row in rows
    ]


@pytest.mark.parametrize(
    ("factor", "least", "code"), [(1.0, 0.95, 0), (1.04, 0.95, 0), (1.1, 0.95, 1), (1.1, 0.9, 0), (0.8, 0.95, 0)]
)
def test_a_method_that_became_slower_than_allowed_is_a_regression(
    tmp_path: Path, factor: float, least: float, code: int
) -> None:
    old = write(tmp_path / "old.jsonl", usual_rows())
    new = write(tmp_path / "new.jsonl", _slowed(usual_rows(), factor), replace(RUN, name="new"))
    result = _compare(new, "--baseline", old, "--fail-below", least)
    assert result.exit_code == code, result.stderr
    line = next(line for line in result.stderr.splitlines() if line.startswith(DRAFTED))
    assert f"{1 / factor:.3f} [" in line and ("FAIL" in line) == bool(code)
    gates = json.loads(result.stdout)["gates"]
    kept = next(each for each in gates["kept"] if each["label"] == DRAFTED)
    assert (gates["passed"], gates["fail_below"], kept["slower"]) == (not code, least, bool(code))
    assert kept["value"] == pytest.approx(kept["now"] / kept["then"]) == pytest.approx(1 / factor)
    assert kept["interval"]["low"] <= kept["value"] <= kept["interval"]["high"]


def test_a_machine_that_became_slower_is_no_regression(tmp_path: Path) -> None:
    """Speed-ups are set against the baseline measured beside the method, which became as slow."""
    slow = usual_rows()
    for label in (BASELINE, DRAFTED, EXITING):
        slow = _slowed(slow, 3.0, label)
    old = write(tmp_path / "old.jsonl", usual_rows())
    new = write(tmp_path / "new.jsonl", slow, replace(RUN, name="new"))
    assert _compare(new, "--baseline", old, "--fail-below", 0.99).exit_code == 0


def _noisy(mean: float, seed: int) -> list[Row]:
    """A few prompts whose times under the method vary a lot."""
    chance = random.Random(seed)
    return [
        slowed
        for row in usual_rows(6)
        for slowed in _slowed([row], mean * exp(chance.gauss(0, 0.5)) if row.label == DRAFTED else 1.0)
    ]


@pytest.mark.slow
def test_what_may_be_chance_is_told_and_does_not_fail(tmp_path: Path) -> None:
    old = write(tmp_path / "old.jsonl", _noisy(1.0, 1))
    new = write(tmp_path / "new.jsonl", _noisy(1.3, 2), replace(RUN, name="new"))
    result = _compare(new, "--baseline", old, "--fail-below", 0.95)
    kept = next(each for each in json.loads(result.stdout)["gates"]["kept"] if each["label"] == DRAFTED)
    assert kept["value"] < 0.95 and kept["interval"]["high"] > 1
    assert result.exit_code == 0 and "below 0.95" in result.stderr and "FAIL" not in result.stderr


@pytest.mark.slow
def test_a_method_without_a_speed_up_now_has_kept_nothing(tmp_path: Path) -> None:
    gone = [failed(row) if row.label == DRAFTED else row for row in usual_rows()]
    missing = [row for row in usual_rows() if row.label != DRAFTED]
    old = write(tmp_path / "old.jsonl", usual_rows())
    for rows in (gone, missing):
        new = write(tmp_path / "new.jsonl", rows, replace(RUN, name="new"))
        result = _compare(new, "--baseline", old, "--fail-below", 0.5)
        assert result.exit_code == 1
        assert f"{DRAFTED}: no speed-up now" in result.stderr and "FAIL" in result.stderr


@pytest.mark.parametrize(
    ("change", "field"), [({"threads": 2}, "threads is 2, there 1"), ({"executor": "compiled"}, "executor is compiled")]
)
def test_an_earlier_run_of_other_settings_cannot_be_a_measure(
    tmp_path: Path, change: dict[str, object], field: str
) -> None:
    old = write(tmp_path / "old.jsonl", usual_rows())
    run: Run = replace(RUN, name="new", **change)  # type: ignore[arg-type]
    result = _compare(write(tmp_path / "new.jsonl", usual_rows(), run), "--baseline", old, "--fail-below", 0.5)
    assert result.exit_code == 2
    assert f"not comparable with {old}: {field}" in result.stderr
    assert "gates" not in json.loads(result.stdout)


def test_earlier_results_without_a_speed_up_are_wrong_usage(tmp_path: Path) -> None:
    old = write(tmp_path / "old.jsonl", [row for row in usual_rows() if row.label == BASELINE])
    new = write(tmp_path / "new.jsonl", usual_rows(), replace(RUN, name="new"))
    result = _compare(new, "--baseline", old, "--fail-below", 0.5)
    assert result.exit_code == 2 and "old.jsonl: measured no speed-up" in result.stderr


@pytest.mark.parametrize("arguments", [["--fail-below", "0.9"], ["--baseline", "old.jsonl"], ["--fail-below", "0"]])
def test_a_gate_that_lacks_its_half_is_wrong_usage(tmp_path: Path, arguments: list[str]) -> None:
    assert _compare(write(tmp_path / "new.jsonl", usual_rows()), *arguments).exit_code == 2


def test_broken_data_count_more_than_a_broken_requirement(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [*usual_rows(), drafted_row("p0")])
    result = _compare(path, "--require", "identical")
    assert result.exit_code == 3 and not result.stdout
    assert f"{path}:62: " in result.stderr and "line 3" in result.stderr


def test_the_interval_of_a_quotient_holds_the_true_one_as_often_as_it_says() -> None:
    """Two speed-ups that are estimated with errors of 4% and 2%, 4,000 times: 95% hold the true quotient."""
    chance = random.Random(0)
    held = 0
    for _ in range(4000):
        values = [true * exp(chance.gauss(0, error)) for true, error in ((1.5, 0.04), (1.8, 0.02))]
        now, then = (
            Estimate(SPEEDUP, value, Interval(value * exp(-1.96 * error), value * exp(1.96 * error)))
            for value, error in zip(values, (0.04, 0.02), strict=True)
        )
        found = quotient(now, then)
        assert found is not None
        held += found.low < 1.5 / 1.8 < found.high
    assert held / 4000 == pytest.approx(0.95, abs=0.012)


def test_without_an_interval_the_value_decides() -> None:
    assert Regression("a", 0.9, 1.0, 0.9, None).slower(0.95)
    assert not Regression("a", 0.96, 1.0, 0.96, None).slower(0.95)
    assert Regression("a", None, 1.0, None, None).slower(0.95)
    assert not Regression("a", 0.9, 1.0, 0.9, Interval(0.8, 1.01)).slower(0.95)


def test_slower_beyond_chance_and_an_estimate_below_is_a_failure_and_both_are_said() -> None:
    """Also where what is allowed lies inside the interval."""
    lost = Regression("a", 0.94, 1.0, 0.94, Interval(0.92, 0.97))
    assert lost.slower(0.95)
    (line,) = regression_lines([lost], 0.95)
    assert all(part in line for part in ("a: 0.94x now", "1.00x before", "0.940 [0.920, 0.970]", "FAIL", "0.95"))
