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
    ("row", "changed", "reason"),
    [
        (STEPS, {"arrived_tokens": (1, 2)}, "4 token_ids, but 3 arrived_tokens"),
        (STEPS, {"arrived_tokens": (4,)}, "arrived_tokens differ in length"),
        (STEPS, {"arrived_s": (1.0, 0.9)}, "does not grow"),
        (STEPS, {"arrived_s": (1.1, 1.5)}, "ttft_s as its first arrived_s"),
        (STEPS, {"arrived_s": ()}, "ttft_s as its first arrived_s"),
        (STEPS, {"rows": (4,)}, "rows, passes, layers"),
        (STEPS, {"layers": (2,) * 4}, "rows, passes, layers"),
        (STEPS, {"committed": (2,)}, "but prefill and steps committed 3"),
        (STEPS, {"accepted": (4,)}, "step 0: 3 committed, 4 accepted"),
        (STEPS, {"stop_reason": None}, "needs stop_reason"),
        (STEPS, {"totals": Totals(new_tokens=4)}, "totals stand where"),
        (STEPS, {"error": "engine_died: it is gone"}, "a failed generation"),
        (SUMS, {"totals": None}, "but prefill and steps committed 1"),
        (SUMS, {"totals": Totals(new_tokens=5)}, "5 new_tokens"),
        (SUMS, {"totals": Totals(new_tokens=4, drafted=1, accepted=2)}, "2 tokens accepted of at most 1"),
        (SUMS, {"totals": Totals(new_tokens=4, drafted=9, accepted=4)}, "4 tokens accepted of at most 3"),
        (SUMS, {"totals": Totals(new_tokens=4, steps=4)}, "in 4 steps"),
    ],
)
def test_what_cannot_be_true_is_refused(row: Row, changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(row, **changed)
