"""Figures of the target's opinion, each worked out by hand from sums written down here."""

from dataclasses import replace

import pytest
from click import unstyle
from compared import group_of
from fixtures_records import BASELINE, DRAFTED, EXITING, baseline_row, drafted_row, exiting_row

from benchctl.analysis.comparison import Group
from benchctl.analysis.metrics.faithfulness import KL, LOG_LIKELIHOOD_DIFFERENCE, TARGET_AGREEMENT
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.tables.text import View, render
from benchctl.records.schema import Row

FULL = View(full=True, width=100)


def _values(group: Group, metric: Metric) -> dict[str, float | None]:
    return {method.label: method.estimate(metric).value for method in group.pooled.methods}


def _scored(row: Row, agreed: int, logprob: float, baseline_logprob: float = -9.0, **more: float) -> Row:
    """Sums of an answer of 9 tokens beside a baseline's of 9 tokens."""
    sums = {
        "scored_tokens": 9.0,
        "target_agreed_tokens": agreed,
        "target_logprob": logprob,
        "baseline_scored_tokens": 9.0,
        "baseline_target_logprob": baseline_logprob,
    }
    return replace(row, fidelity=sums | more)


def test_the_target_agrees_with_all_of_answers_that_are_the_baselines_whose_likelihood_is_theirs_too() -> None:
    """One prompt of 9 identical tokens, one of 9 of which the target would have said 6, at -2 nats a token for -1."""
    same = replace(exiting_row("p0"), verdict="identical", first_divergence=None)
    group = group_of([baseline_row("p0"), same, baseline_row("p1"), _scored(exiting_row("p1"), 6, -18.0)])
    assert _values(group, TARGET_AGREEMENT) == {BASELINE: None, EXITING: pytest.approx(15 / 18)}
    assert _values(group, LOG_LIKELIHOOD_DIFFERENCE)[EXITING] == pytest.approx(-0.5)


def test_a_likelier_answer_than_the_baselines_has_a_difference_above_0() -> None:
    group = group_of([baseline_row(), _scored(exiting_row(), 9, -4.5)])
    assert _values(group, LOG_LIKELIHOOD_DIFFERENCE)[EXITING] == pytest.approx(0.5)


def test_answers_that_tell_nothing_leave_no_figure_rather_than_a_perfect_one() -> None:
    """A file begun by an older version and resumed: the answers that differ are the very ones that lack sums."""
    rows = [baseline_row("p0"), _scored(exiting_row("p0"), 6, -18.0), baseline_row("p1"), exiting_row("p1")]
    group = group_of(rows)
    assert _values(group, TARGET_AGREEMENT)[EXITING] is None
    assert _values(group, LOG_LIKELIHOOD_DIFFERENCE)[EXITING] is None


def test_kl_is_a_mean_over_the_tokens_that_have_one() -> None:
    """Also of answers that are the baseline's; a method that has no distribution of its own has no figure."""
    same = replace(exiting_row("p0"), verdict="identical", first_divergence=None)
    rows = [
        baseline_row("p0"),
        replace(same, fidelity={"kl_tokens": 9.0, "kl_nats": 0.0}),
        drafted_row("p0"),
        baseline_row("p1"),
        _scored(exiting_row("p1"), 6, -18.0, kl_tokens=3.0, kl_nats=6.0),
        drafted_row("p1"),
    ]
    assert _values(group_of(rows), KL) == {BASELINE: None, DRAFTED: None, EXITING: 0.5}


def test_where_no_answer_differs_all_is_the_targets_and_no_table_says_so() -> None:
    group = group_of([baseline_row(), drafted_row()])
    assert _values(group, TARGET_AGREEMENT)[DRAFTED] == 1.0
    assert _values(group, LOG_LIKELIHOOD_DIFFERENCE)[DRAFTED] == 0.0
    assert "Fidelity (no judge)" not in render([group], view=FULL)


def test_a_table_has_the_figures_that_there_are() -> None:
    """Sampled and imported runs, and exact methods, are not bothered with columns of dashes."""
    rows = [baseline_row("p0"), _scored(exiting_row("p0"), 6, -18.0, kl_tokens=3.0, kl_nats=6.0)]
    rows += [baseline_row("p1"), replace(exiting_row("p1"), verdict="identical", first_divergence=None)]
    group = group_of(rows)
    text = unstyle(render([group], view=FULL))
    table = text[text.index("Fidelity (no judge)") :].splitlines()
    assert next(line.split() for line in table if line.startswith("early_exit")) == [
        *("early_exit", "0.833", "-0.500", "2")
    ]


def test_a_method_that_degenerates_has_the_table_too() -> None:
    looping = replace(drafted_row(steps=10), token_ids=(3,) * 21)
    text = unstyle(render([group_of([baseline_row(tokens=21), looping])], view=FULL))
    line = next(line for line in text[text.index("Fidelity (no judge)") :].splitlines() if line.startswith("two_model"))
    assert line.split() == ["two_model", "draft_tokens=3", "1.000"]


def test_numeric_verdicts_have_a_column_where_there_are_some() -> None:
    numeric = replace(drafted_row(), verdict="numeric", first_divergence=4)
    with_some = unstyle(render([group_of([baseline_row(), numeric])], view=FULL))
    assert "identical  tie  numeric  lossy" in with_some
    assert "identical  tie  lossy" in unstyle(render([group_of([baseline_row(), drafted_row()])], view=FULL))


def test_sampled_answers_have_their_divergence_alone() -> None:
    sampled = replace(exiting_row(), verdict="sampled", first_divergence=None, fidelity={"kl_tokens": 4, "kl_nats": 1})
    group = group_of([baseline_row(), sampled])
    figures = TARGET_AGREEMENT, LOG_LIKELIHOOD_DIFFERENCE, KL
    assert [_values(group, metric)[EXITING] for metric in figures] == [None, None, 0.25]
    text = unstyle(render([group], view=FULL))
    line = next(line for line in text[text.index("Fidelity (no judge)") :].splitlines() if line.startswith(EXITING))
    assert line.split() == [EXITING, "0.25"]
