"""What must change nothing: names of tokens, neighbours in a run, earlier prompts; and what a commit must leave."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from gate_exits import Left, slow_states
from mutants import ForgetfulTwoModel
from oracles import Naive
from runs import (
    CONTEXT_TOKENS,
    EXACT,
    LAYERS,
    LOSSY,
    SKIPPING,
    Pair,
    pair,
    pair_of,
    prepared,
    prompt_of,
    rounds_of,
    run,
)
from torch import Tensor
from transformers import DynamicCache

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Method
from benchctl.decoding.sampling import Sampling

NEW_TOKENS = 30
WARM = Sampling(temperature=0.9, top_p=0.9, seed=5)


def _swap(ids: Sequence[int], one: int, other: int) -> list[int]:
    return [{one: other, other: one}.get(token, token) for token in ids]


def _renamed(model: Any, token: int) -> Any:
    """The model with ids 0 and ``token`` exchanged."""
    twin = copy.deepcopy(model)
    weights = [twin.model.embed_tokens.weight, twin.lm_head.weight]
    for weight in weights[: 1 if weights[0] is weights[1] else 2]:
        weight[[0, token]] = weight[[token, 0]]
    return twin


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_exchanging_a_frequent_token_with_id_nought_changes_no_step(family: str) -> None:
    """Padding with 0 is how published code loses tokens; here 0 becomes the most frequent token of all."""
    models = pair(family)
    prompt = prompt_of(13)
    counts = Counter(run("autoregressive", models.target, prompt, NEW_TOKENS).token_ids)
    token = counts.most_common(1)[0][0] or counts.most_common(2)[1][0]
    renamed = pair_of(_renamed(models.model, token), _renamed(models.draft_model, token))
    for label in (*EXACT, *LOSSY):
        before = run(label, models.target, prompt, NEW_TOKENS, draft=models.draft)
        after = run(label, renamed.target, _swap(prompt, 0, token), NEW_TOKENS, draft=renamed.draft)
        assert list(after.token_ids) == _swap(before.token_ids, 0, token)
        assert rounds_of(after) == rounds_of(before)
        assert after.layers == before.layers


def _decode(method: Method, models: Pair, prompt_tokens: int, sampling: Sampling) -> Generation:
    return decode(method, models.target, DecodeRequest(prompt_of(prompt_tokens), 20, sampling, seed=prompt_tokens))


@pytest.mark.parametrize(
    "sampling", [Sampling(), pytest.param(WARM, marks=pytest.mark.slow)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("label", [*EXACT, *LOSSY])
def test_prompt_gives_the_same_whatever_ran_before(label: str, sampling: Sampling) -> None:
    models = pair("llama")
    one = prepared(label, models.target, models.draft)
    lengths = (13, 30, CONTEXT_TOKENS - 4, 13, 1)
    forward = [_decode(one, models, length, sampling) for length in lengths]
    other = prepared(label, models.target, models.draft)
    backward = [_decode(other, models, length, sampling) for length in reversed(lengths)]
    assert forward[0] == forward[3]
    assert forward == backward[::-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "label", ["autoregressive", "two_model", "prompt_lookup", "early_exit[mode=draft,exits=3]", "medusa", "lookahead"]
)
def test_sampled_answers_depend_on_the_seeds_alone(label: str) -> None:
    models = pair("llama")

    def answer(seed: int, prompt_seed: int) -> tuple[int, ...]:
        sampling = replace(WARM, seed=seed)
        prompt = prompt_of(13)
        got = run(
            label, models.target, prompt, NEW_TOKENS, draft=models.draft, sampling=sampling, prompt_seed=prompt_seed
        )
        return got.token_ids

    assert answer(1, 1) == answer(1, 1)
    assert len({answer(seed, prompt_seed) for seed in (1, 2) for prompt_seed in (1, 2)}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("label", [*EXACT, *LOSSY])
def test_drawing_from_the_top_token_alone_takes_the_greedy_steps(label: str) -> None:
    """Drafts are drawn from warped distributions too: with top_k=1 nothing is left to chance."""
    models = pair("llama")
    prompt = prompt_of(13)
    greedy = run(label, models.target, prompt, NEW_TOKENS, draft=models.draft, sampling=Sampling(seed=WARM.seed))
    certain = run(label, models.target, prompt, NEW_TOKENS, draft=models.draft, sampling=replace(WARM, top_k=1))
    assert (certain.token_ids, certain.steps, certain.layers) == (greedy.token_ids, greedy.steps, greedy.layers)


class Audit:
    """Watches every stream and compares what its cache holds after each commit with a fresh pass over its text."""

    def __init__(self, models: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        self._models = models
        self.texts: dict[Stream, list[int]] = {}
        self._depths: dict[Stream, dict[int, int]] = {}
        self._left: dict[Stream, dict[int, Left]] = {}  # those above whose exits not their frozen state stands in
        self.commits = 0
        for name in ("keep", "truncate", "fill", "skip"):
            self._watch(monkeypatch, name, getattr(self, f"_{name}"))

    @staticmethod
    def _watch(monkeypatch: pytest.MonkeyPatch, name: str, before: Callable[..., Callable[[], None]]) -> None:
        original = getattr(Stream, name)

        def watched(stream: Stream, *arguments: Any) -> None:
            after = before(stream, *arguments)
            original(stream, *arguments)
            after()

        monkeypatch.setattr(Stream, name, watched)

    def _keep(self, stream: Stream, rows: Sequence[int]) -> Callable[[], None]:
        text = self.texts.get(stream, [])[: stream.base] + [stream.text[stream.base :][row] for row in rows]
        self.texts[stream] = text
        return lambda: self._check(stream, text)

    def _truncate(self, stream: Stream, length: int) -> Callable[[], None]:
        self.texts[stream] = self.texts[stream][:length]
        return lambda: self._check(stream, self.texts[stream])

    def _fill(self, stream: Stream, first: int, stand_ins: Tensor | None = None) -> Callable[[], None]:
        if stand_ins is None:
            self._depths.setdefault(stream, {})[stream.length - 1] = first
        else:
            everywhere = stand_ins.expand(LAYERS - first, -1).clone()
            self._left.setdefault(stream, {})[stream.length - 1] = Left(first, everywhere)
        return lambda: None

    def _skip(self, stream: Stream, first: int) -> Callable[[], None]:
        self._left.setdefault(stream, {})[stream.length - 1] = Left(first, None)
        return lambda: None

    def _cached(self, stream: Stream, naive: Naive, text: list[int]) -> Tensor:
        """[layers, 2 * kv_heads, tokens, head_dim] by full recomputation, in transformers' order of dimensions."""
        left = self._left.get(stream, {})
        if not left:
            depths = [self._depths.get(stream, {}).get(position, LAYERS) for position in range(len(text))]
            return naive.cached(text, depths)
        cache: Any = DynamicCache()
        slow_states(naive, text, [left.get(position) for position in range(len(text))], cache)
        return torch.stack([torch.cat((layer.keys[0], layer.values[0])) for layer in cache.layers])

    def _check(self, stream: Stream, text: list[int]) -> None:
        self.commits += 1
        is_target = stream.target is self._models.target
        naive = self._models.naive if is_target else self._models.naive_draft
        if not is_target:
            self._check_draft_reads_the_text(text)
        cache, cached = stream.cache, self._cached(stream, naive, text)
        for kv, length, absent, fresh in zip(cache.kv, cache.lengths, cache.absent, cached, strict=True):
            assert length <= len(text)
            held = [slot for slot in range(length) if slot not in absent]
            assert (kv[:, held] - _interleaved(fresh, cache.kv_heads)[:, held]).abs().max() < 1e-12
        assert stream.length == len(text)
        self._check_open_rows(stream, naive, text)

    def _check_draft_reads_the_text(self, draft_text: list[int]) -> None:
        """What the draft model has read, as far as the committed text goes, is that text."""
        target = next(stream for stream in self.texts if stream.target is self._models.target)
        committed = self.texts[target][: target.base] + target.text[target.base :]
        shared = min(len(committed), len(draft_text))
        assert draft_text[:shared] == committed[:shared]

    def _check_open_rows(self, stream: Stream, naive: Naive, text: list[int]) -> None:
        """Rows with layers still to run wait with the residual of the layers they ran."""
        if stream.rows == 0:
            assert set(stream.cache.lengths) == {len(text)}
            return
        states = naive.states(text)
        for row, state in enumerate(stream.states):
            ran = sum(length > stream.base + row for length in stream.cache.lengths)
            assert (state - states[ran, stream.base + row]).abs().max() < 1e-12


def _interleaved(fresh: Tensor, kv_heads: int) -> Tensor:
    """Keys with the two halves of each rotated pair side by side, as benchctl stores them; values as they are."""
    keys = torch.stack(fresh[:kv_heads].chunk(2, dim=-1), dim=-1).flatten(-2)
    return torch.cat((keys, fresh[kv_heads:]))


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        ("llama", 0),
        pytest.param("qwen3", 2, marks=pytest.mark.slow),
        pytest.param("mistral_window", 4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("label", [label for label in (*EXACT, *LOSSY) if label not in SKIPPING])
def test_every_commit_leaves_the_cache_as_if_rejected_rows_had_never_been(
    monkeypatch: pytest.MonkeyPatch, label: str, family: str, seed: int
) -> None:
    models = pair(family, seed)
    audit = Audit(models, monkeypatch)
    got = run(label, models.target, prompt_of(13, seed), NEW_TOKENS, draft=models.draft)
    text = [*prompt_of(13, seed), *got.token_ids]
    committed = next(text for stream, text in audit.texts.items() if stream.target is models.target)
    assert audit.commits > len(got.steps)
    assert committed == text[:-1]


def test_audit_notices_a_draft_cache_that_keeps_rejected_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    models = pair("llama", 0, 512)
    method = ForgetfulTwoModel(draft_tokens=4)
    method.use_draft_model(models.draft)
    Audit(models, monkeypatch)
    with pytest.raises(AssertionError):
        decode(method, models.target, DecodeRequest(prompt_of(13), NEW_TOKENS))


def test_audit_notices_rows_left_in_the_wrong_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    models = pair("llama")
    Audit(models, monkeypatch)
    audited = Stream.keep

    def swapping(stream: Stream, rows: Sequence[int]) -> None:
        kv = stream.cache.kv[1]
        kv[:, [3, 4]] = kv[:, [4, 3]]
        audited(stream, rows)

    monkeypatch.setattr(Stream, "keep", swapping)
    with pytest.raises(AssertionError):
        run("autoregressive", models.target, prompt_of(13), NEW_TOKENS)
