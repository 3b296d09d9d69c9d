"""Rows of other engines: what they hold with and without steps, and what cannot be true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchctl.records.schema import Row, Totals, from_line, to_line

STEPS = Row(
    suite="tasks",
    prompt_id="a",
    turn=0,
    label="vllm",
    repeat=0,
    session=0,
    order=0,
    prompt_tokens=3,
    token_ids=(5, 6, 7, 8),
    stop_reason="length",
    ttft_s=1.0,
    step_s=(0.5,),
    committed=(3,),
    drafted=(3,),
    accepted=(2,),
    arrived_s=(1.0, 1.5),
    arrived_tokens=(1, 3),
)
SUMS = replace(
    STEPS,
    step_s=(),
    committed=(),
    drafted=(),
    accepted=(),
    totals=Totals(new_tokens=4, steps=1, wall_s=1.5, drafted=3, accepted=2),
)


@pytest.mark.parametrize("row", [STEPS, SUMS, replace(SUMS, totals=Totals(new_tokens=4))])
def test_an_answer_of_an_engine_is_written_and_read_with_and_without_steps(row: Row) -> None:
    assert from_line(Row, to_line(row)) == row
    assert row.decode_s == 0.5


def test_a_row_without_arrivals_has_the_time_of_its_steps() -> None:
    own = replace(STEPS, arrived_s=(), arrived_tokens=(), rows=(4,), layers=(2,) * 4, step_s=(0.25,))
    assert own.decode_s == 0.25


@pytest.mark.parametrize(
    ("row", "changed"),
    [
        (STEPS, {"arrived_tokens": (1, 2)}),
        (STEPS, {"arrived_tokens": (4,)}),
        (STEPS, {"arrived_s": (1.0, 0.9)}),
        (STEPS, {"arrived_s": (1.1, 1.5)}),
        (STEPS, {"arrived_s": ()}),
        (STEPS, {"rows": (4,)}),
        (STEPS, {"layers": (2,) * 4}),
        (STEPS, {"committed": (2,)}),
        (STEPS, {"accepted": (4,)}),
        (STEPS, {"stop_reason": None}),
        (STEPS, {"totals": Totals(new_tokens=4)}),
        (STEPS, {"error": "engine_died: it is gone"}),
        (SUMS, {"totals": None}),
        (SUMS, {"totals": Totals(new_tokens=5)}),
        (SUMS, {"totals": Totals(new_tokens=4, drafted=1, accepted=2)}),
        (SUMS, {"totals": Totals(new_tokens=4, drafted=9, accepted=4)}),
        (SUMS, {"totals": Totals(new_tokens=4, steps=4)}),
    ],
)
def test_what_cannot_be_true_is_refused(row: Row, changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        replace(row, **changed)
