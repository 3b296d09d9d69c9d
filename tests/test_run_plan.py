"""The order of a run: who goes when, and that it is the same whenever it is asked for."""

from collections.abc import Iterable

from benchctl.measuring.plan import Plan, Task
from benchctl.measuring.prompts import Prompt

ONE = Prompt("1", "koala", ("Hi",))
TWO = Prompt("2", "mt-bench", ("Hi", "And?"))


def names(tasks: Iterable[Task]) -> list[str]:
    return [f"{task.prompt.id}.{task.turn} {task.label} {task.repeat}" for task in tasks]


def test_every_other_repeat_runs_backwards() -> None:
    (tasks,) = Plan((ONE,), ("base", "b", "c"), repeats=3).by_prompt()
    assert [task.label for task in tasks] == ["base", "b", "c", "c", "b", "base", "base", "b", "c"]
    assert [task.repeat for task in tasks] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_labels_take_turns_within_each_turn_of_a_prompt() -> None:
    (tasks,) = Plan((TWO,), ("base", "b"), repeats=2).by_prompt()
    assert names(tasks) == [
        "2.0 base 0", "2.0 b 0", "2.1 base 0", "2.1 b 0",
        "2.0 b 1", "2.0 base 1", "2.1 b 1", "2.1 base 1",
    ]  # fmt: skip


def test_the_mean_place_of_every_label_is_the_same_over_two_repeats() -> None:
    """What a steady drift adds to a label grows with its mean place in time."""
    (tasks,) = Plan((ONE,), ("base", "b", "c", "d"), repeats=2).by_prompt()
    places = {label: sum(task.order for task in tasks if task.label == label) for label in ("base", "b", "c", "d")}
    assert set(places.values()) == {7}


def test_the_order_counts_through_all_prompts() -> None:
    plan = Plan((ONE, TWO), ("base", "b"), repeats=2)
    tasks = [task for prompt_tasks in plan.by_prompt() for task in prompt_tasks]
    assert [task.order for task in tasks] == list(range(12))
    assert len(plan) == 12
    assert len({task.key for task in tasks}) == 12


def test_a_warm_up_round_is_the_first_prompt_with_a_negative_repeat_baseline_first() -> None:
    plan = Plan((TWO, ONE), ("base", "b"), repeats=2)
    assert names(plan.warm_up(1)) == ["2.0 base -1", "2.0 b -1", "2.1 base -1", "2.1 b -1"]
    assert [task.order for task in plan.warm_up(2)] == [4, 5, 6, 7]
    assert {task.repeat for task in plan.warm_up(2)} == {-2}
