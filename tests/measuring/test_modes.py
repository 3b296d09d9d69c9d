"""Runs in several modes: free, replay and profile rows side by side, through resume, and in tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes_measuring import TALKS, Broken, Lying, Plain, rows_of_plan
from fixtures_run import LABELS, make_settings, measure_file, measured, timeless
from tiny import tiny_folder

from benchctl.decoding.model.target import Target
from benchctl.measuring import settings as ask
from benchctl.measuring.plan import Plan
from benchctl.records.schema import Mode, Row
from benchctl.records.writer import RunFile

ALL: tuple[Mode, ...] = ("free", "replay", "profile")
GENERATIONS = 24 * 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(tiny_folder(tmp_path_factory.mktemp("target")), dtype="float64")


def settings_of(folder: Path, out: Path) -> ask.RunSettings:
    settings = make_settings(folder, out)
    return replace(settings, repeat=replace(settings.repeat, warm_up=0, replay=True, profile=True))


@pytest.fixture(scope="module")
def whole(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFile:
    """A run that was not interrupted."""
    return measure_file(settings_of(run_folder, tmp_path_factory.mktemp("whole") / "out.jsonl"))


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
def test_a_resumed_run_of_several_modes_is_equal(whole: RunFile, run_folder: Path, tmp_path: Path, kept: int) -> None:
    """In a file that was renamed, too."""
    lines = whole.path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + GENERATIONS
    renamed = tmp_path / "renamed.jsonl"
    renamed.write_bytes(b"".join(lines[: 1 + kept]))
    again = measure_file(replace(settings_of(run_folder, renamed), resume=True))
    assert timeless(again.rows) == timeless(whole.rows)


def test_a_method_that_does_not_say_the_forced_text_fails_in_replay_alone(target: Target) -> None:
    methods = {"plain": Plain(), "lying": Lying()}
    rows = rows_of_plan(target, methods, Plan(TALKS[:1], tuple(methods), 1, modes=ALL))
    failed = [row for row in rows if row.error]
    assert [(row.label, row.mode, row.turn) for row in failed] == [("lying", "replay", 0), ("lying", "replay", 1)]
    assert "where another token was forced upon it" in str(failed[0].error)
    # A baseline that fails leaves no text to replay.
    methods = {"broken": Broken(), "plain": Plain()}
    rows = rows_of_plan(target, methods, Plan(TALKS[:1], tuple(methods), 1, modes=ALL))
    assert all(row.error for row in rows if row.mode == "replay")
