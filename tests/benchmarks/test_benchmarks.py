"""The command line of `python -m benchmarks`, and what the benchmarks compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tiny import tiny_folder

from benchmarks import __main__ as main_module
from benchmarks import speed
from benchmarks.__main__ import main
from benchmarks.coverage import Line, World, missed, study


def test_each_number_of_threads_is_measured_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = {"ours": "two_model[draft_tokens=5]", "theirs": "assisted generation"}
    speeds = {"our_tokens_per_s": 20.0, "their_tokens_per_s": 18.0, "ratio": 1.1, "low": 1.05, "high": 1.15}
    row = {**names, **speeds, "same_tokens": 8, "prompts": 8}
    calls: list[dict[str, Any]] = []

    def measured(**arguments: Any) -> Any:
        calls.append(arguments)
        return [row | {"threads": arguments["threads"]}]

    monkeypatch.setattr(main_module, "measure_apart", measured)
    words = ("--prompts", "2", "--max-new-tokens", "9", "--out", str(tmp_path))
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    sizes = {"prompts": 2, "max_new_tokens": 9, "model": ""}
    assert calls == [{"threads": 1, **sizes}, {"threads": 2, **sizes}]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert sorted(figures) == ["asked", "commit", "created", "library", "machine", "versions"]
    assert figures["asked"] == {"threads": [1, 2], **sizes}
    assert figures["library"] == [row | {"threads": 1}, row | {"threads": 2}]
    for shown in ("two_model[draft_tokens=5]", "1.10x [1.05, 1.15]"):
        assert shown in result.output


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
