"""Runs in several modes: free, replay and profile rows side by side, through resume, and in tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fakes_measuring import Broken, FakeClock, Lying, Plain
from fixtures_run import LABELS, invoke_run, make_settings, measured, timeless
from tiny import tiny_folder

from benchctl.cli import main
from benchctl.decoding.method import Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling
from benchctl.measuring import settings as ask
from benchctl.measuring.check import check
from benchctl.measuring.measure import DecodingConfig, Measurer
from benchctl.measuring.plan import Plan
from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.run import run
from benchctl.records.schema import Mode, Row, to_line
from benchctl.records.writer import RunFile, read

ALL: tuple[Mode, ...] = ("free", "replay", "profile")
TALKS = tuple(Prompt(str(number), "mt-bench", (f"Count to {number}.", "And back?")) for number in range(3))
GENERATIONS = 24 * 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(tiny_folder(tmp_path_factory.mktemp("target")), dtype="float64")


def settings_of(folder: Path, out: Path) -> ask.RunSettings:
    settings = make_settings(folder, out)
    return replace(settings, repeat=replace(settings.repeat, warm_up=0, replay=True, profile=True))


def measure(settings: ask.RunSettings) -> RunFile:
    run(check(settings, lambda notice: None), lambda event: None)
    assert settings.out is not None
    return read(settings.out)


@pytest.fixture(scope="module")
def whole(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFile:
    """A run that was not interrupted."""
    return measure(settings_of(run_folder, tmp_path_factory.mktemp("whole") / "out.jsonl"))


def by_mode(rows: Sequence[Row], mode: Mode) -> dict[tuple[str, str, int, int], Row]:
    return {(row.label, row.prompt_id, row.turn, row.repeat): row for row in rows if row.mode == mode}


def test_every_label_has_a_row_of_every_mode_for_every_turn_and_repeat(whole: RunFile) -> None:
    found = [by_mode(measured(whole), mode) for mode in ALL]
    assert [len(rows) for rows in found] == [24, 24, 24]
    assert found[0].keys() == found[1].keys() == found[2].keys()
    assert {label for label, *_ in found[0]} == set(LABELS)
    assert whole.run.modes == ALL and not any(row.error for row in whole.rows)


def test_replay_rows_say_the_baseline_s_tokens_to_the_baseline_s_prompt_in_every_turn(whole: RunFile) -> None:
    """Also those of the lossy method, whose own text is another, and whose second turn so has another history."""
    free, forced = by_mode(measured(whole), "free"), by_mode(measured(whole), "replay")
    for (_, *turn), row in forced.items():
        baseline = free["autoregressive", *turn]  # type: ignore[index]
        for field in ("token_ids", "text", "prompt_tokens"):
            assert getattr(row, field) == getattr(baseline, field)
    own = [(row.token_ids, forced[key].token_ids) for key, row in free.items() if key[0] == LABELS[2]]
    assert any(mine != theirs for mine, theirs in own)


def test_replay_rows_have_no_verdict_but_tell_how_often_the_forced_token_was_the_method_s_own(whole: RunFile) -> None:
    forced = by_mode(measured(whole), "replay")
    assert {row.verdict for row in forced.values()} == {None}
    shares = {label: [0.0, 0.0] for label in LABELS}
    for (label, *_), row in forced.items():
        shares[label][0] += row.fidelity["replay_agreed_tokens"]
        shares[label][1] += row.fidelity["replay_judged_tokens"]
    tokens = sum(len(row.token_ids) for (label, *_), row in forced.items() if label == LABELS[0])
    assert shares[LABELS[0]] == [tokens, tokens]
    assert shares[LABELS[2]][0] < shares[LABELS[2]][1]
    assert all("replay_agreed_tokens" not in row.fidelity for row in whole.rows if row.mode != "replay")


def test_profile_rows_say_what_the_free_ones_say_and_their_phases_add_up_to_their_steps(whole: RunFile) -> None:
    free, split = by_mode(measured(whole), "free"), by_mode(measured(whole), "profile")
    for key, row in split.items():
        for field in ("token_ids", "accepted", "layers", "verdict"):
            assert getattr(row, field) == getattr(free[key], field)
        sums = [sum(seconds) for seconds in zip(*row.phases.values(), strict=True)]
        assert sums == pytest.approx(list(row.step_s), rel=1e-9)
        assert all(any(row.phases[phase]) for phase in ("verify", "commit", "host")) or not row.step_s
    assert all(row.phases == {} for row in whole.rows if row.mode != "profile")


@pytest.mark.slow
@pytest.mark.parametrize("kept", [5, 31])
def test_a_resumed_run_of_several_modes_is_the_run_it_resumes(
    whole: RunFile, run_folder: Path, tmp_path: Path, kept: int
) -> None:
    """In a file that was renamed, too."""
    lines = whole.path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + GENERATIONS
    renamed = tmp_path / "renamed.jsonl"
    renamed.write_bytes(b"".join(lines[: 1 + kept]))
    again = measure(replace(settings_of(run_folder, renamed), resume=True))
    assert timeless(again.rows) == timeless(whole.rows)


def rows_of(target: Target, methods: dict[str, Method], plan: Plan) -> list[Row]:
    """Everything that a plan comes to; the first method is the baseline."""
    terms = DecodingConfig(5, Sampling(), batch_size=plan.batch_size)
    measurer = Measurer(target, methods, plan.labels[0], terms, FakeClock())
    rows: list[Row] = []
    for jobs in plan.by_batch():
        measurer.begin()
        rows += [row for job in jobs for row in measurer.measure(job)]
    return rows


def test_a_method_that_does_not_say_the_forced_text_fails_in_replay_alone(target: Target) -> None:
    rows = rows_of(target, {"plain": Plain(), "lying": Lying()}, Plan(TALKS[:1], ("plain", "lying"), 1, modes=ALL))
    failed = [row for row in rows if row.error]
    assert [(row.label, row.mode, row.turn) for row in failed] == [("lying", "replay", 0), ("lying", "replay", 1)]
    assert "where another token was forced upon it" in str(failed[0].error)
    # A baseline that fails leaves no text to replay.
    rows = rows_of(target, {"broken": Broken(), "plain": Plain()}, Plan(TALKS[:1], ("broken", "plain"), 1, modes=ALL))
    assert all(row.error for row in rows if row.mode == "replay")


@pytest.mark.slow
def test_the_modes_have_tables_of_their_own_and_the_headline_is_of_free_rows(here: Path) -> None:
    labels = ("--method", "two_model", "--method", "early_exit[exits=1,threshold=0]")
    result = invoke_run(*labels, "--replay", "--profile")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "\nReplay " in result.stdout and "\nA step, ms " in result.stdout
    file = read(here / "out.jsonl")
    assert (file.run.modes, file.run.order) == (ALL, "abba")
    alone = replace(file.run, modes=("free",))
    free = here / "free.jsonl"
    free.write_bytes(to_line(alone) + b"".join(to_line(row) for row in file.rows if row.mode == "free"))
    both, headline = (figures(path) for path in ("out.jsonl", "free.jsonl"))
    assert {name: value for name, value in both.items() if name in headline} == headline
    extra = {name for _, name in both.keys() - headline.keys()}
    assert {"replay_speedup", "replay_agreement", "step_verify_s", "profile_overhead"} <= extra


def figures(path: str) -> dict[tuple[str, str], object]:
    """Every metric of every method."""
    result = CliRunner().invoke(main, ["compare", path, "--format", "json"])
    assert result.exit_code == 0, result.output
    (group,) = json.loads(result.stdout)["groups"]
    methods = group["suites"][-1]["methods"]
    return {(method["label"], name): found for method in methods for name, found in method["metrics"].items()}
