"""The best of many labels is the one with the highest lower bound that none beats, and it says that it was chosen."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click import unstyle
from fixtures_records import BASELINE, RUN, baseline_row, drafted_row, method, write

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.tables.text import render
from benchctl.analysis.winner import best_of_sweeps, fastest
from benchctl.records.schema import Exactness, Row
from benchctl.records.writer import read

LABELS = tuple(f"two_model[draft_tokens={count}]" for count in (2, 3, 4))


def _group(tmp_path: Path, factors: dict[str, list[float]], exactness: Exactness = "exact") -> Group:
    """Each label's times on twenty prompts are the baseline's times its factors, taken in turn."""
    rows: list[Row] = []
    for number in range(20):
        usual = replace(baseline_row(), prompt_id=f"p{number}")
        rows.append(usual)
        for label, values in factors.items():
            factor = values[number % len(values)]
            row = replace(drafted_row(), prompt_id=f"p{number}", label=label)
            total = (usual.ttft_s or 0) + sum(usual.step_s)
            share = factor * total / ((row.ttft_s or 0) + sum(row.step_s))
            rows.append(replace(row, ttft_s=share * (row.ttft_s or 0), step_s=tuple(share * s for s in row.step_s)))
    run = replace(RUN, methods=(method(BASELINE), *(method(label, exactness) for label in factors)))
    return compare([read(write(tmp_path / "run.jsonl", rows, run))])[0]


def test_a_steady_label_beats_one_that_is_faster_now_and_then(tmp_path: Path) -> None:
    """Mean times of 0.50, 0.51 and 0.9: the first swings between 0.1 and 0.9, so its lower bound is the lower one."""
    factors = dict(zip(LABELS, ([0.1, 0.9], [0.51], [0.9]), strict=True))
    (found,) = best_of_sweeps(_group(tmp_path, factors))
    assert found.startswith(f"of 3 labels of two_model the best by the lower end of its interval is {LABELS[1]}: 1.96x")
    assert found.endswith(
        "[1.96, 1.96]. Of the 2 others 1 is slower beyond doubt. It was chosen on these prompts, which flatters it: "
        "measure it again on others."
    )


@pytest.mark.parametrize(("floor", "slower"), [(0.0, 2), (0.03, 1), (0.09, 0)])
def test_it_tells_no_label_from_another_where_the_table_beside_it_cannot(
    tmp_path: Path, floor: float, slower: int
) -> None:
    """Times of 0.50, 0.51 and 0.54: the best was named by its own rule, which knew no floor and no other label."""
    group = _group(tmp_path, dict(zip(LABELS, ([0.50], [0.51], [0.54]), strict=True)))
    winner = fastest(group, floor)
    assert winner is not None and winner.label == LABELS[0]
    assert len(winner.slower) == slower + 1, "of the labels, and the baseline"
    (found,) = best_of_sweeps(group, floor)
    assert f"{LABELS[0]}: 2.00x" in found
    assert f"Of the 2 others {slower} {'is' if slower == 1 else 'are'} slower beyond doubt." in found
    for format in ("table", "md"):
        assert found in " ".join(unstyle(render([group], format, floor=floor)).split())
    assert found in json.loads(render([group], "json", floor=floor))["groups"][0]["cautions"]


def test_a_label_that_another_one_beats_is_not_the_best_however_high_its_lower_bound(tmp_path: Path) -> None:
    """The second was measured on other prompts as well, which gain more: there it has a higher lower bound, but where
    both were measured the first is faster beyond doubt."""
    rows, labels = [], dict(zip(LABELS, ([0.50], [0.51], [0.9]), strict=True))
    group = _group(tmp_path, labels)
    for row in group.files[0].rows:
        easy = int(row.prompt_id[1:]) < 5
        if not (easy and row.label == LABELS[0]):
            slow = 3.0 if easy and row.label == BASELINE else 1.0
            rows.append(replace(row, ttft_s=slow * (row.ttft_s or 0), step_s=tuple(slow * s for s in row.step_s)))
    (group,) = compare([read(write(tmp_path / "uneven.jsonl", rows, group.run))])
    lows = {method.label: method.estimate(SPEEDUP).interval for method in group.pooled.methods}
    first, second = lows[LABELS[0]], lows[LABELS[1]]
    assert first is not None and second is not None and second.low > first.low
    (found,) = best_of_sweeps(group)
    assert f"is {LABELS[0]}: 2.00x" in found


@pytest.mark.parametrize("broken", ["lossy", "unjudged"])
def test_a_label_whose_answers_are_not_the_target_s_is_no_best(tmp_path: Path, broken: str) -> None:
    """Its claim alone was looked at: a wrong answer of the fastest label recommended it."""
    group = _group(tmp_path, {f"two_model[draft_tokens={count}]": [0.4 + 0.1 * count] for count in range(1, 5)})

    def change(row: Row) -> Row:
        if (row.label, row.prompt_id) != ("two_model[draft_tokens=1]", "p3"):
            return row
        if broken == "unjudged":
            return replace(row, verdict=None, fidelity={"failed_controls": 1.0})
        return replace(row, verdict="lossy", first_divergence=1)

    rows = list(map(change, group.files[0].rows))
    (group,) = compare([read(write(tmp_path / "broken.jsonl", rows, group.run))])
    (found,) = best_of_sweeps(group)
    assert found.startswith("of 3 labels of two_model the best") and "is two_model[draft_tokens=2]: 1.67x" in found


def test_two_labels_are_no_search(tmp_path: Path) -> None:
    assert list(best_of_sweeps(_group(tmp_path, {label: [0.5] for label in LABELS[:2]}))) == []


def test_the_fastest_of_lossy_labels_is_not_called_the_best(tmp_path: Path) -> None:
    factors = {label: [0.5] for label in LABELS}
    assert list(best_of_sweeps(_group(tmp_path, factors, "lossy"))) == []
    assert len(list(best_of_sweeps(_group(tmp_path, factors)))) == 1
