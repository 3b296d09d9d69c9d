"""What names a generation within its run, and which generations were decoded together."""

from collections.abc import Sequence
from typing import NamedTuple

from benchctl.records import Mode, Row


class RowKey(NamedTuple):
    """What names a generation within its run; no two rows of a file share it."""

    suite: str
    prompt_id: str
    turn: int
    label: str
    repeat: int
    session: int
    mode: Mode = "free"


def row_key(row: Row) -> RowKey:
    return RowKey(row.suite, row.prompt_id, row.turn, row.label, row.repeat, row.session, row.mode)


def batch_keys(row: Row) -> tuple[RowKey, ...]:
    """The keys of the rows of its batch, in their order; its own alone where it was decoded alone."""
    return tuple(row_key(row)._replace(prompt_id=prompt_id) for prompt_id in row.batch or (row.prompt_id,))


def same_batch(rows: Sequence[Row]) -> bool:
    """Whether these rows can be of one batch: each has the times of the longest, up to its own end."""
    longest = max(rows, key=lambda row: len(row.step_s))
    return all(
        (row.ttft_s, row.step_s) == (longest.ttft_s, longest.step_s[: len(row.step_s)])
        and (row.batch, row.error is None) == (longest.batch, longest.error is None)
        for row in rows
    )
