"""Single answers: the rows that figures rest on, found again in their files, and what of its text each token adds."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from benchctl.analysis.frame.comparison import Group
from benchctl.records.schema import Row, Run

Decode = Callable[[Sequence[int]], str]
"""Ids to text, as the row's own text was made."""
Decoders = Callable[[Run], Decode | None]
"""None where the tokenizer of a run is not at hand."""

_BEFORE = 8  # tokens to decode with: what a token says depends on the few before it, if on any
_PARTIAL = "\ufffd"  # what a part of a character is decoded to


class Place(NamedTuple):
    """A generation that runs freely. `file` numbers the group's files."""

    file: int
    suite: str
    prompt_id: str
    turn: int
    label: str
    repeat: int
    session: int


def rows_at(group: Group, wanted: Collection[Place]) -> Mapping[Place, Row]:
    """The rows at these places, in the order of files and rows."""
    found = {}
    for number, file in enumerate(group.files):
        for row in file.rows:
            place = Place(number, row.suite, row.prompt_id, row.turn, row.label, row.repeat, row.session)
            if row.mode == "free" and place in wanted:
                found[place] = row
    return found


def pieces(row: Row, ends: Sequence[int], decode: Decode) -> list[str] | None:
    """What of its text the tokens up to each of `ends` add, and the rest; None where that is not the row's text.

    A character of several tokens goes to the last of them.
    """
    ids, found, at = row.token_ids, list[str](), 0
    for end in (*ends, len(ids)):
        start = max(0, at - _BEFORE)
        before = decode(ids[start:at]).rstrip(_PARTIAL)
        after = decode(ids[start:end])
        after = after if end == len(ids) else after.rstrip(_PARTIAL)
        found.append(after[len(before) :])
        at = end
    return found if "".join(found) == row.text else None
