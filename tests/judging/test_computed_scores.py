"""Judges that compute, by the same command, files and resume as those that are asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fixtures_records import BASELINE
from fixtures_run import LABELS, make_folder, make_settings
from judged import measured_file
from parrot import parrot_folder

from benchctl.cli import main
from benchctl.measuring.check import check
from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.run import run
from benchctl.records.scores import Score, read_scores, scores_path
from benchctl.records.writer import RunFile, read

LOSSY = LABELS[2]


def judged(results: Path, *words: str) -> Sequence[Score]:
    """The scores after `benchctl judge`."""
    done = CliRunner().invoke(main, ["judge", str(results), *words])
    assert done.exit_code == 0, done.output
    return read_scores(scores_path(results)).scores


def refused(results: Path, *words: str) -> str:
    done = CliRunner().invoke(main, ["judge", str(results), *words])
    assert done.exit_code == 2 and not scores_path(results).exists()
    return done.output


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> RunFile:
    """A run of the tiny target, a talk of two turns among its prompts."""
    folder = make_folder(tmp_path_factory.mktemp("computed"))
    run(check(make_settings(folder, folder / "first.jsonl"), lambda notice: None), lambda event: None)
    return read(folder / "first.jsonl")


def test_likelihoods_by_the_command_are_those_that_the_run_itself_took(measured: RunFile) -> None:
    """A run takes them of greedy answers that are not the baseline's, by the target as it was loaded then."""
    target = measured.path.parent / "target"
    scores = judged(measured.path, "--judge", "likelihood", "--model", str(target))
    rows = {(row.prompt_id, row.turn, row.label, row.repeat): row for row in measured.rows if row.repeat >= 0}
    compared = 0
    for score in scores:
        row = rows[score.prompt_id, score.turn, score.label, score.repeat]
        assert (score.judge, score.model, score.protocol) == ("likelihood[model=target]", "target", "likelihood")
        if score.identical:
            assert score.score == score.baseline_score
        elif row.turn == 0:  # a later turn follows another answer than the baseline's
            taken = row.fidelity["target_logprob"] / row.fidelity["scored_tokens"]
            assert score.score == pytest.approx(taken, rel=1e-5) != pytest.approx(score.baseline_score)
            compared += 1
    assert compared > 0 and len(scores) == sum(label != BASELINE for _, _, label, _ in rows)


def test_a_run_is_judged_by_the_target_that_it_was_told(measured: RunFile, tmp_path: Path) -> None:
    """Results know a folder by its name alone: after the measurement it once was asked where the target lies."""
    from benchctl.cli.judge import JudgeOptions, beside_run, settings_of

    target = str(measured.path.parent / "target")
    beside = beside_run(JudgeOptions(judge="likelihood"), target)
    assert settings_of(beside, [measured]).judge.label == "likelihood[model=target]"
    for label, place in (("likelihood[model=elsewhere]", target), ("exact", target), ("likelihood", "")):
        assert beside_run(options := JudgeOptions(judge=label), place) is options


def test_a_judging_that_was_torn_goes_on_and_ends_as_if_nothing_had_happened(measured: RunFile) -> None:
    target = measured.path.parent / "target"
    whole = judged(measured.path, "--judge", "likelihood", "--model", str(target))
    path = scores_path(measured.path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    again = judged(measured.path, "--judge", "likelihood", "--model", str(target))
    assert [replace(score, judged_at="") for score in again] == [replace(score, judged_at="") for score in whole]


def test_a_local_judge_is_asked_in_both_orders_and_by_the_cache_only_once(measured: RunFile, tmp_path: Path) -> None:
    """It gives what stands first 8 and what stands second 3, whatever that is."""
    path = tmp_path / "first.jsonl"
    path.write_bytes(measured.path.read_bytes())
    model = parrot_folder(tmp_path / "parrot", "8 3", context_tokens=4096)
    words = ["--judge", "local[way=generate]", "--model", str(model)]
    first = judged(path, *words)
    shown = [(score.order, score.score, score.baseline_score) for score in first if not score.identical]
    assert set(shown) == {("baseline_first", 3.0, 8.0), ("baseline_second", 8.0, 3.0)}
    assert shown.count(("baseline_first", 3.0, 8.0)) == len(shown) / 2 > 0
    assert {score.model.partition("@")[0] for score in first} == {"parrot"} and str(tmp_path) not in first[0].judge
    scores_path(path).unlink()
    assert all(score.cached or score.identical for score in judged(path, *words))


def test_exact_match_by_the_command_is_about_the_prompts_that_can_be_checked(tmp_path: Path) -> None:
    def answer(prompt: Prompt, turn: int, label: str) -> str:
        right = prompt.exact_answers and prompt.exact_answers[turn]
        return f"The answer is {right}" if label == BASELINE and right else "I do not know"

    results = tmp_path / "first.jsonl"
    measured_file(results, {"tasks": 5, "koala": 2}, answer)
    scores = judged(results, "--judge", "exact")
    assert {(score.suite, score.score, score.baseline_score) for score in scores} == {("tasks", 0.0, 1.0)}
    assert (len(scores), {score.model for score in scores}, {score.template for score in scores}) == (5, {""}, {""})


def test_what_cannot_be_judged_so_is_refused_before_a_score_is_written(measured: RunFile, tmp_path: Path) -> None:
    path = tmp_path / "first.jsonl"
    path.write_bytes(measured.path.read_bytes())
    assert "first has an exact answer" in refused(path, "--judge", "exact")
    assert "--model and --judge likelihood" in refused(path, "--judge", "likelihood")
    draft = str(measured.path.parent / "draft")
    assert "has other weights" in refused(path, "--judge", "likelihood", "--model", draft)
    assert "local needs a judge" in refused(path, "--judge", "local")
    assert "no option 'size'" in refused(path, "--judge", "local[size=7]")
    without = tmp_path / "without.jsonl"
    lines = [line for line in path.read_text().splitlines() if json.loads(line).get("label") != BASELINE]
    without.write_text("\n".join(lines) + "\n")
    target = str(measured.path.parent / "target")
    assert "the baseline" in refused(without, "--judge", "likelihood", "--model", target)
