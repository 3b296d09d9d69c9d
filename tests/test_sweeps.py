"""The best of many labels is the one with the highest lower bound, and it says that it was chosen."""

from dataclasses import replace
from pathlib import Path

from fixtures_records import BASELINE, RUN, baseline_row, drafted_row, method, write

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.sweeps import best_of_sweeps
from benchctl.recordfile import read
from benchctl.records import Exactness, Row

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
    assert "measure it again on others" in found


def test_two_labels_are_no_search(tmp_path: Path) -> None:
    assert list(best_of_sweeps(_group(tmp_path, {label: [0.5] for label in LABELS[:2]}))) == []


def test_the_fastest_of_lossy_labels_is_not_called_the_best(tmp_path: Path) -> None:
    factors = {label: [0.5] for label in LABELS}
    assert list(best_of_sweeps(_group(tmp_path, factors, "lossy"))) == []
    assert len(list(best_of_sweeps(_group(tmp_path, factors)))) == 1
