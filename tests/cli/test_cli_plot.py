"""`benchctl plot` draws what is in results/ by default, and refuses what it cannot draw before reading anything."""

import importlib
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fixtures_pictures import texts
from fixtures_records import KOALA, MT_BENCH, RUN, usual_rows, write
from matplotlib.image import imread

from benchctl.analysis import plots
from benchctl.analysis.plots import catalogue
from benchctl.cli import main


def _plot(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["plot", *map(str, arguments)])


def test_without_files_everything_in_results_is_plotted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    write(tmp_path / "results" / "first.jsonl", usual_rows(3))
    result = _plot("--pareto")
    assert (result.exit_code, result.stdout) == (0, "Plot: results/pareto.png\n")
    assert (tmp_path / "results" / "pareto.png").read_bytes().startswith(b"\x89PNG")
    assert "--limit" in result.stderr


def test_files_and_the_picture_can_be_named(tmp_path: Path) -> None:
    out = tmp_path / "first.svg"
    result = _plot("--pareto", write(tmp_path / "run.jsonl", usual_rows(3)), "--out", out)
    assert result.exit_code == 0
    assert out.read_text().startswith("<?xml")


def test_a_sampled_run_in_results_does_not_keep_the_others_from_being_plotted(tmp_path: Path) -> None:
    """README's own commands measured a sampled run into results/, and then nothing there could be plotted."""
    rows = [replace(row, verdict=row.verdict and "sampled", first_divergence=None) for row in usual_rows(3)]
    sampled = write(tmp_path / "0.jsonl", rows, replace(RUN, temperature=0.7))
    result = _plot("--pareto", sampled, write(tmp_path / "1.jsonl", usual_rows(3)), "--out", tmp_path / "plot.svg")
    assert result.exit_code == 0
    assert str(sampled) in result.stderr
    assert "not comparable" not in (tmp_path / "plot.svg").read_text()
    assert "--temperature 0" in _plot("--pareto", sampled, "--out", tmp_path / "plot.svg").stderr


def test_sampled_answers_can_be_checked_though_not_compared(tmp_path: Path) -> None:
    rows = [replace(row, verdict=row.verdict and "sampled", first_divergence=None, text="4") for row in usual_rows(3)]
    checked = replace(KOALA, exact_answers={f"p{n}": ("4",) for n in range(3)})
    sampled = write(tmp_path / "0.jsonl", rows, replace(RUN, temperature=0.7, suites=(checked,)))
    result = _plot("--pareto", "--y", "exact", sampled, "--out", tmp_path / "plot.svg")
    assert result.exit_code == 0
    assert "on 3 prompts" in (tmp_path / "plot.svg").read_text()


def test_without_results_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = _plot("--pareto")
    assert result.exit_code == 2
    assert "results/*.jsonl" in result.stderr and "benchctl run" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_kind_of_plot_must_be_said(tmp_path: Path) -> None:
    result = _plot(write(tmp_path / "run.jsonl", usual_rows(3)))
    assert result.exit_code == 2
    assert "--pareto" in result.stderr


@pytest.mark.parametrize("out", ["plot.bmp", "plot", "run.jsonl/plot.png"])
def test_an_unfit_picture_is_refused_before_the_files_are_read(tmp_path: Path, out: str) -> None:
    broken = tmp_path / "run.jsonl"
    broken.write_text("broken")
    result = _plot("--pareto", broken, "--out", tmp_path / out)
    assert result.exit_code == 2
    assert out in result.stderr and "not the start" not in result.stderr


@pytest.mark.parametrize("asked", [[], ["--pareto", "--latency"], ["--pareto", "--acceptance", "--sweep"]])
def test_exactly_one_picture_is_drawn(asked: list[str]) -> None:
    result = _plot(*asked, "missing.jsonl")
    assert result.exit_code == 2
    assert "--pareto" in result.stderr and "missing.jsonl" not in result.stderr


@pytest.mark.parametrize(
    ("picture", "option"),
    [
        ("--latency", ["--y", "exact"]),
        ("--pareto", ["--method", "two_model"]),
        ("--waterfall", ["--by", "draft_tokens"]),
        ("--alignment", ["--suite", "koala"]),
    ],
)
def test_an_option_of_another_picture_is_refused_before_files_are_read(picture: str, option: list[str]) -> None:
    """It would have been ignored, and the picture taken for what was asked for."""
    result = _plot(picture, *option, "missing.jsonl")
    assert result.exit_code == 2
    assert option[0] in result.stderr and picture in result.stderr
    assert "missing.jsonl" not in result.stderr


def test_a_judge_without_quality_is_refused() -> None:
    assert "--judge needs --y quality" in _plot("--pareto", "--judge", "gpt").stderr


def test_every_picture_has_a_flag_that_help_explains(tmp_path: Path) -> None:
    lines = [line.strip() for line in _plot("--help").stdout.splitlines()]
    for name in ("pareto", "acceptance", "latency", "waterfall", "sweep", "alignment"):
        assert any(line.startswith(f"--{name} ") for line in lines), name
        assert any(line.startswith(f"benchctl plot --{name}") for line in lines), name


@pytest.mark.slow
def test_suites_can_be_chosen_or_stand_apart(tmp_path: Path) -> None:
    rows = [replace(row, suite=suite) for suite in ("koala", "mt-bench") for row in usual_rows(3)]
    file = write(tmp_path / "run.jsonl", rows, replace(RUN, suites=(KOALA, MT_BENCH)))
    out = tmp_path / "plot.svg"
    drawn = {}
    for name, words in {"both": [], "one": ["--suite", "koala"], "apart": ["--by-suite"]}.items():
        assert _plot("--pareto", file, *words, "--out", out).exit_code == 0
        drawn[name] = texts(out).splitlines()
    assert "koala, mt-bench: 6 prompts" in "\n".join(drawn["both"])
    assert "koala: 3 prompts" in "\n".join(drawn["one"])
    assert {"koala: 3 prompts", "mt-bench: 3 prompts"} <= set(drawn["apart"])
    assert "There are: koala, mt-bench" in _plot("--pareto", file, "--suite", "alpaca", "--out", out).stderr


def test_theme_and_size_are_those_asked_for(tmp_path: Path) -> None:
    file, out = write(tmp_path / "run.jsonl", usual_rows(3)), tmp_path / "plot.png"
    assert _plot("--pareto", file, "--theme", "dark", "--size", "slide", "--out", out).exit_code == 0
    picture = imread(out)
    assert picture.shape[:2] == (1080, 1920)
    assert picture[2, 2, :3] == pytest.approx([0x14 / 255, 0x17 / 255, 0x1A / 255])


def test_the_old_name_of_a_size_still_works(tmp_path: Path) -> None:
    file, out = write(tmp_path / "run.jsonl", usual_rows(3)), tmp_path / "plot.png"
    result = _plot("--pareto", file, "--size", "page", "--out", out)
    assert result.exit_code == 0 and "--size screen" in result.stderr
    assert imread(out).shape[1] == 1152


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


def test_a_new_picture_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command finds it by its name. Flags are made when the module is loaded, as in a new process."""
    folder = tmp_path / "plots"
    folder.mkdir()
    (folder / "prompt_counts.py").write_text(_NEW_PICTURE)
    monkeypatch.setattr(plots, "__path__", [*plots.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "benchctl.analysis.plots.prompt_counts", raising=False)
    command = importlib.reload(sys.modules["benchctl.cli.plot"]).plot
    try:
        out = tmp_path / "a.svg"
        file = write(tmp_path / "run.jsonl", usual_rows(3))
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
    assert catalogue.plot("prompt_counts").options == ()
    assert catalogue.plot("pareto").options
