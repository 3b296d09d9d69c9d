"""Single answers: looks up the rows behind figures in their files, and splits a text by the tokens that add it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from benchctl.records.schema import Row, Run
from benchctl.records.writer import RunFile

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, by the tokenizer that made the row's text."""
Decoders = Callable[[Run], Decode | None]
"""The decoder of a run; None where its tokenizer is not available."""

_BEFORE = 8  # tokens of context to decode with: a token's text may depend on the few before it
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


def rows_at(files: Sequence[RunFile], wanted: Collection[Place]) -> Mapping[Place, Row]:
    """The rows at these places, in the order of files and rows."""
    rows: dict[Place, Row] = {}
    for number, file in enumerate(files):
        for row in file.rows:
            place = Place(number, row.suite, row.prompt_id, row.turn, row.label, row.repeat, row.session)
            if row.mode == "free" and place in wanted:
                rows[place] = row
    return rows


def pieces(row: Row, ends: Sequence[int], decode: Decode) -> list[str] | None:
    """The part of the row's text that the tokens up to each of `ends` add, and the rest.

    None where the pieces do not join to the row's text. A character of several tokens belongs to the last of them.
    """
    ids, texts, at = row.token_ids, list[str](), 0
    for end in (*ends, len(ids)):
        start = max(0, at - _BEFORE)
        before = decode(ids[start:at]).rstrip(_PARTIAL)
        after = decode(ids[start:end])
        after = after if end == len(ids) else after.rstrip(_PARTIAL)
        texts.append(after[len(before) :])
        at = end
    return texts if "".join(texts) == row.text else None
