"""The crossover plot: what is drawn, where a curve passes 1, and which files make no curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fixtures_pictures import check_room, contrast, words_of
from fixtures_pictures import texts as texts_of
from fixtures_records import EXITING, RUN, baseline_row, batch, exiting_row, failed, method, usual_rows, write
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer

from benchctl.analysis.comparison import compare
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.plots.crossover import Curve, curves, draw_crossover, plot_crossover
from benchctl.analysis.plots.style import SIZES, THEMES, Style
from benchctl.analysis.stats.bootstrap import Interval
from benchctl.analysis.stats.estimates import Estimate
from benchctl.cli import main
from benchctl.errors import UserError
from benchctl.records.schema import Row
from benchctl.records.writer import read

PROMPTS = 16
STEP_S = {1: 0.5, 2: 0.6, 4: 0.9, 8: 1.3, 16: 1.6}  # of the method; the baseline's are 1 s, and 2 s for prefill


def rows_of(size: int) -> list[Row]:
    """8 steps after prefill: 10 s of the baseline, 2 + 8 * STEP_S of the method."""
    rows: list[Row] = []
    for start in range(0, PROMPTS, size):
        ids = [f"p{number}" for number in range(start, start + size)]
        for make in (baseline_row, lambda prompt_id: exiting_row(prompt_id, step_s=STEP_S[size])):
            answers = [make(prompt_id) for prompt_id in ids]
            rows += batch(*answers) if size > 1 else answers
    return rows


def files_of(tmp_path: Path, sizes: Sequence[int], **changes: Any) -> list[Path]:
    run = replace(RUN, **changes)
    return [write(tmp_path / f"{size}.jsonl", rows_of(size), replace(run, batch_size=size)) for size in sizes]


def drawn(paths: Sequence[Path]) -> tuple[Curve, ...]:
    return curves(compare([read(path) for path in paths]))


def test_a_curve_has_the_speed_up_at_every_batch_size(tmp_path: Path) -> None:
    (curve,) = drawn(files_of(tmp_path, (8, 1, 4, 2, 16)))
    assert curve.label == EXITING
    values = {size: estimate.value for size, estimate in curve.points.items()}
    assert values == pytest.approx({size: 10 / (2 + 8 * step_s) for size, step_s in STEP_S.items()})
    assert list(curve.points) == [1, 2, 4, 8, 16]


def test_a_curve_passes_1_between_the_sizes_around_it(tmp_path: Path) -> None:
    """1.087 at 4 and 0.806 at 8: 31% of the doubling between them."""
    (curve,) = drawn(files_of(tmp_path, (1, 2, 4, 8)))
    above, below = 10 / 9.2, 10 / 12.4
    assert curve.crossings() == pytest.approx([4 * 2 ** ((above - 1) / (above - below))])
    assert curve.text == f"{EXITING}, 1x at about 5.0 together"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({2: 1.2, 8: 0.8}, [4.0]),
        ({1: 1.5, 2: 1.2, 4: 1.1}, []),
        ({1: 0.5, 2: 1.5, 4: 0.5}, [2**0.5, 2**1.5]),
        ({1: 2.0}, []),
    ],
)
def test_crossings_lie_on_straight_lines_over_doublings(values: dict[int, float], expected: list[float]) -> None:
    points = {size: Estimate(SPEEDUP, value, Interval(value - 0.05, value + 0.05)) for size, value in values.items()}
    assert Curve("x", points).crossings() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("reach", "next_reach", "told"), [(0.3, 0.3, False), (0.1, 0.3, True), (0.3, 0.1, True), (None, None, False)]
)
def test_a_crossing_that_noise_could_have_made_is_none(
    reach: float | None, next_reach: float | None, told: bool
) -> None:
    """1.2 and 0.8, by so much either way: at least one of them must be beyond doubt on its side of 1."""
    points = {
        size: Estimate(SPEEDUP, value, None if by is None else Interval(value - by, value + by))
        for size, value, by in ((2, 1.2, reach), (8, 0.8, next_reach))
    }
    curve = Curve("x", points)
    assert curve.crossings() == (pytest.approx((4.0,)) if told else ())
    assert curve.text == ("x, 1x at about 4.0 together" if told else "x")


def test_the_picture_names_methods_sizes_and_baseline(tmp_path: Path) -> None:
    out = tmp_path / "plot.svg"
    plot_crossover(compare([read(path) for path in files_of(tmp_path, (1, 4, 8))]), out)
    texts = texts_of(out)
    for text in (
        "reference on cpu, float32, threads: 1, baseline: autoregressive",
        "koala: 16 prompts, up to 64 new tokens",
        "prompts decoded together (batch size)",
        "speed-up over autoregressive on the same batches",
        f"{EXITING}, 1x at about 5.0 together",
    ):
        assert text in texts, text
    assert {"1", "4", "8"} <= set(texts.splitlines()) and "2" not in texts.splitlines()


@pytest.mark.parametrize(("theme", "size"), list(product(THEMES, SIZES)))
def test_speeds_stand_at_their_sizes_on_every_ground_at_every_size(tmp_path: Path, theme: str, size: str) -> None:
    """Two methods: one as above, one that is never slower."""
    style, sizes = Style(theme, size), (1, 4, 8)
    rows = {size: rows_of(size) for size in sizes}
    files = []
    for count in sizes:
        more = [replace(row, label="deed") for row in rows[count] if row.label == EXITING]
        run = replace(RUN, batch_size=count, methods=(*RUN.methods, method("deed", "lossy")))
        files.append(write(tmp_path / f"{count}.jsonl", [*rows[count], *more], run))
    figure = draw_crossover(compare([read(path) for path in files]), style)
    check_room(figure)
    (axes,) = figure.axes
    lines = [container.lines[0] for container in axes.containers if isinstance(container, ErrorbarContainer)]
    assert len(lines) == 2 and len({line.get_marker() for line in lines}) == 2
    for line in lines:
        assert np.asarray(line.get_xdata()) == pytest.approx(sizes, rel=0.02), "a little aside, not to cover the other"
        assert np.asarray(line.get_ydata()) == pytest.approx([10 / (2 + 8 * STEP_S[count]) for count in sizes])
    least = {"page": 8, "column": 7, "slide": 16}[size]
    assert min(float(text.get_fontsize()) for text in words_of(figure)) >= least
    assert all(contrast(to_hex(text.get_color()), style.ground) >= 4.5 for text in words_of(figure))


def test_runs_that_differ_in_more_than_the_batch_size_are_refused(tmp_path: Path) -> None:
    one = files_of(tmp_path, (1,))
    other = write(tmp_path / "other.jsonl", rows_of(4), replace(RUN, batch_size=4, dtype="bfloat16"))
    with pytest.raises(UserError, match="other.jsonl: dtype is bfloat16, in .*1.jsonl float32.*alike in all else"):
        drawn([*one, other])


def test_one_batch_size_makes_no_curve(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="all was decoded at batch size 4. Measure others as well: .*--batch-size 8"):
        drawn(files_of(tmp_path, (4,)))


def test_two_runs_of_one_size_in_other_modes_are_refused(tmp_path: Path) -> None:
    files = files_of(tmp_path, (1, 4))
    other = write(tmp_path / "other.jsonl", rows_of(4), replace(RUN, batch_size=4, modes=("free", "profile")))
    with pytest.raises(UserError, match="4.jsonl and .*other.jsonl: are of the same batch size in other modes"):
        drawn([*files, other])


def test_without_a_method_there_is_nothing_to_draw(tmp_path: Path) -> None:
    files = []
    for size in (1, 4):
        rows = [failed(row) if row.label == EXITING else row for row in rows_of(size)]
        files.append(write(tmp_path / f"{size}.jsonl", rows, replace(RUN, batch_size=size)))
    with pytest.raises(UserError, match="no method was measured beside the baseline"):
        drawn(files)


def test_the_command_draws_files_and_says_what_to_know_of_them(tmp_path: Path) -> None:
    out = tmp_path / "crossover.png"
    paths = [str(path) for path in files_of(tmp_path, (1, 2))]
    result = CliRunner().invoke(main, ["plot", "--crossover", *paths, "--out", str(out)])
    assert (result.exit_code, result.stdout) == (0, f"Plot: {out}\n")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "decoded in batches" in result.stderr


def test_two_kinds_of_plot_at_once_are_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["plot", "--crossover", "--pareto", str(write(tmp_path / "a.jsonl", usual_rows(2)))]
    )
    assert result.exit_code == 2 and "one of --pareto, --acceptance" in result.stderr
