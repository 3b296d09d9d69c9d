"""The command line of `make bench`, and when an interval meets a goal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks import __main__ as main_module
from benchmarks.__main__ import main
from benchmarks.costs import against_band

COST = {"label": "m2r2[exit=2]", "timed": "verification", "rows": 3.5, "measured_ms": 2.2, "predicted_ms": 2.0,
        "ratio": 1.1, "low": 1.05, "high": 1.15, "goal": "met, by the whole interval"}  # fmt: skip
COSTS = {"threads": 1, "within": 0.15, "share_within": 1.0, "left_out": {"medusa": "no modules"}, "methods": [COST]}


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (0.75, 1.25, "met"),
        (0.74, 1.25, "open"),
        (0.75, 1.26, "open"),
        (0.5, 1.5, "open"),
        (0.5, 0.74, "missed"),
        (1.26, 1.4, "missed"),
        (0.5, 0.75, "open"),
    ],
)
def test_a_ratio_has_to_lie_on_neither_side_too_far_from_one(low: float, high: float, told: str) -> None:
    assert against_band(low, high, within=0.25).startswith(told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "prices"), "'prices' is not one of 'library', 'costs'"),
        (("--only", "library", "--label", "two_model"), "--label names a method for the section costs"),
        (("--only", "costs", "--label", "medusa[modules=none]"), "none"),
        (("--only", "costs", "--label", "meduse"), "Did you mean 'medusa'?"),
        (("--only", "costs", "--label", "two_model[draft_model=other]"), "names a draft model, but costs are measured"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    asked = _fake_children(monkeypatch)
    result = _invoke(*arguments, "--out", str(tmp_path / "bench"))
    assert (result.exit_code, asked) == (2, [])
    assert message in result.output
    assert not (tmp_path / "bench").exists()


def test_one_section_is_measured_alone_and_leaves_the_figures_of_all_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = _fake_children(monkeypatch)
    (tmp_path / "figures.json").write_text("of all")
    sizes = ("--threads", "2", "--max-new-tokens", "9")
    result = _invoke("--only", "costs", *sizes, "--label", "two_model[draft_tokens=3]", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    labels = ("two_model[draft_tokens=3]",)
    assert asked == [("costs", {"labels": labels, "threads": 2, "prompts": 2, "max_new_tokens": 9})]
    assert (tmp_path / "figures.json").read_text() == "of all"
    found = json.loads((tmp_path / "figures-costs.json").read_text())
    assert sorted(found) == ["asked", "commit", "costs", "created", "machine", "versions"]
    assert found["asked"] == {
        "sections": ["costs"],
        "threads": [2],
        "prompts": None,
        "max_new_tokens": 9,
        "labels": list(labels),
    }
    assert found["costs"]["methods"] == [COST]
    assert "m2r2[exit=2]" in result.output and "1.10x [1.05, 1.15]" in result.output
    assert "within 15%" in result.output and "100%" in result.output
    assert "medusa: no modules" in result.output
    assert "measured / predicted" in result.output
    assert "on 1 thread" in result.output


def test_labels_are_written_down_without_the_places_of_their_modules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fake_children(monkeypatch)
    monkeypatch.setattr(main_module, "choose", lambda labels, models: None)
    label = f"medusa[modules={tmp_path / 'heads'}]"
    result = _invoke("--only", "costs", "--label", label, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    written = (tmp_path / "figures-costs.json").read_text()
    assert json.loads(written)["asked"]["labels"] == ["medusa[modules=heads]"]
    assert str(tmp_path) not in written


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})


def _fake_children(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Nothing is measured; what would have been."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def child(module: str, **arguments: Any) -> Any:
        asked.append((module, arguments))
        return {"costs": COSTS}[module]

    monkeypatch.setattr(main_module, "measure_apart", child)
    return asked
