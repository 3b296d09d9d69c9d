"""A round that was measured out of bounds is measured again as a whole, at most twice, whatever stops the run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from compared import to_frame
from fakes_sessions import LABELS, Met, ended, measure
from fixtures_records import BASELINE, DRAFTED, EXITING
from warned import warned

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.frame.build import pair
from benchctl.analysis.warnings import planned_rounds
from benchctl.measuring.measure import answer_seed
from benchctl.measuring.plan import Plan, Task
from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.validity import ENOUGH, PATIENCE, Bounds, Watch
from benchctl.records.reader import row_key
from benchctl.records.schema import Row
from benchctl.records.writer import read

QUIET, LOUD = {"waited_share": 0.0}, {"waited_share": 0.5}
THROTTLED = {"throttle_reasons": float(0x40)}
PROMPTS = (Prompt("p0", "koala", ("Hi",)), Prompt("p1", "koala", ("Hi", "And?")), Prompt("p2", "koala", ("Hi",)))
PLAN = Plan(PROMPTS, LABELS, repeats=2)
PLANS = {
    "plain": PLAN,
    "once": Plan(PROMPTS, LABELS, repeats=1),
    "batched": Plan((*PROMPTS, Prompt("p3", "koala", ("Hi",))), LABELS, repeats=2, batch_size=2),
    "modes": Plan(PROMPTS, LABELS, repeats=2, modes=("free", "replay", "profile")),
}


def watch() -> Watch:
    """One that knows what is usual."""
    bounds = Bounds(1.0)
    for _ in range(ENOUGH):
        bounds.problems(QUIET)
    return Watch(bounds, lambda notice: None)


def loud(*rounds: tuple[str, int]) -> Callable[[Task], Met]:
    """A machine that disturbs these repeats of these prompts, or of batches that begin with them, and no others."""
    return lambda task: Met(LOUD if (task.prompt.id, task.repeat) in rounds else QUIET)


def repeats_of(rows: tuple[Row, ...], prompt_id: str) -> dict[int, bool]:
    """The repeats that a prompt has, and whether any row of each is marked."""
    marks: dict[int, bool] = {}
    for row in rows:
        if row.prompt_id == prompt_id:
            marks[row.repeat] = marks.get(row.repeat, False) or bool(row.invalid)
    return marks


def test_a_disturbed_round_is_measured_again_as_a_further_repeat_of_all_turns_and_labels(tmp_path: Path) -> None:
    """It was only left out once, so that a disturbed run had fewer pairs than were asked for. The retry comes after all
    repeats of its prompt, before the next prompt, and draws the same answers: a redraw would replace long texts more
    often."""
    path, events = tmp_path / "a.jsonl", list[object]()
    session, tasks = measure(path, PLAN, loud(("p1", 1)), watch(), events.append)
    rows = tuple(read(path).rows)
    assert repeats_of(rows, "p1") == {0: False, 1: True, 3: False}
    assert repeats_of(rows, "p0") == repeats_of(rows, "p2") == {0: False, 1: False}
    planned, again = ([row for row in rows if (row.prompt_id, row.repeat) == ("p1", repeat)] for repeat in (1, 3))
    assert [(row.turn, row.label) for row in again] == [(row.turn, row.label) for row in planned]
    assert [row.order for row in again] == [row.order + len(PLAN) for row in planned]
    assert len({row.order for row in rows}) == len(rows) == len(PLAN) + 4
    assert (session.done, session.measured, session.lost) == (len(rows), len(rows), 0)
    assert ended(events) == (len(rows), len(rows))
    rounds = list(dict.fromkeys((task.prompt.id, task.repeat) for task in tasks))
    assert rounds == [("p0", 0), ("p0", 1), ("p1", 0), ("p1", 1), ("p1", 3), ("p2", 0), ("p2", 1)]
    seeds = {(task.repeat, task.turn): answer_seed(task) for task in tasks if task.prompt.id == "p1"}
    assert seeds[3, 0] == seeds[1, 0] != seeds[0, 0]


@pytest.mark.parametrize("kind", PLANS)
def test_what_stays_disturbed_is_given_up_after_two_more_tries(kind: str, tmp_path: Path) -> None:
    """Nor is it tried again by a run that goes on, however often."""
    plan, path = PLANS[kind], tmp_path / "a.jsonl"
    again = plan.repeats, 2 * plan.repeats
    meet = loud(*(("p0", repeat) for repeat in (0, *again, 3 * plan.repeats)))
    session, _ = measure(path, plan, meet, watch())
    assert session.lost == 1
    whole = path.read_bytes()
    marked = repeats_of(tuple(read(path).rows), "p0")
    assert [repeat for repeat, bad in marked.items() if bad] == [0, *again]
    assert set(marked) == {*range(plan.repeats), *again}
    for _ in range(3):
        session, measured = measure(path, plan, meet, watch())
        assert (session.lost, measured) == (1, [])
    assert path.read_bytes() == whole
    (values,) = warned(compare([read(path)])[0], "rounds_disturbed")
    assert (values["disturbed"], values["repeated"]) == (1, 0)


@pytest.mark.parametrize("kind", PLANS)
def test_a_run_cut_after_any_generation_ends_as_if_never_cut(kind: str, tmp_path: Path) -> None:
    """Before, in and behind a round that is measured again, and one that is so twice."""
    plan, path = PLANS[kind], tmp_path / "a.jsonl"
    n = plan.repeats
    meet = loud(("p0", n - 1), ("p2", 0), ("p2", n))
    measure(path, plan, meet, watch())
    whole = path.read_bytes().splitlines(keepends=True)
    rows = read(path).rows
    assert {row.repeat for row in rows if row.prompt_id == "p2"} == {*range(n), n, 2 * n}
    for kept in range(1, len(whole)):
        if rows[kept - 2].batch and kept > 1 and rows[kept - 2].batch[-1] != rows[kept - 2].prompt_id:
            continue  # within a batch, which is written at once
        path.write_bytes(b"".join(whole[:kept]))
        measure(path, plan, meet, watch())
        assert path.read_bytes().splitlines(keepends=True)[1:] == whole[1:], kept


def test_without_a_watch_nothing_is_tried_but_what_has_begun_is_finished(tmp_path: Path) -> None:
    """Half of a round would stay half for ever."""
    path = tmp_path / "a.jsonl"
    meet = loud(("p0", 0), ("p0", 2), ("p1", 0))
    measure(path, PLAN, meet, watch())
    whole = path.read_bytes().splitlines(keepends=True)
    rows = list(read(path).rows)
    begins = next(index for index, row in enumerate(rows) if row.repeat == 2)
    for kept, more in ((begins, 0), (begins + 1, 1)):
        path.write_bytes(b"".join(whole[: 1 + kept]))
        _, measured = measure(path, PLAN, meet, None)
        again = [task for task in measured if task.repeat >= PLAN.repeats]
        assert [(task.prompt.id, task.repeat) for task in again] == [("p0", 2)] * more
        assert measure(path, PLAN, meet, None)[1] == []
        assert len(set(map(row_key, read(path).rows))) == len(PLAN) + 2 * more


def test_while_a_disturbance_lasts_nothing_is_measured_again_and_a_resumed_run_makes_up_for_it(tmp_path: Path) -> None:
    """A GPU that is too hot all the time would take three times as long for nothing."""
    path = tmp_path / "a.jsonl"
    session, measured = measure(path, PLAN, lambda task: Met(THROTTLED), watch())
    tried = {(task.prompt.id, task.repeat) for task in measured if task.repeat >= PLAN.repeats}
    assert tried == {("p0", 2)} and session.lost == 6  # two planned rounds and this one are PATIENCE
    _, measured = measure(path, PLAN, lambda task: Met(QUIET), watch())
    assert len(measured) == len(PLAN)
    assert measure(path, PLAN, lambda task: Met(THROTTLED), watch())[1] == []
    pairs = pair(to_frame([read(path)]), DRAFTED, BASELINE)
    assert Counter(pairs["prompt_id"]) == {"p0": 2, "p1": 4, "p2": 2}


@pytest.mark.parametrize(("fails_at", "lost"), [((2,), 0), ((0, 2, 4), 0), ((2, 4), 1), ((0, 2), 0)])
def test_a_round_enters_figures_once_whatever_failed_in_it(
    fails_at: tuple[int, ...], lost: int, tmp_path: Path
) -> None:
    """Where the first try had a failure and the second had not, the labels that did not fail had pairs of both, and
    their prompt counted twice; where a label always fails they had so in every disturbed round of it. And such a round,
    good for all others, was told of as not made good."""
    plan, path = Plan(PROMPTS, (*LABELS, EXITING), repeats=2), tmp_path / "a.jsonl"

    def meet(task: Task) -> Met:
        if task.label == EXITING and task.prompt.id == "p0" and task.repeat in fails_at:
            return Met({}, error="out of memory")
        return loud(("p0", 0))(task)

    session, _ = measure(path, plan, meet, watch())
    pairs = pair(to_frame([read(path)]), DRAFTED, BASELINE)
    assert sorted(pairs[pairs["prompt_id"] == "p0"]["repeat"]) == [1, 4]
    assert session.lost == lost == lost_in(path)
    whole = path.read_bytes()
    assert measure(path, plan, meet, watch())[1] == [] and path.read_bytes() == whole


def lost_in(path: Path) -> int:
    """The rounds that compare counts as left out, and not made good."""
    file = read(path)
    planned = planned_rounds(Group((file,), to_frame([file]), (), ()))
    return int((planned["disturbed"] & ~planned["good"]).sum())


@pytest.mark.slow
def test_a_run_and_compare_count_the_same_rounds_as_lost_however_often_it_was_resumed(tmp_path: Path) -> None:
    """It counted only those of batches in which it had something to do."""
    for seed in range(25):
        chance = random.Random(seed)
        plan, path = Plan(PROMPTS, (*LABELS, EXITING), repeats=2), tmp_path / f"{seed}.jsonl"

        def meet(task: Task, chance: random.Random = chance) -> Met:
            fails = task.label == EXITING and chance.random() < 0.2
            return Met(LOUD if chance.random() < 0.15 else QUIET, error="out of memory" if fails else "")

        lost: list[tuple[int, int]] = []
        for _ in range(3):
            session, _ = measure(path, plan, meet, watch())
            lost.append((session.lost, lost_in(path)))
        assert all(own == told for own, told in lost), seed


def test_a_load_that_still_lasts_when_a_run_goes_on_is_held_against_the_rounds_before_it(tmp_path: Path) -> None:
    """A new process knew nothing of them: its first rounds were judged by nobody, and by then the load was usual to it,
    so that what it measured again under the same load stood in figures as made good."""
    path, plan = tmp_path / "a.jsonl", Plan(tuple(Prompt(f"p{at}", "koala", ("Hi",)) for at in range(20)), LABELS, 1)
    session, _ = measure(path, plan, lambda task: Met(LOUD if int(task.prompt.id[1:]) >= 12 else QUIET), unwarmed())
    assert session.lost == 8
    for _ in range(2):
        session, measured = measure(path, plan, lambda task: Met(LOUD), unwarmed())
        assert session.lost == lost_in(path) == 8
        assert len(measured) == PATIENCE * len(LABELS)
        assert set(pair(to_frame([read(path)]), DRAFTED, BASELINE)["prompt_id"]) == {f"p{at}" for at in range(12)}
    session, measured = measure(path, plan, lambda task: Met(QUIET), unwarmed())
    tried_twice = {"p12", "p13", "p14", "p15"}
    assert {task.prompt.id for task in measured} == {"p16", "p17", "p18", "p19"} and session.lost == len(tried_twice)


def unwarmed() -> Watch:
    return Watch(Bounds(1.0), lambda notice: None)


@pytest.mark.parametrize("kind", ["plain", "modes"])
def test_a_run_that_goes_on_learns_once_from_each_generation_of_its_file(kind: str, tmp_path: Path) -> None:
    """Counted twice, the rounds of a batch that is gone on with would make bounds known too early."""
    seen: list[object] = []

    class Seeing(Watch):
        def observe(self, rows: Sequence[Row], *, ends_round: bool) -> tuple[str, ...]:
            seen.extend(map(row_key, rows))
            return super().observe(rows, ends_round=ends_round)

    path = tmp_path / "a.jsonl"
    measure(path, PLANS[kind], lambda task: Met(QUIET), unwarmed())
    whole = path.read_bytes().splitlines(keepends=True)
    every = [row_key(row) for row in read(path).rows]
    for kept in range(1, len(whole)):
        path.write_bytes(b"".join(whole[:kept]))
        seen.clear()
        measure(path, PLANS[kind], lambda task: Met(QUIET), Seeing(Bounds(1.0), lambda notice: None))
        assert seen == every, kept


def test_a_run_that_goes_on_judges_as_one_that_was_never_cut(tmp_path: Path) -> None:
    """Of 12 rounds the last two are loud, in all or in part; each process begins with bounds that know nothing."""
    prompts = (*PROMPTS[::2], *(Prompt(f"p{at}", "koala", ("Hi",)) for at in range(3, 7)))
    plan, path = Plan(prompts, LABELS, 2), tmp_path / "a.jsonl"
    hits = {("p6", 0, BASELINE), ("p6", 1, BASELINE), ("p6", 1, DRAFTED)}

    def meet(task: Task) -> Met:
        return Met(LOUD if (task.prompt.id, task.repeat, task.label) in hits else QUIET)

    measure(path, plan, meet, unwarmed())
    whole = path.read_bytes().splitlines(keepends=True)
    assert repeats_of(tuple(read(path).rows), "p6") == {0: True, 1: True, 2: False, 3: False}
    for kept in range(1, len(whole)):
        path.write_bytes(b"".join(whole[:kept]))
        measure(path, plan, meet, unwarmed())
        assert path.read_bytes().splitlines(keepends=True)[1:] == whole[1:], kept
