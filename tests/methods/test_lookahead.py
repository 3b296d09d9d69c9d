"""Lookahead and prompt_lookup: what is guessed from the text is what a plain simulation or scan of it gives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import pytest
from mutants import ShiftedLookahead, StaleLookahead
from plain_lookahead import Round, Setting, replay_lookahead
from runs import CONTEXT_TOKENS, NEW_TOKENS, answer, pair, prepared, prompt_of, run

from benchctl.decoding.draft import ROOT
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Method
from benchctl.decoding.sampling import Sampling
from benchctl.decoding.verify import verify_greedy
from benchctl.methods.lookahead import Lookahead, _merged
from benchctl.methods.prompt_lookup import PromptLookup
from benchctl.registry import build

MODELS = (("llama", 0), ("qwen3", 2), ("mistral_window", 4))
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


def _expected(setting: Setting, family: str, seed: int, prompt_tokens: int, thrifty: bool = True) -> list[Round]:
    text = answer(family, seed, prompt_tokens)
    prompt = prompt_of(prompt_tokens, seed)
    return replay_lookahead(pair(family, seed).naive, setting, prompt, text, CONTEXT_TOKENS, thrifty)


def _rounds(generation: Generation) -> list[Round]:
    return [Round(step.drafted, step.accepted, step.rows) for step in generation.steps]


def _generate(method: Method, prompt: Sequence[int], limit: int = NEW_TOKENS, seed: int = 0) -> Generation:
    return decode(method, pair("llama").target, DecodeRequest(prompt, limit, Sampling(seed=seed)))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed"), MODELS)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.label)
def test_steps_and_their_rows_equal_replay(setting: Setting, family: str, seed: int) -> None:
    for prompt_tokens in (1, 13, CONTEXT_TOKENS - 7):
        got = run(setting.label, pair(family, seed).target, prompt_of(prompt_tokens, seed), NEW_TOKENS)
        assert list(got.token_ids) == answer(family, seed, prompt_tokens)
        assert _rounds(got) == _expected(setting, family, seed, prompt_tokens)


@pytest.mark.parametrize("prompt_tokens", range(CONTEXT_TOKENS - 22, CONTEXT_TOKENS, 3))
def test_the_window_shrinks_towards_the_end_of_the_context(prompt_tokens: int) -> None:
    setting = Setting(4, 12, 5)
    got = run(setting.label, pair("llama").target, prompt_of(prompt_tokens), NEW_TOKENS)
    assert list(got.token_ids) == answer("llama", 0, prompt_tokens)
    assert _rounds(got) == _expected(setting, "llama", 0, prompt_tokens)


@pytest.mark.slow
def test_a_window_as_wide_as_the_context_fits() -> None:
    setting = Setting(5, CONTEXT_TOKENS - 3, 2)
    prompt, text = prompt_of(1), answer("llama", 0, 1)[:12]
    got = run(setting.label, pair("llama").target, prompt, 12)
    assert list(got.token_ids) == text
    assert _rounds(got) == replay_lookahead(pair("llama").naive, setting, prompt, text, CONTEXT_TOKENS)


@pytest.mark.parametrize("setting", [Setting(5, 7, 7), Setting(2, 4, 3), Setting(4, 3, 5, prompt_pool=True)])
def test_steps_equal_replay_at_any_limit(setting: Setting) -> None:
    prompt, text = prompt_of(13), answer("llama", 0, 13)
    for limit in (*range(1, 11), 25):
        got = run(setting.label, pair("llama").target, prompt, limit)
        assert list(got.token_ids) == text[:limit]
        expected = replay_lookahead(pair("llama").naive, setting, prompt, text[:limit], CONTEXT_TOKENS)
        assert _rounds(got) == expected


def test_leaving_out_a_window_too_late_to_help_saves_rows_and_changes_no_step() -> None:
    for family, seed in MODELS:
        for setting in SETTINGS:
            thrifty = _expected(setting, family, seed, 13)
            wasteful = _expected(setting, family, seed, 13, thrifty=False)
            assert [(one.drafted, one.accepted) for one in thrifty] == [(one.drafted, one.accepted) for one in wasteful]
            assert sum(one.rows for one in thrifty) < sum(one.rows for one in wasteful)


def test_whole_guesses_are_accepted_with_a_bonus_token_or_without() -> None:
    """Of an n-gram of 3 two tokens are guessed. Else nothing here would show what the option does."""
    for bonus, most in ((True, 3), (False, 2)):
        label = Setting(3, 5, 5, bonus).label
        steps = [
            step
            for family, seed in MODELS
            for step in run(label, pair(family, seed).target, prompt_of(13, seed), NEW_TOKENS).steps
        ]
        assert max(len(step.tokens) for step in steps) == most
        assert max(step.accepted for step in steps) == most - 1


def test_replay_exposes_a_window_off_by_one_column_though_the_text_is_right() -> None:
    got = _generate(ShiftedLookahead(), prompt_of(13))
    assert list(got.token_ids) == answer("llama", 0, 13)
    assert _rounds(got) != _expected(Setting(5, 7, 7), "llama", 0, 13)


def test_replay_exposes_guesses_of_an_earlier_prompt_though_the_text_is_right() -> None:
    method = StaleLookahead()
    _generate(method, prompt_of(20, seed=1))
    got = _generate(method, prompt_of(13))
    assert list(got.token_ids) == answer("llama", 0, 13)
    assert _rounds(got) != _expected(Setting(5, 7, 7), "llama", 0, 13)


def test_the_same_prompt_takes_the_same_steps_after_others_and_other_steps_under_another_seed() -> None:
    method = prepared("lookahead[prompt_pool=true]", pair("llama").target)
    first, _, again = (_generate(method, prompt) for prompt in (prompt_of(13), prompt_of(20, seed=1), prompt_of(13)))
    assert first == again
    others = [_generate(method, prompt_of(13), seed=seed) for seed in range(1, 4)]
    assert {other.token_ids for other in others} == {first.token_ids}
    assert any(_rounds(other) != _rounds(first) for other in others)


def test_columns_of_the_window_go_on_from_its_first_level_and_nothing_of_it_can_be_accepted() -> None:
    """Levels 9 1 2 and 3 4 5, 9 being the root, beside the guess 7 8: positions are contiguous down every column."""
    method = Lookahead(ngram=4)
    method._levels = [[9, 1, 2], [3, 4, 5]]
    draft = method._with_window(_merged([(7, 8)]))
    assert draft.tokens == (7, 8, 1, 2, 3, 4, 5)
    assert draft.parents == (ROOT, 0, ROOT, 2, ROOT, 2, 3)
    assert draft.depths == (1, 2, 1, 2, 1, 2, 3)
    assert draft.scratch == (False,) * 2 + (True,) * 5
    assert draft.depth == 2


def test_a_window_fills_level_by_level_and_then_leaves_an_ngram_per_column() -> None:
    """Filling drops the first column, a full window its first level: either way the root moves on by one."""
    method = Lookahead(ngram=3)
    method._levels = [[9, 1, 2]]
    method._take([3, 4, 5])
    assert method._levels == [[1, 2], [4, 5]]
    assert method._pool == {}
    method._levels[0][0] = 8
    method._take([6, 7])
    assert method._levels == [[4, 5], [6, 7]]
    assert {key: list(guesses) for key, guesses in method._pool.items()} == {8: [(4, 6)], 2: [(5, 7)]}


def test_the_pool_keeps_the_most_recent_guesses_of_each_token() -> None:
    method = Lookahead(ngram=3, guesses=2)
    for ngram in ((5, 1, 1), (5, 2, 2), (6, 9, 9), (5, 1, 1), (5, 3, 3)):
        method._store(ngram)
    assert {key: list(guesses) for key, guesses in method._pool.items()} == {5: [(1, 1), (3, 3)], 6: [(9, 9)]}


def test_every_ngram_of_the_text_is_read_once() -> None:
    method = Lookahead(ngram=3, guesses=2)
    method._read([1, 2, 3, 1, 2, 4])
    method._store((1, 2, 3))
    method._read([1, 2, 3, 1, 2, 4, 6])
    pool = {key: list(guesses) for key, guesses in method._pool.items()}
    assert pool == {1: [(2, 4), (2, 3)], 2: [(3, 1), (4, 6)], 3: [(1, 2)]}


def test_guesses_that_begin_alike_share_rows_and_the_longest_match_is_accepted() -> None:
    draft = _merged([(5, 7), (5, 8), (6, 8)])
    assert draft.tokens == (5, 7, 8, 6, 8)
    assert draft.parents == (ROOT, 0, 0, ROOT, 3)
    assert verify_greedy(draft, [5, 8, 0, 4, 0, 0]).path == (0, 2)


def test_a_window_larger_than_the_context_is_unsupported_by_name() -> None:
    target = pair("llama").target
    reason = build(f"lookahead[window={CONTEXT_TOKENS - 2}]").unsupported(target.info)
    assert reason is not None
    assert reason.startswith("window=62 with ngram=5 looks 64 tokens ahead, but the target takes 64 in all")
    assert build(f"lookahead[window={CONTEXT_TOKENS - 3}]").unsupported(target.info) is None


def scan(tokens: list[int], method: PromptLookup) -> list[int]:
    """Every start of every n-gram, longest n-gram first: nothing is skipped, nothing remembered."""
    for size in range(method.max_ngram, 0, -1):
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
        method = PromptLookup(rng.randint(1, 5), max_ngram, match, allow_short)
        tokens = rng.choices(range(rng.randint(1, 4)), k=rng.randint(1, 14))
        expected = scan(tokens, method)
        assert method.look_up(tokens) == expected
        found += bool(expected)
    assert 600 < found < 2950


@pytest.mark.parametrize(
    ("options", "copied"),
    [
        (PromptLookup(2, 2), [9, 8]),
        (PromptLookup(2, 2, "last"), [5, 1]),
        (PromptLookup(6, 2, "last"), [5, 1, 2]),
        (PromptLookup(6, 2, "last", allow_short=False), [9, 8, 1, 2, 5, 1]),
        (PromptLookup(8, 2, allow_short=False), []),
    ],
)
def test_what_is_copied_depends_on_match_length_and_short_ends(options: PromptLookup, copied: list[int]) -> None:
    """The text ends in 1 2, which stands in it twice before."""
    assert options.look_up([7, 1, 2, 9, 8, 1, 2, 5, 1, 2]) == copied
