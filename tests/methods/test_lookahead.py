"""Lookahead and prompt_lookup: what is guessed from the text is what a plain simulation or scan of it gives."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import pytest
import torch
from oracles import Naive
from runs import CONTEXT_TOKENS, MODELS, NEW_TOKENS, answer, pair, prompt_of, run

from benchctl.decoding.loop import Generation
from benchctl.decoding.sampling import Sampling
from benchctl.methods.prompt_lookup import PromptLookup
from benchctl.registry import build

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
    naive: Naive, setting: Setting, prompt: Sequence[int], answer: Sequence[int], context_tokens: int
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


SETTINGS = (
    Setting(5, 7, 7),
    Setting(3, 5, 2, bonus=False),
    Setting(2, 4, 3),
    Setting(4, 3, 5, prompt_pool=True),
    Setting(6, 2, 1, bonus=False, prompt_pool=True),
    Setting(3, 1, 9),
    Setting(4, 20, 20, bonus=False),
    Setting(5, 7, 0),  # plain decoding with a window
)


def _expected(setting: Setting, family: str, seed: int, prompt_tokens: int) -> list[Round]:
    text = answer(family, seed, prompt_tokens)
    prompt = prompt_of(prompt_tokens, seed)
    return replay_lookahead(pair(family, seed).naive, setting, prompt, text, CONTEXT_TOKENS)


def _rounds(generation: Generation) -> list[Round]:
    return [Round(step.drafted, step.accepted, step.rows) for step in generation.steps]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.label)
def test_steps_and_their_rows_equal_replay(setting: Setting, family: str, seed: int) -> None:
    for prompt_tokens in (1, 13, CONTEXT_TOKENS - 7):
        got = run(setting.label, pair(family, seed).target, prompt_of(prompt_tokens, seed), NEW_TOKENS)
        assert list(got.token_ids) == answer(family, seed, prompt_tokens)
        assert _rounds(got) == _expected(setting, family, seed, prompt_tokens)


@pytest.mark.parametrize(
    ("setting", "prompt_tokens"),
    [*((Setting(4, 12, 5), tokens) for tokens in range(CONTEXT_TOKENS - 22, CONTEXT_TOKENS, 3))]
    + [pytest.param(Setting(5, CONTEXT_TOKENS - 3, 2), 1, marks=pytest.mark.slow)],
)
def test_the_window_shrinks_towards_the_end_of_the_context(setting: Setting, prompt_tokens: int) -> None:
    got = run(setting.label, pair("llama").target, prompt_of(prompt_tokens), NEW_TOKENS)
    assert list(got.token_ids) == answer("llama", 0, prompt_tokens)
    assert _rounds(got) == _expected(setting, "llama", 0, prompt_tokens)


@pytest.mark.parametrize("setting", [Setting(5, 7, 7), Setting(2, 4, 3), Setting(4, 3, 5, prompt_pool=True)])
def test_steps_equal_replay_at_any_limit(setting: Setting) -> None:
    prompt, text = prompt_of(13), answer("llama", 0, 13)
    for limit in (*range(1, 11), 25):
        got = run(setting.label, pair("llama").target, prompt, limit)
        assert list(got.token_ids) == text[:limit]
        expected = replay_lookahead(pair("llama").naive, setting, prompt, text[:limit], CONTEXT_TOKENS)
        assert _rounds(got) == expected


def test_a_window_larger_than_the_context_is_unsupported_by_name() -> None:
    target = pair("llama").target
    reason = build(f"lookahead[ngram=5,window={CONTEXT_TOKENS - 2}]").unsupported(target.info)
    assert reason is not None
    assert reason.startswith("window=62 with ngram=5 looks 64 tokens ahead, but the target takes 64 in all")
    assert build(f"lookahead[ngram=5,window={CONTEXT_TOKENS - 3}]").unsupported(target.info) is None


def scan(tokens: list[int], method: PromptLookup) -> list[int]:
    """Every start of every n-gram, longest n-gram first: nothing is skipped, nothing remembered."""
    for size in range(method.max_ngram, method.min_ngram - 1, -1):
        starts = list(range(len(tokens) - size))
        for start in starts if method.match == "first" else starts[::-1]:
            copied = tokens[start + size : start + size + method.draft_tokens]
            whole = len(copied) == method.draft_tokens
            if tokens[start : start + size] == tokens[-size:] and (whole or method.allow_short):
                return copied
    return []


@pytest.mark.parametrize("max_ngram", [1, 2, 3, 4])
@pytest.mark.parametrize("allow_short", [True, False])
@pytest.mark.parametrize("match", ["first", "last"])
def test_look_up_finds_what_a_scan_finds(match: Literal["first", "last"], allow_short: bool, max_ngram: int) -> None:
    rng = random.Random(max_ngram)
    found = 0
    for _ in range(3000):
        method = PromptLookup(rng.randint(1, 5), max_ngram, match, allow_short, rng.randint(1, max_ngram))
        tokens = rng.choices(range(rng.randint(1, 4)), k=rng.randint(1, 14))
        expected = scan(tokens, method)
        assert method.look_up(tokens) == expected
        found += bool(expected)
    assert 400 < found < 2950
