"""The command line of `make bench`, and when an interval meets a goal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tiny import tiny_folder

from benchmarks import __main__ as main_module
from benchmarks import speed
from benchmarks.__main__ import main
from benchmarks.costs import against_band
from benchmarks.coverage import Line, World, missed, study

COST = {"label": "m2r2[exit=2]", "timed": "verification", "rows": 3.5, "measured_ms": 2.2, "predicted_ms": 2.0,
        "ratio": 1.1, "low": 1.05, "high": 1.15, "goal": "met, by the whole interval"}  # fmt: skip
COSTS = {"threads": 1, "within": 0.15, "share_within": 1.0, "left_out": {"medusa": "no modules"}, "methods": [COST]}


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.75, 1.25, "met"), (0.74, 1.25, "open"), (0.75, 1.26, "open"), (0.5, 0.75, "open")]
    + [(0.5, 0.74, "missed"), (1.26, 1.4, "missed")],
)
def test_a_ratio_has_to_lie_on_neither_side_too_far_from_one(low: float, high: float, verdict: str) -> None:
    assert against_band(low, high, within=0.25).startswith(verdict)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Nothing is measured; what would have been."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def child(module: str, **arguments: Any) -> Any:
        calls.append((module, arguments))
        return {"costs": COSTS}[module]

    monkeypatch.setattr(main_module, "measure_apart", child)
    return calls


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--only prices", "'prices'"),
        ("--only library --label two_model", "--label"),
        ("--model folder", "--only library"),
        ("--only costs --label medusa[modules=none]", "none"),
        ("--only costs --label meduse", "Did you mean 'medusa'?"),
        ("--only costs --label two_model[draft_model=other]", "two_model[draft_model=other]"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    asked: list[Any], tmp_path: Path, words: str, message: str
) -> None:
    result = _invoke(*words.split(), "--out", str(tmp_path / "bench"))
    assert (result.exit_code, asked) == (2, [])
    assert message in result.output
    assert not (tmp_path / "bench").exists()


def test_one_section_is_measured_alone_and_leaves_the_figures_of_all_as_they_are(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Labels are written down without the places of their modules."""
    monkeypatch.setattr(main_module, "choose", lambda labels, models: None)
    (tmp_path / "figures.json").write_text("of all")
    label = f"medusa[modules={tmp_path / 'heads'}]"
    words = ("--only", "costs", "--threads", "2", "--max-new-tokens", "9", "--label", label, "--out", str(tmp_path))
    result = _invoke(*words)
    assert result.exit_code == 0, result.output
    assert asked == [("costs", {"labels": (label,), "threads": 2, "prompts": 2, "max_new_tokens": 9})]
    assert (tmp_path / "figures.json").read_text() == "of all"
    written = (tmp_path / "figures-costs.json").read_text()
    figures = json.loads(written)
    assert sorted(figures) == ["asked", "commit", "costs", "created", "machine", "versions"]
    sizes = {"threads": [2], "prompts": None, "max_new_tokens": 9, "model": ""}
    assert figures["asked"] == {"sections": ["costs"], "labels": ["medusa[modules=heads]"], **sizes}
    assert figures["costs"]["methods"] == [COST] and str(tmp_path) not in written
    for shown in ("m2r2[exit=2]", "1.10x [1.05, 1.15]", "within 15%", "100%", "medusa: no modules", "on 1 thread"):
        assert shown in result.output


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})


@pytest.mark.slow
def test_intervals_of_uneven_prompts_contain_the_truth(root: Path) -> None:
    """In 200 data sets drawn from times that were measured."""
    world = World.of(root / "results" / "reference")
    line = study(world, "mixed", 16, 1, 200)
    assert 0.9 <= line.covered <= 1 and line.different <= 0.1
    assert line.width > 1.2


@pytest.mark.parametrize(
    ("covered", "different", "suites", "is_missed"),
    [
        (0.95, 0.05, "mixed", False),
        (0.85, 0.05, "mixed", True),
        (0.95, 0.12, "mixed", True),
        (0.8, 0.2, "one file", False),
    ],
)
def test_a_line_that_surely_misses_the_goal_is_named(
    covered: float, different: float, suites: str, is_missed: bool
) -> None:
    assert missed(Line(suites, 16, 1, covered, 0.0, 1 - covered, 1.5, different), 1000) == is_missed


def test_a_model_is_compared_with_generate_and_with_its_other_form(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, max_position_embeddings=4096)
    generate, half = speed.measure(threads=1, prompts=2, max_new_tokens=4, model=str(folder))
    assert (generate["ours"], generate["theirs"]) == ("autoregressive", "generate")
    assert (half["ours"], half["theirs"]) == ("autoregressive, float16 weights", "autoregressive")
    assert generate["prompts"] == half["prompts"] == generate["same_tokens"] == 8
    assert half["their_tokens_per_s"] == generate["our_tokens_per_s"]
