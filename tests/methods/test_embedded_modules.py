"""The modules in the package: each serves its target by the method's name alone, and does what it was trained for."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchctl import bundled
from benchctl.analysis.comparison import compare, over
from benchctl.analysis.metrics.drafting import ACCEPTANCE_DIFFERENCE, ACCEPTANCE_RATE
from benchctl.analysis.metrics.experts import RECALL
from benchctl.cli import main
from benchctl.decoding.modules.trainable import check_modules
from benchctl.records.writer import read

PACKED = [(model.name, method) for model in bundled.models() for method in model.modules]


def _run(out: Path, *labels: str, model: str = "ref-dense", limit: int = 6) -> Path:
    methods = [word for label in labels for word in ("--method", label)]
    sizes = ["--limit", str(limit), "--max-new-tokens", "24", "--repeats", "1", "--warm-up", "0", "--no-watch"]
    words = ["run", "--model", model, *methods, "--bench", "koala", "--source", "embedded", *sizes, "--out", str(out)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return out


def test_the_methods_named_after_this_project_have_modules() -> None:
    assert {("ref-dense", "m2r2"), ("ref-moe", "m2r2")} <= set(PACKED)


@pytest.mark.parametrize(("model", "method"), PACKED)
def test_modules_are_bound_to_the_target_they_are_beside(model: str, method: str) -> None:
    folder = bundled.modules_for(model, method)
    assert folder is not None
    facts = check_modules(method, str(folder))
    assert facts.target.name == model
    assert facts.yardsticks


@pytest.mark.slow
def test_the_accelerated_stream_drafts_better_than_its_exit_and_the_slow_state(tmp_path: Path) -> None:
    """By margins whose intervals exclude zero, on two dozen tokens of thirty prompts; figures: docs/m2r2.md."""
    labels = ("m2r2", "m2r2[source=exit]", "m2r2[source=slow]")
    file = read(_run(tmp_path / "drafts.jsonl", *labels, limit=30))
    assert {row.verdict for row in file.rows if row.label in labels} == {"identical"}
    for other in labels[1:]:
        figures = {method.label: method for method in compare([over(file, other)])[0].pooled.methods}
        difference = figures["m2r2"].estimate(ACCEPTANCE_DIFFERENCE)
        assert difference.interval is not None and difference.interval.low > 0
    assert (figures["m2r2"].estimate(ACCEPTANCE_RATE).value or 0) > 0.15


@pytest.mark.slow
def test_a_sure_router_changes_less_than_a_bold_one(tmp_path: Path) -> None:
    """threshold=2 never leaves: the target's own tokens; 0 leaves at the first gate with every token."""
    asked = [f"m2r2_dynamic[threshold={threshold}]" for threshold in (0, 0.9, 2)]
    file = read(_run(tmp_path / "leaving.jsonl", *asked))
    labels = [method.label for method in file.run.methods[1:]]
    layers = [[count for row in file.rows if row.label == label for count in row.layers[1:]] for label in labels]
    mean = [sum(counts) / len(counts) for counts in layers]
    assert mean[0] < mean[1] < mean[2]
    assert {row.verdict for row in file.rows if row.label == labels[2]} == {"identical"}


@pytest.mark.slow
def test_experts_are_foreseen_and_the_output_stays(tmp_path: Path) -> None:
    """Two of sixteen by chance would be an eighth."""
    file = read(_run(tmp_path / "loading.jsonl", "m2r2_prefetch", model="ref-moe"))
    assert {row.verdict for row in file.rows if row.label == "m2r2_prefetch"} == {"identical"}
    (_, figures) = compare([file])[0].pooled.methods
    assert (figures.estimate(RECALL).value or 0) > 0.5
