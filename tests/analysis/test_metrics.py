"""Every metric, worked out by hand on two prompts of different length."""

import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from compared import file_of, frame_of, group_of, pairs_of, to_frame
from fixtures_records import BASELINE, DRAFTED, EXITING, KOALA, RUN, baseline_row, drafted_row, exiting_row, failed

import benchctl.analysis.metrics as metrics_folder
from benchctl.analysis.frame.build import pair
from benchctl.analysis.metrics import drafting, faithfulness, speed
from benchctl.analysis.metrics.metric import Metric, all_metrics
from benchctl.analysis.stats.estimates import estimates
from benchctl.analysis.tables.columns import metric_blocks
from benchctl.analysis.tables.text import View, render

FREE = [metric for metric in all_metrics() if metric.mode == "free" and metric.needs is None]


def _value(metric: Metric, pairs: pd.DataFrame) -> float | None:
    return estimates(pairs, (metric,))[0].value


@pytest.fixture
def frame() -> pd.DataFrame:
    """Baseline: 9 tokens in 2 + 8 s, 17 tokens in 2 + 32 s. Drafted: half the steps. Early exit: half the layers."""
    short = [baseline_row("p0"), drafted_row("p0", steps=4), exiting_row("p0", tokens=9)]
    long = [baseline_row("p1", tokens=17, step_s=2.0), drafted_row("p1", steps=8), exiting_row("p1", tokens=17)]
    return frame_of(short + long)


@pytest.mark.parametrize(
    ("metric", "label", "value"),
    [
        (speed.SPEEDUP, BASELINE, 1.0),
        (speed.SPEEDUP, DRAFTED, (10 + 34) / (6 + 10)),
        (speed.DECODE_SPEEDUP, DRAFTED, (8 + 32) / (4 + 8)),
        (speed.TOKENS_PER_S, DRAFTED, (9 + 17) / (6 + 10)),
        (speed.TPOT, BASELINE, (8 + 32) / (8 + 16)),
        (speed.TPOT, DRAFTED, (4 + 8) / (8 + 16)),
        (speed.TTFT, DRAFTED, 2.0),
        (drafting.BLOCK_EFFICIENCY, BASELINE, 1.0),
        (drafting.BLOCK_EFFICIENCY, DRAFTED, 2.0),
        (drafting.MEAN_ACCEPTED, BASELINE, 0.0),
        (drafting.MEAN_ACCEPTED, DRAFTED, 1.0),
        (drafting.ACCEPTANCE_RATE, BASELINE, None),
        (drafting.ACCEPTANCE_RATE, DRAFTED, 1 / 3),
        (speed.MEAN_SPEEDUP, BASELINE, 1.0),
        (speed.MEAN_SPEEDUP, DRAFTED, (10 / 6 + 34 / 10) / 2),
        (speed.SOUND_SPEEDUP, DRAFTED, (10 + 34) / (6 + 10)),
        (drafting.ROW_ACCEPTANCE, BASELINE, None),
        (drafting.ROW_ACCEPTANCE, DRAFTED, 1 / 3),
        (drafting.DEPTH_FRACTION, DRAFTED, 1.0),
        (drafting.DEPTH_FRACTION, EXITING, (2 * 12 + (8 + 16) * 6) / (26 * 12)),
        (faithfulness.TOKEN_AGREEMENT, BASELINE, None),
        (faithfulness.TOKEN_AGREEMENT, DRAFTED, 1.0),
        (faithfulness.TOKEN_AGREEMENT, EXITING, (2 + 2) / (9 + 17)),
    ],
)
def test_metric_is_the_ratio_of_sums(frame: pd.DataFrame, metric: Metric, label: str, value: float | None) -> None:
    found = _value(metric, pair(frame, label, BASELINE))
    assert found == (None if value is None else pytest.approx(value))


def test_acceptance_is_set_against_that_of_another_method_that_drafts() -> None:
    """One of three, less one and two of three in steps of 4 and 8: 1/3 - (4 + 16) / (12 + 24)."""
    other = replace(drafted_row("p1", steps=8), label="other", accepted=(2,) * 8)
    rows = [drafted_row("p0"), drafted_row("p1", steps=8), replace(drafted_row("p0"), label="other"), other]
    methods = (*RUN.methods, replace(RUN.methods[1], label="other"))
    frame = frame_of(rows, replace(RUN, methods=methods))
    difference = drafting.ACCEPTANCE_DIFFERENCE
    assert _value(difference, pair(frame, DRAFTED, "other")) == pytest.approx(1 / 3 - (4 + 16) / (12 + 24))
    assert _value(difference, pair(frame, "other", "other")) == 0


def test_acceptance_has_no_difference_to_a_baseline_that_drafts_nothing(frame: pd.DataFrame) -> None:
    assert _value(drafting.ACCEPTANCE_DIFFERENCE, pair(frame, DRAFTED, BASELINE)) is None
    assert _value(drafting.ACCEPTANCE_DIFFERENCE, pair(frame, EXITING, DRAFTED)) is None


def test_tokens_outside_a_draft_vocabulary_are_a_share_of_all_tokens_of_the_answers() -> None:
    """Two of 9 and one of 17 tokens; a method that scores all tokens has no figure."""
    rows = [baseline_row("p0"), drafted_row("p0", steps=4), baseline_row("p1", tokens=17), drafted_row("p1", steps=8)]
    for at, outside in ((1, 2.0), (3, 1.0)):
        counted = {"draft_vocabulary": 8192.0, "outside_draft_vocabulary": outside}
        rows[at] = replace(rows[at], counters=counted)
    frame, metrics = frame_of(rows), (drafting.DRAFT_VOCABULARY, drafting.OUTSIDE_DRAFT_VOCABULARY)
    assert [_value(metric, pair(frame, DRAFTED, BASELINE)) for metric in metrics] == [8192, pytest.approx(3 / 26)]
    assert [_value(metric, pair(frame, BASELINE, BASELINE)) for metric in metrics] == [None, None]
    table = render([group_of(rows)], "md", View(full=True))
    assert "| draft vocabulary | outside it |" in table and "| 8,192 | 0.115 |" in table


@pytest.fixture
def checked_frame() -> pd.DataFrame:
    """Of p0 to p3 the first three can be checked; the lossy method fails on p2."""
    said = {"p0": ("4", "4"), "p1": ("It is 5.", "It is 6."), "p2": ("no", "7"), "p3": ("hello", "bye")}
    rows = [
        row
        for prompt_id, (baseline, lossy) in said.items()
        for row in (replace(baseline_row(prompt_id), text=baseline), replace(exiting_row(prompt_id), text=lossy))
    ]
    rows[5] = failed(rows[5])
    suite = replace(KOALA, exact_answers={"p0": ("4",), "p1": ("5",), "p2": ("7",)})
    return frame_of(rows, replace(RUN, suites=(suite,)))


def test_exact_match_is_the_share_of_right_answers_among_those_that_can_be_checked(checked_frame: pd.DataFrame) -> None:
    pairs = pair(checked_frame, BASELINE, BASELINE)
    assert _value(faithfulness.EXACT_MATCH, pairs) == pytest.approx(2 / 3)
    assert _value(faithfulness.EXACT_MATCH_DIFFERENCE, pairs) == 0.0


def test_a_failed_generation_is_neither_right_nor_wrong_and_leaves_its_pair_out(checked_frame: pd.DataFrame) -> None:
    """On p0 and p1, which both answered, the baseline is right twice and the lossy method once."""
    (lost,) = checked_frame[checked_frame["error"].notna()].itertuples()
    assert (lost.checked_answers, lost.right_answers) == (0, 0)
    pairs = pair(checked_frame, EXITING, BASELINE)
    assert _value(faithfulness.EXACT_MATCH, pairs) == 1 / 2
    assert _value(faithfulness.EXACT_MATCH_DIFFERENCE, pairs) == -1 / 2


def test_a_share_and_a_difference_of_shares_keep_within_their_bounds() -> None:
    """Of six answers one is right, where the baseline has five: a plain interval would end below 0 and -1."""
    prompts = [f"p{number}" for number in range(6)]
    said = ((replace(baseline_row(each), text="4" if each != "p5" else "no"), exiting_row(each)) for each in prompts)
    rows = [row for base, exiting in said for row in (base, replace(exiting, text="4" if base.text == "no" else "no"))]
    pairs = pair(
        frame_of(rows, replace(RUN, suites=(replace(KOALA, exact_answers=dict.fromkeys(prompts, ("4",))),))),
        EXITING,
        BASELINE,
    )
    share, lost = estimates(pairs, (faithfulness.EXACT_MATCH, faithfulness.EXACT_MATCH_DIFFERENCE))
    assert share.value == pytest.approx(1 / 6) and share.interval is not None and share.interval.low == 0.0
    assert lost.value == pytest.approx(-4 / 6) and lost.interval is not None and lost.interval.low == -1.0


def test_answers_that_cannot_be_checked_have_no_score_rather_than_0(frame: pd.DataFrame) -> None:
    pairs = pair(frame, DRAFTED, BASELINE)
    assert (_value(faithfulness.EXACT_MATCH, pairs), _value(faithfulness.EXACT_MATCH_DIFFERENCE, pairs)) == (None, None)


def test_the_mean_of_ratios_weighs_prompts_alike_whatever_they_have_of_turns_and_repeats() -> None:
    """p0 has two turns, measured twice: 4 x 10 s over 4 x 6 s and once 1 s more; p1 has one of each: 34 s over 10 s."""
    rows = [
        replace(row, turn=turn, repeat=repeat, ttft_s=2.0 + (row.label == DRAFTED and turn == repeat == 1))
        for turn, repeat in product(range(2), repeat=2)
        for row in (baseline_row("p0"), drafted_row("p0"))
    ]
    rows += [baseline_row("p1", tokens=17, step_s=2.0), drafted_row("p1", steps=8)]
    pairs = pairs_of(rows)
    assert _value(speed.MEAN_SPEEDUP, pairs) == pytest.approx((40 / 25 + 34 / 10) / 2)


def test_sessions_enter_the_mean_of_ratios_one_by_one() -> None:
    """One in which all took twice as long, 20 / 12, counts as much as one of 12 / 6."""
    slow = [baseline_row(ttft_s=4.0, step_s=2.0), drafted_row(ttft_s=4.0, step_s=2.0)]
    fast = [baseline_row(ttft_s=4.0), drafted_row()]
    pairs = pair(to_frame([file_of(slow), file_of(fast)]), DRAFTED, BASELINE)
    assert _value(speed.MEAN_SPEEDUP, pairs) == pytest.approx((20 / 12 + 12 / 6) / 2)
    assert _value(speed.SPEEDUP, pairs) == pytest.approx((20 + 12) / (12 + 6))


@pytest.mark.parametrize("whose", [BASELINE, DRAFTED])
def test_speed_is_also_given_without_what_loops(whose: str) -> None:
    """p1 is drafted four times as fast, but its text, or the baseline's, says one token over and over."""
    rows = [baseline_row("p0"), drafted_row("p0")]
    for row in (baseline_row("p1", tokens=41), drafted_row("p1", steps=20, step_s=0.25)):
        rows.append(replace(row, token_ids=(7,) * 41) if row.label == whose else row)
    pairs = pairs_of(rows)
    assert _value(speed.SPEEDUP, pairs) == pytest.approx((10 + 42) / (6 + 7))
    assert _value(speed.SOUND_SPEEDUP, pairs) == pytest.approx(10 / 6)


def test_where_everything_loops_there_is_no_speed_without_it() -> None:
    rows = [replace(row, token_ids=(7,) * 41) for row in (baseline_row(tokens=41), drafted_row(steps=20))]
    pairs = pairs_of(rows)
    assert _value(speed.SOUND_SPEEDUP, pairs) is None


def test_a_tree_is_as_good_as_its_depth_and_as_wasteful_as_its_rows() -> None:
    """Drafts 3 deep of 10 rows, of which one token is accepted; a step without a draft reads a row nobody drafted."""
    tree = replace(drafted_row(steps=4), rows=(11, 11, 11, 1), drafted=(3, 3, 3, 0), accepted=(1, 1, 1, 0),
                   committed=(2, 2, 2, 1), token_ids=tuple(range(8)), layers=(12,) * 8)  # fmt: skip
    pairs = pairs_of([baseline_row(), tree])
    assert _value(drafting.ACCEPTANCE_RATE, pairs) == pytest.approx(3 / 9)
    assert _value(drafting.ROW_ACCEPTANCE, pairs) == pytest.approx(3 / 30)


@pytest.mark.parametrize("metric", FREE, ids=lambda metric: metric.name)
def test_a_metric_that_the_baseline_s_measurements_are_part_of_says_so(frame: pd.DataFrame, metric: Metric) -> None:
    """Or an interval would leave out how the baseline's sessions differ from the method's."""
    pairs = pair(frame, DRAFTED, BASELINE).assign(
        checked_answers=1,
        right_answers=1,
        checked_answers_baseline=1,
        right_answers_baseline=1,
        drafted_tokens_baseline=9,
    )
    measured = ("whole_s", "whole_decode_s", "ttft_s", "decode_s", "accepted_tokens", "right_answers", "steps")
    other = pairs.assign(**{f"{name}_baseline": pairs[f"{name}_baseline"] * 2 + 1 for name in measured})
    assert metric.uses_baseline == (_value(metric, other) != _value(metric, pairs))


def test_names_are_identifiers_and_unique() -> None:
    names = [metric.name for metric in all_metrics()]
    assert len(set(names)) == len(names) and all(name.isidentifier() for name in names)


def test_a_prompt_of_which_a_time_is_missing_has_no_speed_up_of_its_own(frame: pd.DataFrame) -> None:
    """Missing seconds were a sum of 0, so the mean was 0 or infinite."""
    pairs = pair(frame, DRAFTED, BASELINE)
    assert [_value(speed.MEAN_SPEEDUP, pairs.assign(**{name: None})) for name in ("whole_s", "whole_s_baseline")] == [
        None,
        None,
    ]


def test_nothing_measured_has_no_value(frame: pd.DataFrame) -> None:
    nothing = pair(frame, "missing", BASELINE)
    assert [_value(metric, nothing) for metric in FREE] == [None] * len(FREE)


NEW_METRIC = '''
"""Tokens of the longest answers."""

from benchctl.analysis.metrics.metric import Metric, column, ones

PROMPT_TOKENS = Metric(
    "prompt_tokens", "tokens per prompt", "tokens", "lower", column("prompt_tokens"), ones,
    table="Prompts", title="prompt tokens", cell="{:.1f}",
)
'''


def test_a_new_column_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the folder of metrics is enough for JSON, CSV and the tables."""
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "prompt_length.py").write_text(NEW_METRIC)
    monkeypatch.setattr(metrics_folder, "__path__", [*metrics_folder.__path__, str(tmp_path / "metrics")])
    all_metrics.cache_clear()
    try:
        group = group_of([replace(row, prompt_tokens=7) for row in (baseline_row(), drafted_row())])
        figures = json.loads(render([group], "json"))["groups"][0]["suites"][0]["methods"][1]["metrics"]
        assert figures["prompt_tokens"]["value"] == 7.0
        assert "prompt_tokens" in render([group], "csv").splitlines()[0]
        (table,) = (block for block in metric_blocks(group) if block.title == "Prompts")
        assert [column.title for column in table.columns] == ["prompt tokens"]
        assert [table.columns[0].cell(method) for method in group.pooled.methods] == ["7.0", "7.0"]
    finally:
        all_metrics.cache_clear()
        sys.modules.pop("benchctl.analysis.metrics.prompt_length", None)
