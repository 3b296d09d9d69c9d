"""Acceptance under each of its names is what its source defines, worked out step by step beside it."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from click import unstyle
from command import cli
from compared import file_of, frame_of, group_of, pairs_of
from fixtures_records import (
    BASELINE,
    DRAFTED,
    EXITING,
    KOALA,
    MT_BENCH,
    RUN,
    Steps,
    baseline_row,
    method,
    stepped_row,
    usual_rows,
    write,
)
from refusals import refused

from benchctl.analysis.comparison import compare
from benchctl.analysis.frame.rows import POSITIONS, step_counts
from benchctl.analysis.metrics.drafting import (
    ACCEPTANCE_RATE,
    BLOCK_EFFICIENCY,
    MEAN_ACCEPTED,
    ROW_ACCEPTANCE,
    by_position,
)
from benchctl.analysis.stats.estimates import estimates
from benchctl.analysis.tables.text import Format, View, render_acceptance
from benchctl.records.schema import Row, Verdict


def values_of(rows: list[Row]) -> dict[str, float | None]:
    """All figures by their name, through a file, its frame and its pairs."""
    baselines = [baseline_row(row.prompt_id, tokens=len(row.token_ids)) for row in rows]
    pairs, frame = pairs_of(baselines + rows), frame_of(rows)
    named = (ACCEPTANCE_RATE, ROW_ACCEPTANCE, MEAN_ACCEPTED, BLOCK_EFFICIENCY)
    return {found.metric.name: found.value for found in estimates(pairs, (*named, *chain(*by_position(frame))))}


def test_every_figure_is_that_of_the_steps_gone_through_one_by_one() -> None:
    """Drafts of 0 to 6 tokens in trees of two rows a position, over 12 generations."""
    rng = np.random.default_rng(0)
    answers: list[Steps] = []
    for _ in range(12):
        lengths = rng.integers(0, 7, rng.integers(5, 20))
        answers.append([(int(drafted), int(rng.integers(0, drafted + 1))) for drafted in lengths])
    found = values_of([stepped_row(steps, f"p{number}", nodes=2) for number, steps in enumerate(answers)])
    steps = [step for answer in answers for step in answer]
    drafts = [step for step in steps if step[0] > 0]
    accepted = sum(kept for _, kept in steps)
    assert found["acceptance_rate"] == pytest.approx(accepted / sum(drafted for drafted, _ in steps))
    assert found["row_acceptance"] == pytest.approx(accepted / sum(2 * drafted for drafted, _ in steps))
    assert found["mean_accepted_tokens"] == pytest.approx(accepted / len(steps))
    assert found["block_efficiency"] == pytest.approx(accepted / len(steps) + 1)
    for position in range(1, 7):
        reached = [kept >= position for drafted, kept in steps if drafted >= position and kept >= position - 1]
        assert found[f"conditional_{position}"] == pytest.approx(sum(reached) / len(reached))
        assert found[f"unconditional_{position}"] == pytest.approx(
            sum(kept >= position for _, kept in drafts) / len(drafts)
        )
    for count in range(7):
        assert found[f"histogram_{count}"] == pytest.approx(sum(kept == count for _, kept in drafts) / len(drafts))


def test_tokens_accepted_with_one_chance_give_leviathan_s_expectations() -> None:
    """Each token accepted with alpha = 0.8, drafts of 4: (1 - alpha**5) / (1 - alpha) tokens a step (equation 1 of
    2211.17192), and conditional acceptance alpha at all positions, though the acceptance rate is far below it."""
    alpha, drafted = 0.8, 4
    hits = np.random.default_rng(2).random((20_000, drafted)) < alpha
    kept = np.cumprod(hits, axis=1).sum(axis=1)
    found = values_of([stepped_row([(drafted, int(count)) for count in kept])])
    assert found["block_efficiency"] == pytest.approx((1 - alpha**5) / (1 - alpha), rel=0.01)
    for position in range(1, 5):
        assert found[f"conditional_{position}"] == pytest.approx(alpha, abs=0.015)
        assert found[f"unconditional_{position}"] == pytest.approx(alpha**position, abs=0.015)
    assert found["acceptance_rate"] == pytest.approx(sum(alpha**position for position in range(1, 5)) / 4, abs=0.01)


@pytest.mark.parametrize(
    ("steps", "cut", "accepted", "tested"),
    [
        ([(3, 3), (3, 1), (3, 0)], 0, [2, 1, 1], [3, 2, 1]),  # the example of the docstring
        ([(3, 2), (4, 3)], 0, [2, 2, 1, 0], [2, 2, 2, 1]),
        ([(3, 2), (4, 3)], 1, [2, 2, 1, 0], [2, 2, 2, 0]),
        ([(3, 2), (4, 3)], 2, [2, 2, 0, 0], [2, 2, 1, 0]),
        ([(3, 2), (4, 3)], 3, [2, 1, 0, 0], [2, 1, 1, 0]),
        ([(2, 2)], 0, [1, 1], [1, 1]),  # nothing follows the deepest position,
        ([(2, 2)], 1, [1, 1], [1, 1]),  # whether the bonus token was lost or not
    ],
)
def test_what_a_stop_token_cut_off_was_not_rejected(
    steps: Steps, cut: int, accepted: list[int], tested: list[int]
) -> None:
    """The first draft, of 3, rejected its third token; the last, of 4, its fourth, if it was not cut off before."""
    counts = {"accepted": accepted, "tested": tested}
    expected = {f"{kind}_{at}": steps for kind, found in counts.items() for at, steps in enumerate(found, 1)}
    assert step_counts(stepped_row(steps, cut=cut)) == expected


def test_positions_beyond_the_last_counted_are_one_bar() -> None:
    deep = POSITIONS + 3
    found = values_of([stepped_row([(deep, deep), (deep, POSITIONS), (deep, POSITIONS - 1), (deep, 0)])])
    assert found[f"histogram_{POSITIONS}"] == 1 / 2
    assert found[f"histogram_{POSITIONS - 1}"] == 1 / 4
    assert (found[f"conditional_{POSITIONS}"], found[f"unconditional_{POSITIONS}"]) == (2 / 3, 1 / 2)
    assert f"conditional_{POSITIONS + 1}" not in found


def test_a_position_that_was_never_tried_has_no_conditional_acceptance() -> None:
    found = values_of([stepped_row([(3, 0), (3, 1)])])
    assert (found["conditional_2"], found["unconditional_2"]) == (0.0, 0.0)
    assert (found["conditional_3"], found["unconditional_3"]) == (None, 0.0)


def _table(format: Format = "table", deep: int = 3) -> str:
    rows = usual_rows(6)
    rows = [stepped_row([(deep, deep), (deep, 0)], row.prompt_id) if row.label == DRAFTED else row for row in rows]
    return render_acceptance([group_of(rows)], format)


def test_the_table_shows_every_name_and_leaves_out_what_does_not_draft() -> None:
    """Half of the drafts of 3 are accepted whole and half not at all."""
    text = _table()
    assert BASELINE not in text and EXITING not in text
    lines = [line.split() for line in text.splitlines()]
    assert ["two_model", "draft_tokens=3", "0.500", "[0.500,", "0.500]", "0.500", "1.50", "2.50"] in lines
    assert ["two_model", "draft_tokens=3", "conditional", "50", "100", "100"] in lines
    assert ["unconditional", "50", "50", "50"] in lines
    assert ["histogram", "50", "0", "0", "50"] in lines


def test_a_deep_draft_fits_80_columns_and_says_that_more_is_meant() -> None:
    text = unstyle(_table(deep=40))
    assert max(map(len, text.splitlines())) <= 80
    assert f"{POSITIONS}+" in text


def test_markdown_has_as_many_cells_in_each_line_of_a_table() -> None:
    text = _table("md")
    for table in text.split("\n\n"):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1
    assert "|  | histogram | 50 | 0 | 0 | 50 |" in text


def test_programs_get_full_precision_with_intervals() -> None:
    (found,) = json.loads(_table("json"))["acceptance"]
    figures = {(figure["name"], figure["position"]): figure for figure in found["figures"]}
    assert figures["conditional", 1] == {"name": "conditional", "position": 1, "value": 0.5, "low": 0.5, "high": 0.5}
    assert figures["block_efficiency", None]["value"] == 2.5
    lines = list(csv.DictReader(io.StringIO(_table("csv"))))
    assert len(lines) == len(found["figures"]) == 4 + 3 + 3 + 4
    values = {(line["figure"], line["position"]): line["value"] for line in lines}
    assert (values["histogram", "3"], values["mean_accepted_tokens", ""]) == ("0.5", "1.5")


@pytest.mark.parametrize(("verdict", "id"), [("identical", ""), ("lossy", "claim_broken")])
def test_a_refused_method_is_marked_in_every_format(verdict: Verdict, id: str) -> None:
    """Its acceptance was shown like that of any other method."""
    answer = replace(stepped_row([(3, 3), (3, 0)]), verdict=verdict, first_divergence=1 if id else None)
    groups = [group_of([baseline_row(tokens=6), answer])]
    assert render_acceptance(groups, "md").count("refused: two_model") == 2 * bool(id)
    (found,) = json.loads(render_acceptance(groups, "json"))["acceptance"]
    lines = csv.DictReader(io.StringIO(render_acceptance(groups, "csv")))
    assert found["refused"] == id and {line["refused"] for line in lines} == {id}


def test_suites_and_groups_stand_apart() -> None:
    rows = usual_rows(3)
    both = rows + [replace(row, suite="mt-bench") for row in rows]
    one, two = file_of(both, replace(RUN, suites=(KOALA, MT_BENCH))), file_of(rows, replace(RUN, threads=2))
    text = unstyle(render_acceptance(compare([one, two]), view=View(by_suite=True)))
    headings = re.findall(r"^(group \d|koala|mt-bench|all suites)", text, re.MULTILINE)
    assert headings == [*["group 1", "koala", "mt-bench", "all suites"] * 2, *["group 2"] * 2]


def test_nothing_drafted_is_said_rather_than_shown_as_an_empty_table() -> None:
    with refused("no_drafts"):
        render_acceptance([group_of([baseline_row()], replace(RUN, methods=(method(BASELINE),)))])


def test_compare_shows_acceptance_when_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", usual_rows(3))
    result = cli("compare", path, "--acceptance")
    assert result.exit_code == 0
    assert "histogram" in result.output and "speed-up" not in result.output
