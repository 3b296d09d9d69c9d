"""What each token of an answer took: the layers that were run for it or, of a method that drafts, the block of tokens
that its step committed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np
import pandas as pd

from benchctl.analysis.answer_rows import Decoders, Place, pieces, rows_at
from benchctl.analysis.chosen import chosen
from benchctl.analysis.comparison import Group, levels
from benchctl.analysis.frame import pair
from benchctl.analysis.stats import Interval, bootstrap
from benchctl.errors import UserError
from benchctl.records import Row

Kind = Literal["layers", "block"]

_SHARE = 0.25  # of the answers must reach a position: those that do are the long ones, and few tell no spread
_FEWEST = 2  # and so many, to tell a spread


@dataclass(frozen=True)
class Answer:
    """A number for each token, the first of them prefill's; `texts` are None where tokens are not known as text."""

    place: Place
    numbers: tuple[int, ...]
    texts: tuple[str, ...] | None


@dataclass(frozen=True)
class ByPosition:
    """The mean at a position (from 0) over the answers that reach it, and how many these are. Of blocks it is tokens
    per step there: a plain mean would count a block once for each of its tokens, and long ones so more often."""

    position: int
    mean: float
    interval: Interval | None
    answers: int


@dataclass(frozen=True)
class Depths:
    """`means` end where too few answers go on; `answers` are those that they are of."""

    label: str
    kind: Kind
    answer: Answer
    means: tuple[ByPosition, ...]
    answers: int


def depths(group: Group, label: str, prompt: str, decoders: Decoders) -> Depths:
    """What the tokens took that `label` gave to `prompt` ("" for the first one), in its first turn and repeat, and what
    those of all its answers took in the mean.

    Raises UserError for a method that ran all layers for every token and drafted nothing, and for a prompt that it has
    not answered.
    """
    pairs = pair(group.frame, label, group.run.baseline)
    kind = kind_of(pairs)
    if kind is None:
        others = " ".join(telling(group, chosen([group])))
        instead = f"Name another --method, of {others}." if others else "Measure one that drafts, or leaves layers out."
        raise UserError(
            f"{group.files[0].path}: {label} has no token that ran fewer layers than the target has, and no drafts, so "
            f"there is nothing to draw. {instead}"
        )
    places = _places(pairs, label)
    rows = rows_at(group, set(places))
    place = _place_of(places, prompt, label)
    decode = decoders(group.files[place.file].run)
    found = pieces(rows[place], range(1, len(rows[place].token_ids)), decode) if decode else None
    numbers = {each: numbers_of(row, kind) for each, row in rows.items()}
    answer = Answer(place, numbers[place], None if found is None else tuple(found))
    return Depths(label, kind, answer, _means(pairs, [numbers[each] for each in places], kind), len(rows))


def telling(group: Group, labels: Sequence[str]) -> tuple[str, ...]:
    """Those of `labels` of whose tokens there is something to tell."""
    return tuple(label for label in labels if kind_of(pair(group.frame, label, group.run.baseline)) is not None)


def kind_of(pairs: pd.DataFrame) -> Kind | None:
    """What there is to tell of a method's tokens; None where all of them took the same."""
    if (pairs["drafted_tokens"] > 0).any():
        return "block"
    return "layers" if (pairs["depth_layers"] != pairs["full_layers"]).any() else None


def numbers_of(row: Row, kind: Kind) -> tuple[int, ...]:
    """For each token of the answer. Prefill commits its token alone; a token may carry layers that were caught up for
    earlier ones.

    Steps that committed 1 and 3 tokens: 1, 1, 3, 3, 3.
    """
    return row.layers if kind == "layers" else (1, *(count for count in row.committed for _ in range(count)))


def _places(pairs: pd.DataFrame, label: str) -> list[Place]:
    names = ("file", "suite", "prompt_id", "turn", "repeat", "session")
    return [
        Place(int(file), suite, prompt_id, int(turn), label, int(repeat), int(session))
        for file, suite, prompt_id, turn, repeat, session in zip(*(pairs[name] for name in names), strict=True)
    ]


def _place_of(places: Sequence[Place], prompt: str, label: str) -> Place:
    """The first one, of the first turn where it has one."""
    found = [place for place in places if prompt in ("", place.prompt_id)]
    if not found:
        known = list(dict.fromkeys(place.prompt_id for place in places))
        more = f" and {len(known) - 5} more" if len(known) > 5 else ""
        raise UserError(f"--prompt {prompt}: {label} has no answer to it. It has: {' '.join(known[:5])}{more}.")
    return min((place for place in found if place.prompt_id == found[0].prompt_id), key=lambda place: place.turn)


def _means(pairs: pd.DataFrame, numbers: Sequence[Sequence[int]], kind: Kind) -> tuple[ByPosition, ...]:
    """`numbers` [pairs] of tokens. A token of a block of n is the n-th part of a step: tokens over the sum of these
    parts are tokens per step. Prefill's token is of no step."""
    longest = max(map(len, numbers))
    reached = np.array([[position < len(each) for position in range(longest)] for each in numbers], dtype=np.float64)
    values = np.array([[*each, *[0] * (longest - len(each))] for each in numbers], dtype=np.float64)
    enough = max(_FEWEST, ceil(_SHARE * len(numbers)))
    kept = reached.sum(axis=0) >= min(enough, len(numbers))
    kept[:2] = True  # prefill's token, and one of a step at least
    reached, values = reached[:, kept], values[:, kept]
    steps = np.divide(1, values, out=np.zeros_like(values), where=values > 0)
    tops, bottoms = (reached, steps) if kind == "block" else (values, reached)
    intervals = bootstrap(tops, bottoms, levels(pairs))
    means = tops.sum(axis=0) / bottoms.sum(axis=0)
    found = (
        ByPosition(position, float(mean), interval, int(count))
        for position, (mean, interval, count) in enumerate(zip(means, intervals, reached.sum(axis=0), strict=True))
    )
    return tuple(each for each in found if each.position or kind == "layers")
