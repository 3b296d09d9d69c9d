"""The Pareto plot is drawn for the usual and the odd run, with labels that can be read."""

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_records import DRAFTED, EXITING, KOALA, RUN, baseline_row, drafted_row, failed, method, usual_rows, write
from pages import groups_of
from pictures import texts, write_picture
from refusals import refused

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.plots.axes import check_image
from benchctl.analysis.plots.pareto import LOOKS
from benchctl.analysis.plots.style import SIZES
from benchctl.records.writer import read


def _sweep(tmp_path: Path, count: int) -> tuple[Group, ...]:
    """``count`` thresholds of early exit: each is as slow as the baseline, and agrees with less of it than the next."""
    rows, methods = usual_rows(), list(RUN.methods)
    usual = [row for row in rows if row.label == EXITING]
    for number in range(count):
        label = f"early_exit[min_exit=2,threshold=0.{number + 1:02d}]"
        options = {"min_exit": 2, "threshold": (number + 1) / 100}
        methods.append(replace(method(label, "lossy"), options=options))
        rows += [replace(row, label=label, step_s=tuple(2.0 for _ in row.step_s)) for row in usual]
    return groups_of(tmp_path, rows, replace(RUN, methods=tuple(methods)))


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 18])
def test_a_sweep_has_one_name_and_one_line_in_the_key(tmp_path: Path, count: int) -> None:
    """Of 23 labels in one plot none could be read, and once 13 of them were left out without a number."""
    out = tmp_path / "plot.svg"
    write_picture("pareto", _sweep(tmp_path, count), out, SIZES["screen"])
    lines = texts(out).splitlines()
    assert f"early_exit 1: min_exit=2 threshold 0.01 to 0.{count:02d}" in lines
    assert lines.count("early_exit 1") == 1 and not any("threshold=" in line for line in lines)


def test_the_plot_says_that_prompts_are_an_embedded_sample(tmp_path: Path) -> None:
    out = tmp_path / "plot.svg"
    write_picture(
        "pareto",
        groups_of(tmp_path, usual_rows(), replace(RUN, suites=(replace(KOALA, source="embedded"),))),
        out,
        SIZES["screen"],
    )
    assert "koala (embedded): 20 prompts" in texts(out)


def test_exact_match_can_stand_for_fidelity_where_answers_can_be_checked(tmp_path: Path) -> None:
    rows = [replace(row, text="5" if row.label == EXITING and row.prompt_id < "p15" else "4") for row in usual_rows()]
    checked = replace(RUN, suites=(replace(KOALA, exact_answers={f"p{n}": ("4",) for n in range(20)}),))
    out = tmp_path / "plot.svg"
    write_picture("pareto", groups_of(tmp_path, rows, checked), out, SIZES["screen"], quality="exact")
    assert "exact match on 20 prompts" in texts(out) and "token agreement" not in texts(out)
    with refused("no_fidelity", "--bench tasks"):
        write_picture("pareto", groups_of(tmp_path, rows), out, SIZES["screen"], quality="exact")


def test_speed_and_exact_match_of_different_prompts_are_not_drawn_as_one_point(tmp_path: Path) -> None:
    """Pooled suites once gave the speed-up over all prompts and the exact match over the few that can be checked."""
    partly = replace(RUN, suites=(replace(KOALA, exact_answers={f"p{n}": ("4",) for n in range(5)}),))
    with refused("prompts_differ", "5 of 20"):
        write_picture(
            "pareto", groups_of(tmp_path, usual_rows(), partly), tmp_path / "plot.svg", SIZES["screen"], quality="exact"
        )


def test_a_broken_claim_is_not_drawn_as_lossless(tmp_path: Path) -> None:
    rows = [baseline_row(), replace(drafted_row(), verdict="lossy", first_divergence=1)]
    out = tmp_path / "plot.svg"
    write_picture("pareto", groups_of(tmp_path, rows), out, SIZES["screen"])
    assert LOOKS["unproven"] in texts(out) and LOOKS["lossless"] not in texts(out)


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml"), ("PNG", b"\x89PNG")]
)
def test_the_ending_decides_the_format(tmp_path: Path, ending: str, start: bytes) -> None:
    out = tmp_path / "new folder" / f"plot.{ending}"
    write_picture("pareto", groups_of(tmp_path, usual_rows(3)), out, SIZES["screen"])
    assert out.read_bytes().startswith(start)


def test_runs_that_are_not_comparable_get_a_panel_each(tmp_path: Path) -> None:
    one = write(tmp_path / "1.jsonl", usual_rows(3))
    two = write(tmp_path / "2.jsonl", usual_rows(3), replace(RUN, dtype="bfloat16"))
    out = tmp_path / "plot.svg"
    groups = compare([read(one), read(two)])
    write_picture("pareto", groups, out, SIZES["screen"])
    assert "dtype is bfloat16" in texts(out).replace("\n", " ")


@pytest.mark.slow
def test_too_many_panels_are_refused(tmp_path: Path) -> None:
    files = [
        read(write(tmp_path / f"{threads}.jsonl", usual_rows(2), replace(RUN, threads=threads)))
        for threads in range(1, 14)
    ]
    with refused("too_many_panels", "13 panels"):
        write_picture("pareto", compare(files), tmp_path / "plot.png", SIZES["screen"])


def test_sampled_answers_cannot_be_plotted(tmp_path: Path) -> None:
    rows = [baseline_row(), replace(drafted_row(), verdict="sampled")]
    with refused("no_fidelity", "--temperature 0"):
        write_picture(
            "pareto", groups_of(tmp_path, rows, replace(RUN, temperature=0.5)), tmp_path / "plot.png", SIZES["screen"]
        )


def test_a_method_that_always_failed_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "plot.svg"
    write_picture("pareto", groups_of(tmp_path, [baseline_row(), failed(drafted_row())]), out, SIZES["screen"])
    assert DRAFTED.partition("[")[0] not in texts(out)


@pytest.mark.parametrize(
    ("name", "id"),
    [("plot.gif", "unknown_picture_format"), ("plot", "unknown_picture_format"), ("a/b.png", "cannot_write")],
)
def test_a_picture_that_cannot_be_written_is_refused_before_work(tmp_path: Path, name: str, id: str) -> None:
    (tmp_path / "a").write_text("a file")
    with refused(id, name.rpartition("/")[2]):
        check_image(tmp_path / name)
