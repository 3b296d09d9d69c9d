"""The best of many labels is the one with the highest lower bound that none beats, and it says that it was chosen."""

from dataclasses import replace

import pytest
from compared import group_of
from fixtures_records import BASELINE, RUN, baseline_row, drafted_row, method
from warned import warned

from benchctl.analysis.comparison import Group
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.winner import best_labels
from benchctl.records.schema import Exactness, Row

LABELS = tuple(f"two_model[draft_tokens={count}]" for count in (2, 3, 4))


def _group(factors: dict[str, list[float]], exactness: Exactness = "exact") -> Group:
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
    return group_of(rows, run)


def test_a_steady_label_beats_one_that_is_faster_now_and_then() -> None:
    """Mean times of 0.50, 0.51 and 0.9: the first swings between 0.1 and 0.9, so its lower bound is the lower one."""
    factors = dict(zip(LABELS, ([0.1, 0.9], [0.51], [0.9]), strict=True))
    group = _group(factors)
    (found,) = best_labels(group)
    assert (found.name, found.labels, found.best.label, found.slower) == ("two_model", 3, LABELS[1], 1)
    (values,) = warned(group, "best_of_many_labels")
    assert values["label"] == LABELS[1] and values["speedup"] == pytest.approx(1.96, abs=0.005)
    assert values["low"] == pytest.approx(values["high"])


def test_a_label_that_another_one_beats_is_not_the_best_however_high_its_lower_bound() -> None:
    """The second was measured on other prompts as well, which gain more: there it has a higher lower bound, but where
    both were measured the first is faster beyond doubt."""
    rows, labels = [], dict(zip(LABELS, ([0.50], [0.51], [0.9]), strict=True))
    group = _group(labels)
    for row in group.files[0].rows:
        easy = int(row.prompt_id[1:]) < 5
        if not (easy and row.label == LABELS[0]):
            slow = 3.0 if easy and row.label == BASELINE else 1.0
            rows.append(replace(row, ttft_s=slow * (row.ttft_s or 0), step_s=tuple(slow * s for s in row.step_s)))
    group = group_of(rows, group.run)
    lows = {method.label: method.estimate(SPEEDUP).interval for method in group.pooled.methods}
    first, second = lows[LABELS[0]], lows[LABELS[1]]
    assert first is not None and second is not None and second.low > first.low
    (found,) = best_labels(group)
    assert found.best.label == LABELS[0]


@pytest.mark.parametrize("broken", ["lossy", "unjudged"])
def test_a_label_whose_answers_are_not_the_target_s_is_no_best(broken: str) -> None:
    """Its claim alone was looked at: a wrong answer of the fastest label recommended it."""
    group = _group({f"two_model[draft_tokens={count}]": [0.4 + 0.1 * count] for count in range(1, 5)})

    def change(row: Row) -> Row:
        if (row.label, row.prompt_id) != ("two_model[draft_tokens=1]", "p3"):
            return row
        if broken == "unjudged":
            return replace(row, verdict=None, fidelity={"failed_controls": 1.0})
        return replace(row, verdict="lossy", first_divergence=1)

    (found,) = best_labels(group_of(map(change, group.files[0].rows), group.run))
    assert (found.labels, found.best.label) == (3, "two_model[draft_tokens=2]")


def test_two_labels_are_no_search() -> None:
    assert list(best_labels(_group({label: [0.5] for label in LABELS[:2]}))) == []


def test_the_fastest_of_lossy_labels_is_not_called_the_best() -> None:
    factors = {label: [0.5] for label in LABELS}
    assert list(best_labels(_group(factors, "lossy"))) == []
    assert len(list(best_labels(_group(factors)))) == 1
