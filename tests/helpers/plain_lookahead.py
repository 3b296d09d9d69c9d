"""Lookahead decoding as plainly as it can be written: every token of the window is asked for with one whole text.

Rows, pool and verification are simulated on the answer that must come out; no tree, no mask, no position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from oracles import Naive

from benchctl.decoding.sampling import Sampling

Rows = list[list[int]]


@dataclass(frozen=True)
class Setting:
    """Options of the method."""

    ngram: int
    window: int
    guesses: int
    bonus: bool = True
    prompt_pool: bool = False

    @property
    def label(self) -> str:
        numbers = f"ngram={self.ngram},window={self.window},guesses={self.guesses}"
        return f"lookahead[{numbers},bonus={str(self.bonus).lower()},prompt_pool={str(self.prompt_pool).lower()}]"


@dataclass(frozen=True)
class Round:
    """One pass after the prefill."""

    drafted: int
    accepted: int
    rows: int


def replay_lookahead(
    naive: Naive,
    setting: Setting,
    prompt: Sequence[int],
    answer: Sequence[int],
    context_tokens: int,
) -> list[Round]:
    """The passes that must lead to ``answer``, which takes all tokens allowed; greedy, seed 0.

    There is no window once its n-grams would come too late.
    """
    text, left = list(prompt), list(answer)
    rows: Rows = [random_row(setting, prompt)]
    ngrams: list[tuple[int, ...]] = []  # the most recent last
    rounds: list[Round] = []
    noted = 0
    for number in count():
        if not left:
            return rounds
        fills = number < setting.ngram - 2
        passes_to_ngrams = max(setting.ngram - 2 - number, 0) + 1
        late = len(left) - passes_to_ngrams < 2  # no token to guess before the last one, which the pass gives anyway
        rows = [] if late else fitting(rows, len(text), context_tokens)
        if setting.prompt_pool:
            ends = range(max(noted + 1, setting.ngram), len(text) + 1)
            remember(ngrams, (tuple(text[end - setting.ngram : end]) for end in ends))
            noted = len(text)
        known = [] if fills or number == 0 else [ngram[1:] for ngram in ngrams if ngram[0] == text[-1]]
        guesses = [guess[: len(left) - 1] for guess in known[::-1][: setting.guesses]]
        if number > 0:
            rounds.append(_round(setting, guesses, left, rows))
        if rows and (number > 0 or fills):
            rows = _pass(naive, text, rows, ngrams, fills)
        committed = 1 + (rounds[-1].accepted if rounds else 0)
        text += left[:committed]
        del left[:committed]
    raise AssertionError


def random_row(setting: Setting, prompt: Sequence[int]) -> list[int]:
    """What row 0 starts with."""
    size = (setting.window + setting.ngram - 3,)
    places = torch.randint(len(prompt), size, generator=Sampling().generator())
    return [prompt[place] for place in places.tolist()]


def fitting(rows: Rows, text_tokens: int, context_tokens: int) -> Rows:
    """Without the columns whose last token stands beyond the context. Row 0 has none for the first column: the root."""
    while rows and text_tokens + len(rows[0]) + len(rows) - 1 > context_tokens:
        rows = [row[:-1] for row in rows] if rows[0] else []
    return rows if all(rows[1:]) else []


def remember(ngrams: list[tuple[int, ...]], fresh: Iterable[tuple[int, ...]]) -> None:
    for ngram in fresh:
        if ngram in ngrams:
            ngrams.remove(ngram)
        ngrams.append(ngram)


def _round(setting: Setting, guesses: list[tuple[int, ...]], left: Sequence[int], rows: Rows) -> Round:
    accepted = 0
    for guess in guesses:
        agreed = 0
        while agreed < len(guess) and guess[agreed] == left[agreed]:
            agreed += 1
        accepted = max(accepted, agreed)
    if not setting.bonus:
        accepted = min(accepted, setting.ngram - 2)
    beginnings = {guess[:end] for guess in guesses for end in range(1, len(guess) + 1)}
    return Round(max(map(len, guesses), default=0), accepted, 1 + len(beginnings) + sum(map(len, rows)))


def _pass(naive: Naive, text: list[int], rows: Rows, ngrams: list[tuple[int, ...]], fills: bool) -> Rows:
    """The rows after one pass; a full window leaves an n-gram per column."""
    columns = [[row[column] for row in rows[1:]] for column in range(len(rows[0]) + 1)]
    new = [naive.argmax([*text, *rows[0][:at], *column]) for at, column in enumerate(columns)]
    if fills:
        return [*(row[1:] for row in rows), new[1:]]
    keys = [text[-1], *rows[0]]
    remember(ngrams, [(key, *column, token) for key, column, token in zip(keys, columns, new, strict=True)])
    shifted = [*rows[1:], new]
    return [shifted[0][1:], *shifted[1:]]
