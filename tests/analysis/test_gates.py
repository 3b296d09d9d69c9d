"""`benchctl gate` holds results to claims, to judges' points and to the speed of an earlier run, by its exit code."""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, hypot, log
from pathlib import Path
from statistics import fmean, variance
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result
from fixtures_records import BASELINE, DRAFTED, EXITING, RUN, drafted_row, failed, usual_rows, write
from refusals import refused

from benchctl.analysis.comparison import compare
from benchctl.analysis.gate import _SESSION_SPREADS, REQUIREMENTS, Change, Conditions, check
from benchctl.analysis.stats.intervals import Interval, Observations, Quotient, quotient
from benchctl.cli import main
from benchctl.records.schema import Row
from benchctl.records.writer import read

PASSED, FAILED, INVALID, INCONCLUSIVE = 0, 1, 3, 4
TWO = replace(RUN, methods=RUN.methods[:2])  # the run of the baseline and the drafting method


def _gate(*arguments: str | Path | float) -> Result:
    return CliRunner().invoke(main, ["gate", *map(str, arguments)])


def _labels(*arguments: str | Path | float) -> dict[str, dict[str, Any]]:
    """What the JSON has of each label."""
    return {each["label"]: each for each in json.loads(_gate(*arguments, "--format", "json").stdout)["labels"]}


def _problems(label: dict[str, Any]) -> list[str]:
    return [problem["id"] for problem in label["problems"]]


def _answers(change: Callable[[Row], Row]) -> list[Row]:
    """Answers of the baseline and the drafting method, every fifth of the latter changed."""
    rows = [row for row in usual_rows() if row.label != EXITING]
    return [change(row) if row.label == DRAFTED and int(row.prompt_id[1:]) % 5 == 0 else row for row in rows]


def _diverged(verdict: str) -> Callable[[Row], Row]:
    return lambda row: replace(row, verdict=verdict, first_divergence=3)  # type: ignore[arg-type]


def _unjudged(row: Row) -> Row:
    """Its control failed. Such answers were not counted, so that the others met a requirement for them."""
    return replace(row, verdict=None, fidelity={"failed_controls": 1.0})


@pytest.mark.parametrize(
    ("change", "dtype", "met"),
    [
        (lambda row: row, "float32", {"identical", "tie", "numeric", "lossless"}),
        (_diverged("tie"), "float32", {"tie", "numeric", "lossless"}),
        (_diverged("numeric"), "bfloat16", {"numeric", "lossless"}),
        (
            _diverged("numeric"),
            "float32",
            set(),
        ),  # so fine a precision explains no such difference: the claim is broken
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
    codes = {required: _gate(path, "--require", required).exit_code for required in REQUIREMENTS}
    assert codes == {required: int(required not in met) for required in REQUIREMENTS}


def test_lossless_holds_those_that_claim_it_and_lets_lossy_labels_pass(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", usual_rows())
    assert _gate(path, "--require", "lossless").exit_code == PASSED
    labels = _labels(path, "--require", "identical")
    assert {name: _problems(label) for name, label in labels.items()} == {DRAFTED: [], EXITING: ["requirement_unmet"]}


def test_a_broken_claim_fails_without_being_asked_for(tmp_path: Path) -> None:
    new = write(tmp_path / "new.jsonl", _answers(_diverged("lossy")), replace(TWO, name="new"))
    old = write(tmp_path / "old.jsonl", _answers(lambda row: row), TWO)
    assert _gate(new, "--previous", old).exit_code == FAILED
    assert _problems(_labels(new, "--previous", old)[DRAFTED]) == ["claim_broken"]


@pytest.mark.parametrize(("first", "code"), [(failed, PASSED), (_unjudged, PASSED), (_diverged("lossy"), FAILED)])
def test_a_try_that_was_made_good_breaks_no_requirement_and_a_lossy_one_always_does(
    tmp_path: Path, first: Callable[[Row], Row], code: int
) -> None:
    """No --resume made a method lossless again that had failed once, for lack of memory that others had taken."""
    rows = _answers(lambda row: row)
    of_one = [row for row in rows if row.prompt_id == "p3"]
    tried = [first(row) if row.label == DRAFTED else row for row in of_one]
    rows = [row for row in rows if row.prompt_id != "p3"] + [replace(row, invalid="loud") for row in tried]
    path = write(tmp_path / "run.jsonl", [*rows, *(replace(row, repeat=2) for row in of_one)], TWO)
    assert {_gate(path, "--require", required).exit_code for required in REQUIREMENTS} == {code}


def test_a_try_that_failed_and_is_the_last_breaks_every_requirement(tmp_path: Path) -> None:
    rows = _answers(lambda row: row)
    of_one = [replace(row, repeat=2) for row in rows if row.prompt_id == "p3"]
    rows = [replace(row, invalid="loud") if row.prompt_id == "p3" else row for row in rows]
    rows += [failed(row) if row.label == DRAFTED else row for row in of_one]
    path = write(tmp_path / "run.jsonl", rows, TWO)
    assert _gate(path, "--require", "numeric").exit_code == FAILED
    assert _problems(_labels(path, "--require", "numeric")[DRAFTED]) == ["requirement_unmet"]


def test_identical_answers_of_a_method_that_claims_less_are_held_to_no_claim(tmp_path: Path) -> None:
    rows = [replace(row, label=EXITING) if row.label == DRAFTED else row for row in _answers(lambda row: row)]
    path = write(tmp_path / "run.jsonl", rows, replace(RUN, methods=(RUN.methods[0], RUN.methods[2])))
    assert {_gate(path, "--require", required).exit_code for required in ("identical", "lossless")} == {PASSED}


def test_a_file_of_the_baseline_alone_meets_no_requirement(tmp_path: Path) -> None:
    rows = [row for row in usual_rows() if row.label == BASELINE]
    path = write(tmp_path / "run.jsonl", rows, replace(RUN, methods=RUN.methods[:1]))
    assert _problems(_labels(path, "--require", "identical")[BASELINE]) == ["only_baseline"]


def test_what_was_to_be_measured_and_was_not_meets_no_requirement(tmp_path: Path) -> None:
    """A method without any answer, as one that hangs; a run that was killed; and one that lost a turn of a prompt."""
    rows = _answers(lambda row: row)
    turns = [replace(row, turn=1) for row in rows if row.label == BASELINE]
    path = tmp_path / "run.jsonl"
    assert _gate(write(path, rows, TWO), "--require", "numeric").exit_code == PASSED
    for found, run, label in ((rows, RUN, EXITING), (rows[:-1], TWO, DRAFTED), ([*rows, *turns], TWO, DRAFTED)):
        assert _gate(write(path, found, run), "--require", "numeric").exit_code == FAILED
        assert "not_all_measured" in _problems(_labels(path, "--require", "numeric")[label])


def test_sessions_that_are_whole_together_meet_a_requirement(tmp_path: Path) -> None:
    rows = _answers(lambda row: row)
    parts = [
        write(tmp_path / f"{n}.jsonl", half, replace(TWO, name=str(n))) for n, half in enumerate((rows[:20], rows[20:]))
    ]
    assert _gate(*parts, "--require", "identical").exit_code == PASSED
    assert _gate(parts[0], "--require", "identical").exit_code == FAILED


def test_of_a_method_that_could_not_run_nothing_is_required_and_a_note_names_it(tmp_path: Path) -> None:
    methods = (*TWO.methods, replace(RUN.methods[2], unsupported="it needs trained exits"))
    path = write(tmp_path / "run.jsonl", _answers(lambda row: row), replace(RUN, methods=methods))
    result = _gate(path, "--require", "identical")
    assert result.exit_code == PASSED and EXITING in result.stdout.splitlines()[0]


def _slowed(rows: Sequence[Row], factor: float, *labels: str, noise: float = 0.02, seed: int = 0) -> list[Row]:
    """The times of these labels (all by default) are longer by the factor, and all times by noise of their own."""
    chance, slowed = random.Random(seed), []
    for row in rows:
        times = (factor if not labels or row.label in labels else 1.0) * exp(chance.gauss(0, noise))
        step_s = tuple(seconds * times for seconds in row.step_s)
        slowed.append(replace(row, ttft_s=(row.ttft_s or 0) * times, step_s=step_s))
    return slowed


def _two(tmp_path: Path, new: Sequence[Row], old: Sequence[Row], **changes: Any) -> tuple[Path, str, Path]:
    run = replace(RUN, name="new", **changes)
    return write(tmp_path / "new.jsonl", new, run), "--previous", write(tmp_path / "old.jsonl", old)


@pytest.mark.parametrize(
    ("factor", "code"),
    [(1.0, PASSED), (1.02, PASSED), (1.1, INCONCLUSIVE), (1.25, FAILED), (0.8, PASSED)],
    ids=["same", "2% longer", "10% longer", "25% longer", "20% shorter"],
)
def test_a_label_that_lost_speed_fails(tmp_path: Path, factor: float, code: int) -> None:
    files = _two(tmp_path, _slowed(usual_rows(60), factor, DRAFTED), _slowed(usual_rows(60), 1, seed=1))
    assert _gate(*files).exit_code == code
    labels = _labels(*files)
    assert [name for name, label in labels.items() if label["outcome"] == "failed"] == [DRAFTED] * (code == FAILED)
    change = labels[DRAFTED]["changes"][0]
    assert change["ratio"] == pytest.approx(change["now"] / change["then"]) == pytest.approx(1 / factor, rel=0.02)
    assert change["interval"]["low"] < change["ratio"] < change["interval"]["high"]


def test_a_new_version_of_a_plug_in_is_compared_with_the_old_one(tmp_path: Path) -> None:
    """Compared as two sessions of one label they are refused; for a gate their difference is the question."""
    old, new = (
        replace(RUN, methods=tuple(replace(each, source_sha256=code * (each.label == DRAFTED)) for each in RUN.methods))
        for code in ("aa", "zz")
    )
    files = _two(tmp_path, _slowed(usual_rows(60), 1.25, DRAFTED), usual_rows(60), methods=new.methods)
    write(files[2], usual_rows(60), old)
    assert [name for name, label in _labels(*files).items() if label["outcome"] == "failed"] == [DRAFTED]


def test_a_run_in_which_everything_became_slower_by_30_percent_fails(tmp_path: Path) -> None:
    """The speed-ups stayed the same, so a gate on ratios alone let it pass."""
    files = _two(tmp_path, _slowed(usual_rows(24), 1.3), _slowed(usual_rows(24), 1, seed=1))
    assert _gate(*files).exit_code == FAILED
    assert {label["outcome"] for label in _labels(*files).values()} == {"failed"}
    other = _two(tmp_path, _slowed(usual_rows(24), 1.3), usual_rows(24), machine={**RUN.machine, "cpu": "another"})
    assert _gate(*other, "--speedup-above", "0.9").exit_code == PASSED
    assert "cpu" in _gate(*other).stdout.splitlines()[0]


def test_8_percent_on_24_noisy_prompts_are_inconclusive(tmp_path: Path) -> None:
    new = _slowed(usual_rows(24), 1.08, DRAFTED, noise=0.2)
    files = _two(tmp_path, new, _slowed(usual_rows(24), 1, noise=0.2, seed=1))
    assert _gate(*files).exit_code == INCONCLUSIVE
    assert _labels(*files)[DRAFTED]["outcome"] == "inconclusive"
    assert "would decide" in next(line for line in _gate(*files).stdout.splitlines() if DRAFTED in line)


@pytest.mark.parametrize(
    ("ratio", "half_width", "sessions", "lower", "outcome", "needed"),
    [
        (0.92, 0.13, 0.0, False, "inconclusive", 59),
        (1.0, 0.104, 0.0, False, "inconclusive", 99),
        (1.0, 0.104, 0.04, False, "inconclusive", 252),
        (1.0, 0.05, 0.06, False, "inconclusive", None),
        (0.92, 0.04, 0.0, True, "failed", None),
        (0.97, 0.015, 0.0, True, "passed", None),
    ],
)
def test_how_many_prompts_decide(
    ratio: float, half_width: float, sessions: float, lower: bool, outcome: str, needed: int | None
) -> None:
    """24 (0.13 / log(1 / 0.92))^2 = 58.3, 24 (0.104 / log(1 / 0.95))^2 = 98.7; sessions take a part of the way."""
    factor = exp(hypot(half_width, sessions))
    found = Quotient(ratio, 1.0, Interval(ratio / factor, ratio * factor), 0.01, half_width, sessions, 24)
    change = Change("speed-up", found, 0.95, lower)
    assert (change.outcome, change.prompts_needed) == (outcome, needed)


def test_as_many_prompts_as_there_are_decide_nothing(tmp_path: Path) -> None:
    """ "About 8 prompts would decide instead of 8" was printed; more sessions are needed there."""
    found = Quotient(0.92, 1.0, Interval(0.85, 0.99), 0.01, 0.01, 0.0, 24)
    change = Change("speed-up", found, 0.95)
    assert change.prompts_needed is not None and change.prompts_needed <= 24
    assert "sessions" in change.text() and "prompts" not in change.text()


def test_files_that_a_pattern_without_quotes_mixes_are_refused(tmp_path: Path) -> None:
    """The shell gave the first old file to --previous and the others to the new ones: a slowdown was inconclusive."""
    names = ("new.jsonl", "old-1.jsonl", "old-2.jsonl")
    new, *old = (read(write(tmp_path / name, usual_rows(), replace(RUN, commit=name[:3]))) for name in names)
    (previous,) = compare(old[:1])
    for files, id in (([new, old[1]], "mixed_commits"), ([old[0]], "same_file_twice")):
        with refused(id, "quotes"):
            check(compare(files)[0], Conditions(), previous)


def test_new_files_of_one_commit_may_have_other_methods(tmp_path: Path) -> None:
    rows = [row for row in usual_rows() if row.label != EXITING]
    first, old = (read(write(tmp_path / name, usual_rows(), RUN)) for name in ("1.jsonl", "old.jsonl"))
    second = read(write(tmp_path / "2.jsonl", rows, TWO))
    assert check(compare([first, second])[0], Conditions(), compare([old])[0]).labels


def test_tokens_per_second_are_compared_on_one_machine_alone(tmp_path: Path) -> None:
    """Of all files of both runs, not of the first of each."""
    small, large = (replace(RUN, machine={**RUN.machine, "cores": cores}) for cores in (2, 8))
    new, other, old = (
        read(write(tmp_path / f"{name}.jsonl", usual_rows(), run))
        for name, run in (("new", small), ("other", large), ("old", small))
    )
    for files in ([new, other], [other, new]):
        assert any(
            "differ in cores" in note for note in check(compare(files)[0], Conditions(), compare([old])[0]).notes
        )


def test_a_busy_machine_is_noted(tmp_path: Path) -> None:
    """Without it, a busy machine looks like a slow commit."""
    busy = replace(RUN, machine={**RUN.machine, "cores": 2, "load_average": [1.9, 0.0, 0.0]})
    runs = {"new": busy, "calm": RUN, "old": RUN}
    new, calm, old = (read(write(tmp_path / f"{name}.jsonl", usual_rows(), run)) for name, run in runs.items())
    notes = [
        check(compare([one])[0], Conditions(), compare([other])[0]).notes for one, other in ((new, old), (calm, old))
    ]
    assert ["1.9" in "".join(of) for of in notes] == [True, False]


def test_the_ratio_is_of_the_prompts_that_both_runs_have(tmp_path: Path) -> None:
    """Once the ratio was of all prompts of each run, and its interval of the common ones: 1.180 [1.000, 1.000]."""
    rows = [
        replace(row, step_s=tuple(9 * s for s in row.step_s)) if row.prompt_id >= "p5" else row for row in usual_rows()
    ]
    half = [row for row in rows if row.prompt_id < "p5"]
    change = _labels(*_two(tmp_path, rows, half))[DRAFTED]["changes"][0]
    assert change["ratio"] == pytest.approx(1.0) and change["prompts"] < 20


def test_the_assumed_spread_of_speed_ups_is_that_of_the_kept_sessions(root: Path) -> None:
    """Of five sessions of one program: pooled over its methods, of the logarithms; from the lines as they are."""
    logarithms: dict[str, list[float]] = {}
    for number in range(1, 6):
        lines = (root / f"results/reference/all-{number}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [row for row in map(json.loads, lines[1:]) if row["repeat"] >= 0 and not row["error"]]
        disturbed = {(row["suite"], row["prompt_id"], row["repeat"]) for row in rows if row.get("invalid")}
        times: Counter[str] = Counter()
        for row in rows:
            if (row["suite"], row["prompt_id"], row["repeat"]) not in disturbed:
                times[row["label"]] += row["ttft_s"] + sum(row["step_s"])
        for label in times.keys() - {BASELINE}:
            logarithms.setdefault(label, []).append(log(times[BASELINE] / times[label]))
    spread = fmean(variance(values) for values in logarithms.values()) ** 0.5
    assert _SESSION_SPREADS["speed-up"] == pytest.approx(spread, abs=5e-4)


@pytest.mark.slow
def test_sessions_of_one_program_pass_each_other(root: Path) -> None:
    """Without a spread of sessions and a correction for many figures these pairs failed."""
    kept = root / "results" / "reference"
    codes = {
        _gate(kept / f"all-{n}.jsonl", "--previous", kept / f"all-{old}.jsonl").exit_code for n, old in ((1, 4), (2, 5))
    }
    assert codes <= {PASSED, INCONCLUSIVE}


@pytest.mark.parametrize("sessions", [1, 3])
def test_the_interval_of_a_change_contains_the_true_one(sessions: int) -> None:
    """Prompts of uneven length and gain, measured twice: pairing leaves the noise of times and of sessions."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        length, gain = rng.lognormal(0, 0.7, 30), rng.lognormal(0.3, 0.3, 30)
        runs = []
        for change in (0.9, 1.0):
            favour = rng.normal(0, 0.03 if sessions > 1 else 0, sessions)
            noise = rng.normal(0, 0.1, (sessions, 30))
            bottoms = length / (gain * change) * np.exp(noise + favour[:, None])
            codes, prompts = np.repeat(np.arange(sessions), 30), [f"p{n}" for n in range(30)] * sessions
            runs.append(Observations(np.tile(length, sessions), bottoms.ravel(), codes, prompts))
        found = quotient(runs[0], runs[1], 0.0)
        assert found is not None
        held += found.interval.low <= 0.9 <= found.interval.high
    assert 0.92 <= held / 400 <= 0.99


def test_a_method_without_a_speed_up_now_fails(tmp_path: Path) -> None:
    gone = [failed(row) if row.label == DRAFTED else row for row in usual_rows()]
    missing = [row for row in usual_rows() if row.label != DRAFTED]
    for rows in (gone, missing):
        label = _labels(*_two(tmp_path, rows, usual_rows()))[DRAFTED]
        assert label["outcome"] == "failed" and label["changes"][0]["now"] is None


def test_a_label_that_can_no_longer_run_fails_without_a_note_that_it_is_not_checked(tmp_path: Path) -> None:
    methods = (*TWO.methods, replace(RUN.methods[2], unsupported="it needs trained exits"))
    new = write(tmp_path / "new.jsonl", _answers(lambda row: row), replace(RUN, name="new", methods=methods))
    old = write(tmp_path / "old.jsonl", usual_rows())
    result = json.loads(_gate(new, "--previous", old, "--format", "json").stdout)
    assert {label["label"]: label["outcome"] for label in result["labels"]}[EXITING] == "failed"
    assert [note for note in result["notes"] if EXITING in note] == []


def test_a_method_that_failed_on_some_prompts_fails_though_the_others_are_as_fast(tmp_path: Path) -> None:
    """Its speed was that of the prompts that were left, and nothing was said."""
    some = _answers(failed)
    label = _labels(*_two(tmp_path, some, usual_rows()))[DRAFTED]
    assert label["outcome"] == "failed" and _problems(label) == ["answers_failed"]


@pytest.mark.parametrize("change", [{"threads": 2}, {"executor": "compiled"}])
def test_an_earlier_run_of_other_settings_cannot_be_compared(tmp_path: Path, change: dict[str, Any]) -> None:
    result = _gate(*_two(tmp_path, usual_rows(), usual_rows(), **change))
    assert result.exit_code == INVALID and next(iter(change)) in result.stderr


@pytest.mark.parametrize("flag", ["--speedup-above", "--tokens-above"])
def test_more_than_the_earlier_speed_cannot_be_asked_for(tmp_path: Path, flag: str) -> None:
    """With 1.5 a label as fast as before was inconclusive, however much was measured."""
    files = _two(tmp_path, usual_rows(), usual_rows())
    assert [_gate(*files, flag, ratio).exit_code for ratio in (1, 1.01)] == [INCONCLUSIVE, 2]


def test_earlier_results_without_a_speed_are_invalid_and_no_condition_is_wrong_usage(tmp_path: Path) -> None:
    old = [failed(row) for row in usual_rows()]
    assert _gate(*_two(tmp_path, usual_rows(), old)).exit_code == INVALID
    assert _gate(tmp_path / "new.jsonl").exit_code == 2
    assert _gate(tmp_path / "new.jsonl", "--require", "perfect").exit_code == 2


def test_broken_data_count_more_than_a_broken_requirement(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [*usual_rows(), drafted_row("p0")])
    result = _gate(path, "--require", "identical")
    assert result.exit_code == INVALID and not result.stdout


def test_annotations_and_junit_have_each_label_with_its_outcome(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", usual_rows())
    lines = _gate(path, "--require", "identical", "--format", "github").stdout.splitlines()
    assert [line.split(" ")[0] for line in lines[:-1]] == ["::notice", "::error"]
    result = _gate(path, "--require", "identical", "--format", "junit")
    assert result.exit_code == FAILED
    suite = ElementTree.fromstring(result.stdout)
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    assert [case.get("name") for case in suite if case.find("failure") is not None] == [EXITING]


def test_the_text_has_a_line_for_each_label_and_the_result_last(tmp_path: Path) -> None:
    lines = _gate(*_two(tmp_path, usual_rows(), usual_rows()), "--require", "lossless").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["Note:", "passed", "passed", "passed", "Result:"]
