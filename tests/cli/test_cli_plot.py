"""`benchctl plot` draws what is in results/ by default, and refuses what it cannot draw before reading anything."""

import importlib
import sys
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner
from command import cli, ok
from fixtures_records import KOALA, MT_BENCH, RUN, usual_rows, write
from matplotlib.image import imread
from pictures import texts

from benchctl.analysis import plots
from benchctl.analysis.plots import catalogue

_plot = partial(cli, "plot")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "run.jsonl", usual_rows(3))


def test_without_files_everything_in_results_is_plotted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = _plot("--pareto")
    assert result.exit_code == 2 and "results/*.jsonl" in result.stderr and list(tmp_path.iterdir()) == []
    (tmp_path / "results").mkdir()
    write(tmp_path / "results" / "first.jsonl", usual_rows(3))
    result = _plot("--pareto")
    assert (result.exit_code, result.stdout) == (0, "Plot: results/pareto.png\n")
    assert (tmp_path / "results" / "pareto.png").read_bytes().startswith(b"\x89PNG")
    assert result.stderr == "2 warnings: benchctl compare --full results/first.jsonl\n"


def test_a_sampled_run_in_results_does_not_keep_the_others_from_being_plotted(tmp_path: Path, file: Path) -> None:
    """README's own commands measured a sampled run into results/, and then nothing there could be plotted.

    Nor after `benchctl import`, whose file has no verdicts."""
    rows = [replace(row, verdict=row.verdict and "sampled", first_divergence=None) for row in usual_rows(3)]
    sampled, out = write(tmp_path / "0.jsonl", rows, replace(RUN, temperature=0.7)), tmp_path / "plot.svg"
    unjudged = [replace(row, verdict=None, first_divergence=None) for row in rows]
    imported = write(tmp_path / "1.jsonl", unjudged, replace(RUN, imported="medusa"))
    result = _plot("--pareto", sampled, imported, file, "--out", out)
    assert (result.exit_code, str(sampled) in result.stderr, str(imported) in result.stderr) == (0, True, True)
    assert out.read_text().startswith("<?xml") and "not comparable" not in out.read_text()
    assert "--temperature 0" in _plot("--pareto", sampled, "--out", out).stderr


def test_sampled_answers_can_be_checked_though_not_compared(tmp_path: Path) -> None:
    rows = [replace(row, verdict=row.verdict and "sampled", first_divergence=None, text="4") for row in usual_rows(3)]
    checked = replace(KOALA, exact_answers={f"p{n}": ("4",) for n in range(3)})
    sampled = write(tmp_path / "0.jsonl", rows, replace(RUN, temperature=0.7, suites=(checked,)))
    ok(_plot("--pareto", "--quality", "exact", sampled, "--out", tmp_path / "plot.svg"))
    assert "on 3 prompts" in (tmp_path / "plot.svg").read_text()


@pytest.mark.parametrize("out", ["plot.bmp", "plot", "run.jsonl/plot.png"])
def test_an_unfit_picture_is_refused_before_the_files_are_read(tmp_path: Path, out: str) -> None:
    broken = tmp_path / "run.jsonl"
    broken.write_text("broken")
    result = _plot("--pareto", broken, "--out", tmp_path / out)
    assert (result.exit_code, out in result.stderr, f"{broken}:1" in result.stderr) == (2, True, False)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "--pareto"),
        ("--pareto --latency", "--pareto"),
        ("--pareto --acceptance --sweep", "--pareto"),
        ("--latency --quality exact", "--quality"),
        ("--pareto --method two_model", "--method"),
        ("--waterfall --by draft_tokens", "--by"),
        ("--pareto --judge gpt", "--quality quality"),
    ],
)
def test_a_wrong_number_of_pictures_or_an_option_of_another_one_is_refused_before_files_are_read(
    words: str, named: str
) -> None:
    """It would have been ignored, and the picture taken for what was asked for."""
    result = _plot(*words.split(), "missing.jsonl")
    assert (result.exit_code, named in result.stderr, "missing.jsonl" in result.stderr) == (2, True, False)


@pytest.mark.slow
def test_suites_can_be_chosen_or_stand_apart(tmp_path: Path) -> None:
    rows = [replace(row, suite=suite) for suite in ("koala", "mt-bench") for row in usual_rows(3)]
    file, out = write(tmp_path / "run.jsonl", rows, replace(RUN, suites=(KOALA, MT_BENCH))), tmp_path / "plot.svg"
    for words, counts in (
        ([], ["koala, mt-bench: 6 prompts"]),
        (["--suite", "koala"], ["koala: 3 prompts"]),
        (["--by-suite"], ["koala: 3 prompts", "mt-bench: 3 prompts"]),
    ):
        assert _plot("--pareto", file, *words, "--out", out).exit_code == 0
        assert all(count in texts(out) for count in counts)
    assert "koala, mt-bench" in _plot("--pareto", file, "--suite", "alpaca", "--out", out).stderr


def test_the_size_is_that_asked_for(tmp_path: Path, file: Path) -> None:
    out = tmp_path / "plot.png"
    assert _plot("--pareto", file, "--size", "column", "--out", out).exit_code == 0
    assert imread(out).shape[1] == 1005


_NEW_PICTURE = '''"""How many prompts each group has."""

from benchctl.analysis.plots.axes import new_figure
from benchctl.analysis.plots.catalogue import Drawing, Plot


def draw(groups, request):
    figure = new_figure(request.style, 2.0)
    counts = [max(method.prompts for method in group.pooled.methods) for group in groups]
    figure.add_subplot().bar(range(len(counts)), counts)
    figure.suptitle(f"prompts: {counts}")
    return Drawing(figure, ["drawn by a new file"])


PLOT = Plot(draw)
'''


def test_a_new_picture_is_one_new_file(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command finds it by its name. Flags are made when the module is loaded, as in a new process."""
    folder, out = tmp_path / "plots", tmp_path / "a.svg"
    folder.mkdir()
    (folder / "prompt_counts.py").write_text(_NEW_PICTURE)
    monkeypatch.setattr(plots, "__path__", [*plots.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "benchctl.analysis.plots.prompt_counts", raising=False)
    command = importlib.reload(sys.modules["benchctl.cli.plot"]).plot
    try:
        result = CliRunner().invoke(command, ["--prompt-counts", str(file), "--out", str(out)])
        assert (result.exit_code, "drawn by a new file" in result.stderr) == (0, True), result.output
        assert "prompts: [3]" in texts(out)
        assert "How many prompts each group has." in CliRunner().invoke(command, ["--help"]).stdout
        assert "--by" in CliRunner().invoke(command, ["--prompt-counts", "--by", "x"]).stderr
    finally:
        monkeypatch.undo()
        importlib.reload(sys.modules["benchctl.cli.plot"])


def test_a_picture_of_another_distribution_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an entry point. A built-in picture wins over another one of its name."""
    (tmp_path / "other_plots.py").write_text(_NEW_PICTURE)
    monkeypatch.syspath_prepend(tmp_path)
    entries = [EntryPoint(name, "other_plots:PLOT", catalogue.ENTRY_POINTS) for name in ("prompt_counts", "pareto")]
    monkeypatch.setattr(
        catalogue, "entry_points", lambda group, name=None: [each for each in entries if name in (None, each.name)]
    )
    assert catalogue.helps()["prompt_counts"].startswith("How many prompts")
    assert catalogue.plot("prompt_counts").options == () != catalogue.plot("pareto").options
