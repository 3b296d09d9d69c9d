"""Acceptance position by position, and how many drafted tokens steps accept: what needs each step, not their sums.

A generation keeps, for each position of a draft, in how many steps it was tested and in how many accepted. From these
few counts follow all figures here, so that nobody has to carry the steps of a hundred thousand generations along. A
step that drafted is called a draft; its first position is 1, and in a tree a position is a depth.

The names are those of the field, and engines differ in what they mean by them:

* conditional, of the drafts in which all positions before were accepted: NVIDIA NeMo-Skills, speculative decoding,
  "conditional acceptance rate"; alpha of Leviathan et al. 2211.17192, section 3.1, were it the same at all positions;
* unconditional, of all drafts: vLLM, spec_decode_num_accepted_tokens_per_pos / spec_decode_num_drafts. Its sum over the
  positions is the mean number of accepted tokens per draft;
* histogram, the share of drafts that accepted just so many: NVIDIA AIPerf, acceptance_histogram.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pandas as pd

from benchctl.analysis.metrics.metric import Metric
from benchctl.records.schema import Row

POSITIONS = 15  # further ones are counted nowhere, and as many accepted tokens or more are one bar of the histogram
POSITION = "position_"  # what the columns of these counts begin with
_ACCEPTED, _TESTED = "accepted_", "tested_"
_NAMES = {kind: tuple(f"{kind}{number}" for number in range(1, POSITIONS + 1)) for kind in (_ACCEPTED, _TESTED)}


def step_counts(row: Row) -> Mapping[str, int]:
    """In how many steps each position was accepted and tested, as `accepted_1`, `tested_1` and so on to the deepest.

    A position is tested if those before it were accepted. What the loop cut off at a stop token or at the limit was
    neither accepted nor rejected, so the position after the last one kept is not counted as tested.

    Example: steps that drafted 3 and accepted 3, 1 and 0 of them tested the first position three times, the second
    twice and the third once, and accepted 2, 1 and 1.
    """
    deepest = min(max(row.drafted, default=0), POSITIONS)
    if not deepest:
        return {}
    accepted, tested = [0] * (deepest + 1), [0] * (deepest + 1)
    for (drafted, kept), steps in Counter(zip(row.drafted, row.accepted, strict=True)).items():
        accepted[min(kept, deepest)] += steps
        tested[min(drafted, kept + 1, deepest)] += steps
    cut = row.accepted[-1] + 1
    if row.committed[-1] < cut <= min(row.drafted[-1], deepest):
        tested[cut], tested[cut - 1] = tested[cut] - 1, tested[cut - 1] + 1
    counts = dict(zip(_NAMES[_ACCEPTED], _at_least(accepted), strict=False))
    counts.update(zip(_NAMES[_TESTED], _at_least(tested), strict=False))
    return counts


def _at_least(exact: Sequence[int]) -> list[int]:
    """From how many reached just 0, 1, 2 .. positions: how many at least 1, 2 .."""
    return list(accumulate(exact[:0:-1]))[::-1]


@dataclass(frozen=True)
class ByPosition:
    """The metrics of drafts this deep: `conditional` and `unconditional` from position 1 on, `histogram` from 0."""

    conditional: tuple[Metric, ...]
    unconditional: tuple[Metric, ...]
    histogram: tuple[Metric, ...]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (*self.conditional, *self.unconditional, *self.histogram)


def by_position(frame: pd.DataFrame) -> ByPosition:
    """As deep as the deepest draft of the frame's generations."""
    columns = [str(column) for column in frame.columns]
    names = {column.removeprefix(POSITION + _TESTED) for column in columns if column.startswith(POSITION + _TESTED)}
    deepest = max(map(int, names), default=0)
    positions = range(1, deepest + 1)
    drafts = _column("drafting_steps")
    accepted = [drafts, *(_count(_ACCEPTED, number) for number in positions), _none]
    return ByPosition(
        tuple(_share("conditional", number, accepted[number], _count(_TESTED, number)) for number in positions),
        tuple(_share("unconditional", number, accepted[number], drafts) for number in positions),
        tuple(
            _share("histogram", number, _difference(accepted[number], accepted[number + 1]), drafts)
            for number in range(deepest + 1)
        ),
    )


_Column = Callable[[pd.DataFrame], pd.Series]


def _share(name: str, number: int, top: _Column, bottom: _Column) -> Metric:
    return Metric(f"{name}_{number}", f"{name} {number}", "share", "higher", top, bottom)


def _column(name: str) -> _Column:
    return lambda pairs: pairs[name].astype(float).fillna(0.0)


def _count(kind: str, number: int) -> _Column:
    return _column(f"{POSITION}{kind}{number}")


def _none(pairs: pd.DataFrame) -> pd.Series:
    return pd.Series(0.0, index=pairs.index)


def _difference(one: _Column, other: _Column) -> _Column:
    return lambda pairs: one(pairs) - other(pairs)
