"""The picture of a sweep: which labels make which line, at which speed-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from fixtures_records import RUN, baseline_row, drafted_row, exiting_row, write
from pictures import LOOKS, assert_picture_readable, figure_of, write_picture
from refusals import refused

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.metrics.drafting import BLOCK_EFFICIENCY
from benchctl.analysis.metrics.faithfulness import TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.plots.style import SIZES
from benchctl.analysis.plots.sweep import significant, sweeps
from benchctl.records.schema import Exactness, MethodInfo, Row, Scalar
from benchctl.records.writer import read

PROMPTS = 8
Options = Mapping[str, Scalar]


def info(name: str, options: Options, exactness: Exactness = "exact") -> MethodInfo:
    label = f"{name}[{','.join(f'{option}={value}' for option, value in options.items())}]"
    reason = "its answers may differ" if exactness == "lossy" else ""
    return MethodInfo(label=label, name=name, options=options, exactness=exactness, reason=reason)


def drafts(draft_tokens: int, confidence: float) -> MethodInfo:
    return info("two_model", {"draft_tokens": draft_tokens, "confidence": confidence})


def exits(threshold: float, fill: str) -> MethodInfo:
    return info("early_exit", {"threshold": threshold, "fill": fill}, "lossy")


# Seconds of a step, of 4 that the method takes where the baseline takes 8 of 1 s: (2 + 8) / (2 + 4 * step_s).
STEP_S = {(2, 0.0): 1.0, (4, 0.0): 0.8, (8, 0.0): 1.4, (2, 0.5): 0.9, (8, 0.5): 1.1}
DRAFTING = [(drafts(*options), step_s) for options, step_s in STEP_S.items()]


def groups_of(
    tmp_path: Path, methods: Sequence[MethodInfo], rows: list[Row], name: str = "run", **changes: object
) -> tuple[Group, ...]:
    run = replace(RUN, methods=(replace(RUN.methods[0]), *methods), **changes)  # type: ignore[arg-type]
    prompts = [baseline_row(f"p{number}") for number in range(PROMPTS)]
    return compare([read(write(tmp_path / f"{name}.jsonl", [*prompts, *rows], run))])


def drafting_rows(methods: Sequence[tuple[MethodInfo, float]]) -> list[Row]:
    return [
        replace(drafted_row(f"p{number}", step_s=step_s * (1 + 0.01 * number)), label=method.label)
        for method, step_s in methods
        for number in range(PROMPTS)
    ]


def measured(
    tmp_path: Path, methods: Sequence[tuple[MethodInfo, float]], name: str = "run", **changes: object
) -> tuple[Group, ...]:
    return groups_of(tmp_path, [method for method, _ in methods], drafting_rows(methods), name, **changes)


def drafting_groups(tmp_path: Path) -> tuple[Group, ...]:
    return measured(tmp_path, DRAFTING)


def leaving_groups(tmp_path: Path, *methods: MethodInfo) -> tuple[Group, ...]:
    rows = [replace(exiting_row(f"p{number}"), label=method.label) for method in methods for number in range(PROMPTS)]
    return groups_of(tmp_path, methods, rows, "leaving")


def test_lines_go_along_the_number_with_most_values_with_a_line_for_each_value_of_the_other(tmp_path: Path) -> None:
    """Whole answers of 8 prompts, of which the n-th takes n percent more: sums of sums."""
    (found,) = sweeps(drafting_groups(tmp_path))
    assert (found.name, found.option, found.values, found.second) == (
        "two_model",
        "draft_tokens",
        (2, 4, 8),
        BLOCK_EFFICIENCY,
    )
    assert [(line.title, list(line.points)) for line in found.lines] == [
        ("confidence=0.0", [2, 4, 8]),
        ("confidence=0.5", [2, 8]),
    ]
    slower = sum(1 + 0.01 * number for number in range(PROMPTS))
    for line, confidence in zip(found.lines, (0.0, 0.5), strict=True):
        for value, method in line.points.items():
            assert isinstance(value, int)
            expected = PROMPTS * 10 / (PROMPTS * 2 + 4 * STEP_S[value, confidence] * slower)
            assert method.estimate(SPEEDUP).value == pytest.approx(expected)
            assert method.estimate(BLOCK_EFFICIENCY).value == pytest.approx(2)


def test_another_option_can_be_swept(tmp_path: Path) -> None:
    (found,) = sweeps(drafting_groups(tmp_path), option="confidence")
    assert (found.option, found.values) == ("confidence", (0.0, 0.5))
    assert [line.title for line in found.lines] == ["draft_tokens=2", "draft_tokens=4", "draft_tokens=8"]
    with refused("unknown_option", "ngram", "two_model", "draft_tokens confidence"):
        sweeps(drafting_groups(tmp_path), option="ngram")


def test_words_stand_in_the_order_they_were_measured_in_and_numbers_in_their_own(tmp_path: Path) -> None:
    methods = [exits(0.9, "copy"), exits(0.5, "copy"), exits(0.7, "copy"), exits(0.7, "absent"), exits(0.7, "exact")]
    groups = leaving_groups(tmp_path, *methods)
    (found,), (words,) = sweeps(groups), sweeps(groups, option="fill")
    assert (found.values, found.is_numeric, found.second) == ((0.5, 0.7, 0.9), True, TOKEN_AGREEMENT)
    assert [line.title for line in found.lines] == ["fill=absent", "fill=copy", "fill=exact"]
    assert (words.values, words.is_numeric) == (("copy", "absent", "exact"), False)


def test_the_first_method_that_was_swept_is_drawn_and_the_others_are_named(tmp_path: Path) -> None:
    lookahead = [(info("lookahead", {"ngram": ngram}), 1.0) for ngram in (3, 4)]
    groups = measured(tmp_path, [(info("medusa", {"heads": 2}), 1.0), *DRAFTING, *lookahead])
    assert sweeps(groups)[0].name == "two_model"
    (note,) = write_picture("sweep", groups, tmp_path / "a.png", SIZES["screen"])
    assert "two_model" in note and "--method lookahead" in note
    assert sweeps(groups, ["lookahead"])[0].name == "lookahead"
    assert write_picture("sweep", groups, tmp_path / "b.png", SIZES["screen"], methods=["lookahead"]) == ()
    with refused("not_swept", "medusa", "--sweep"):
        sweeps(groups, ["medusa"])


def test_labels_that_differ_in_more_than_one_option_are_said_to_show_no_effect_of_it(tmp_path: Path) -> None:
    """Two unlike versions of a method, each a point alone, were drawn as a sweep of the first number they differ in."""
    groups = measured(tmp_path, [(drafts(2, 0.0), 1.0), (drafts(4, 0.5), 1.0)])
    (note,) = write_picture("sweep", groups, tmp_path / "a.png", SIZES["screen"])
    assert "two_model" in note and "draft_tokens alone" in note


def test_an_option_that_one_version_of_a_method_lacks_is_a_line_of_its_own(tmp_path: Path) -> None:
    methods = [drafts(2, 0.5), drafts(4, 0.5), info("two_model", {"draft_tokens": 2})]
    (found,) = sweeps(measured(tmp_path, [(method, 1.0) for method in methods]))
    assert [line.title for line in found.lines] == ["confidence=0.5", "confidence=–"]


def test_settings_that_differ_more_than_prompts_do_differ_significantly(tmp_path: Path) -> None:
    """Of steps of 0.8 to 1.4 s each pair differs, but not from its own copy. The baseline takes part."""
    same = [(drafts(tokens, 0.0), 1.0) for tokens in (2, 4)]
    (copies,) = sweeps(measured(tmp_path, same, "same"))
    labels = [method.label for method, _ in same]
    assert significant(copies) == {(label, RUN.baseline) for label in labels}
    (found,) = sweeps(drafting_groups(tmp_path))
    ranked = [method.label for method, _ in sorted(DRAFTING, key=lambda each: each[1])]
    assert significant(found) == set(combinations([*ranked, RUN.baseline], 2))


@pytest.mark.parametrize(("step_s", "hollow"), [(1.0, 0), (2.0, 2)])
def test_a_mark_is_hollow_where_speed_does_not_differ_from_the_baseline(
    tmp_path: Path, step_s: float, hollow: int
) -> None:
    """Half as many steps of 2 s take as long as the baseline's."""
    run = [(drafts(tokens, 0.0), step_s) for tokens in (2, 4)]
    rows = [replace(row, step_s=(step_s + 0.1 * (-1) ** int(row.prompt_id[1:]),) * 4) for row in drafting_rows(run)]
    speed, _ = figure_of("sweep", groups_of(tmp_path, [method for method, _ in run], rows), SIZES["screen"]).axes
    marks = [line for line in speed.lines if len(line.get_xydata()) == 1]  # type: ignore[arg-type]
    assert len(marks) == 2
    assert sum(line.get_markerfacecolor() == SIZES["screen"].ground for line in marks) == hollow


def test_each_point_has_its_interval_as_a_bar_and_bars_of_lines_stand_apart(tmp_path: Path) -> None:
    """Four bands on each other were a grey from which nothing could be read."""
    groups = drafting_groups(tmp_path)
    speed, _ = figure_of("sweep", groups, SIZES["screen"]).axes
    (found,) = sweeps(groups)
    bars = [bar for each in speed.containers for bar in each.lines[2][0].get_segments()]  # type: ignore[attr-defined]
    intervals = [method.estimate(SPEEDUP).interval for line in found.lines for method in line.points.values()]
    assert [bar[:, 1].tolist() for bar in bars] == [pytest.approx([each.low, each.high]) for each in intervals if each]
    assert len({bar[0, 0] for bar in bars}) == len(bars) == 5


@pytest.mark.slow
def test_more_lines_than_can_be_told_apart_are_refused(tmp_path: Path) -> None:
    groups = measured(tmp_path, [(drafts(tokens, place / 10), 1.0) for tokens in (2, 4) for place in range(9)])
    with refused("too_many_lines", "9 lines by draft_tokens", "8", "--method", "--by"):
        write_picture("sweep", groups, tmp_path / "plot.png", SIZES["screen"], by="draft_tokens")
    write_picture("sweep", groups, tmp_path / "plot.png", SIZES["screen"])  # by confidence: two lines


@pytest.mark.parametrize(("size", "ending"), LOOKS)
def test_every_text_can_be_read(size: str, ending: str, tmp_path: Path) -> None:
    assert_picture_readable("sweep", drafting_groups(tmp_path), SIZES[size], tmp_path / f"plot{ending}")
