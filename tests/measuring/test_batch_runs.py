"""Runs in batches: the rows they write, what they refuse, how they go on after a kill, and what is shown of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from command import ok
from fakes_measuring import TALKS, Shallower, rows_of_plan
from fixtures_run import invoke_run, make_settings, measure, measured, timeless, write_prompts
from tiny import tiny_folder

from benchctl.decoding.method import Context, Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling
from benchctl.measuring import settings as ask
from benchctl.measuring.plan import Plan
from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.session import Notice, Progress
from benchctl.methods.autoregressive import Autoregressive
from benchctl.records.schema import Row
from benchctl.records.writer import read

IDS = ("0", "1", "2")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(tiny_folder(tmp_path_factory.mktemp("target")), dtype="float64")


@dataclass
class Broken(Autoregressive):
    """Cannot say anything about the number 1."""

    def start(self, context: Context) -> int:
        if context.target.tokenizer.decode_text(context.tokens).find("to 1") >= 0:
            raise RuntimeError("out of luck")
        token: int = super().start(context)
        return token


def rows_of(
    target: Target,
    method: Method,
    batch_size: int = 3,
    sampling: Sampling = Sampling(),  # noqa: B008 frozen
    prompts: Sequence[Prompt] = TALKS,
) -> list[Row]:
    """Everything that a plan of the baseline and this method comes to, one repeat."""
    methods = {"plain": Autoregressive(), "other": method}
    return rows_of_plan(target, methods, Plan(tuple(prompts), tuple(methods), 1, batch_size), sampling)


def apart(rows: Sequence[Row]) -> dict[tuple[str, str, int], Row]:
    """Rows by label, prompt and turn, without what only batches have."""
    return {(row.label, row.prompt_id, row.turn): replace(row, batch=(), order=0) for row in timeless(rows)}


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=5)])
def test_turn_by_turn_a_batch_says_what_its_prompts_are_answered_one_by_one(target: Target, sampling: Sampling) -> None:
    rows = rows_of(target, Shallower(later=2), sampling=sampling)
    assert apart(rows) == apart(rows_of(target, Shallower(later=2), 1, sampling))
    assert {row.batch for row in rows} == {IDS} and len(rows) == 12
    assert len({row.token_ids for row in rows}) > 6


def test_rows_of_a_batch_have_its_times_and_stand_together(target: Target) -> None:
    """The clock moves on by a second a reading: one before the prompts, one after all of them, one after each step."""
    rows = rows_of(target, Autoregressive())
    first_turn = [(0, label, name) for label in ("plain", "other") for name in IDS]
    assert [(row.turn, row.label, row.prompt_id) for row in rows[:7]] == [*first_turn, (1, "plain", "0")]
    assert [row.order for row in rows] == list(range(12))
    assert {row.ttft_s for row in rows} == {1.0}
    assert all(row.step_s == (1.0,) * (len(row.token_ids) - 1) for row in rows)
    assert {row.verdict for row in rows if row.label == "other"} == {"identical"}
    assert len({row.peak_memory_bytes for row in rows[:3]}) == 1


def test_a_lossy_method_is_judged_answer_by_answer(target: Target) -> None:
    rows = [row for row in rows_of(target, Shallower()) if row.label == "other"]
    assert "lossy" in {row.verdict for row in rows}
    assert rows[0].layers == (2, 2, 2, 2, 1)[: len(rows[0].layers)]


def test_a_batch_fails_as_a_whole_and_its_next_turn_too(target: Target) -> None:
    """What was left of it would be another batch than the baseline's, and no time to set against that."""
    rows = [row for row in rows_of(target, Broken()) if row.label == "other"]
    assert [row.error for row in rows[:3]] == ["RuntimeError: out of luck"] * 3
    assert all(row.error and "turn 0" in row.error and "turn 1" in row.error for row in rows[3:]) and len(rows) == 6
    assert {row.batch for row in rows} == {IDS}
    single = [row for row in rows_of(target, Broken(), 1) if row.label == "other"]
    assert [row.error is None for row in single if row.turn == 0] == [True, False, True]


def test_a_prompt_that_does_not_fit_is_named_in_its_batch(target: Target) -> None:
    endless = Prompt("endless", "mt-bench", ("Say something. " * 200, "And?"))
    rows = rows_of(target, Autoregressive(), prompts=[TALKS[0], endless])
    assert all("prompt endless has" in str(row.error) and "context of 128" in str(row.error) for row in rows[:4])


@pytest.fixture
def settings(run_folder: Path, tmp_path: Path) -> ask.RunSettings:
    """Batches of `short`, of `talk` in two turns, and of `story` and `ball`."""
    prompts = [
        *map(json.loads, (run_folder / "three.jsonl").read_text().splitlines()),
        {"id": "ball", "prompt": "A ball."},
    ]
    usual = make_settings(run_folder, tmp_path / "out.jsonl")
    bench = write_prompts(tmp_path / "four.jsonl", prompts)
    return replace(usual, methods=("autoregressive",), prompts=ask.PromptSettings(benches=(str(bench),)), batch_size=4)


def test_a_batched_run_counts_every_generation(settings: ask.RunSettings, tmp_path: Path) -> None:
    events: list[Notice | Progress] = []
    summary = measure(settings, events.append)
    file = read(tmp_path / "out.jsonl")
    assert (file.run.batch_size, len(measured(file)), summary.measured) == (4, 10, 10)
    batches = [row.batch for row in measured(file) if row.repeat == 0]
    assert batches == [("short",), *[("talk",)] * 2, *[("story", "ball")] * 2]
    progress = [event.done for event in events if isinstance(event, Progress) and not event.warm_up]
    assert progress == [1, 2, 3, 4, 5, 6, 8, 10]


@pytest.mark.slow
@pytest.mark.parametrize("lost_lines", [1, 2, 3, 5])
def test_a_batched_run_resumes_where_it_was_killed(settings: ask.RunSettings, tmp_path: Path, lost_lines: int) -> None:
    """The last batch has two rows: with one of them gone, it is measured again whole."""
    out = tmp_path / "out.jsonl"
    measure(settings)
    whole = read(out)
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:-lost_lines]))
    summary = measure(replace(settings, resume=True))
    assert (summary.measured, summary.recalled) == ({1: 2, 2: 2, 3: 4, 5: 5}[lost_lines], 10 - summary.measured)
    assert timeless(measured(read(out))) == timeless(measured(whole))


def test_all_measures_what_decodes_batches_and_says_of_the_others_why_not(here: Path) -> None:
    result = ok(invoke_run("--batch-size", "2", "--repeats", "1", "--method", "all"))
    assert "prompt_lookup cannot run here" in result.stderr
    assert "up to 2" in result.stderr and "up to 2" in " ".join(result.stdout.split())
    assert max(map(len, result.stdout.splitlines())) <= 80
    rows = measured(read(here / "out.jsonl"))
    assert "autoregressive" in {row.label for row in rows} and "prompt_lookup" not in {row.label for row in rows}
