"""Rounds: what was measured side by side, and is left out of figures side by side.

A round is one repeat of a prompt, or of a batch, in one session: all its turns, by every label, in every mode. Where
any of its rows says that it was measured out of bounds (`invalid`), figures leave out all of it, for all labels alike.
To leave out generations one by one would make the shorter ones fast, see measuring.validity. A further repeat, beyond
those of the run, is a round that was measured again (measuring.plan): it stands for the repeat that it is of.
"""

from typing import NamedTuple

import pandas as pd

from benchctl.records.schema import Row


class Round(NamedTuple):
    """`file` numbers the files; a batch goes by its first prompt."""

    file: int
    session: int
    suite: str
    batch: str
    repeat: int


def round_of(file: int, row: Row) -> Round:
    """That which a row belongs to."""
    return Round(file, row.session, row.suite, row.batch[0] if row.batch else row.prompt_id, row.repeat)


def stands_for(repeat: pd.Series, repeats: pd.Series) -> pd.Series:
    """The planned repeat that one is, or measures again: of 2 planned ones, 1, 3 and 5 all stand for repeat 1."""
    return repeat % repeats
