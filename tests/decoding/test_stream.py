"""A stream of rows on their way through the layers: chains and trees, deferred rows, commits, against plain passes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch
from tiny import VOCABULARY, tiny_target
from torch import Tensor

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.target import Target

LAYERS = 4
VARIANTS = ("llama", "mistral_window", "qwen2_window", "olmoe", "gemma", "olmo3", "gemma3_text", "granite")
TEXT = torch.randint(0, VOCABULARY, (24,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@cache
def target_of(variant: str) -> Target:
    return tiny_target(variant, layers=LAYERS, seed=1)


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-12)


def commit(stream: Stream, tokens: Sequence[int]) -> Tensor:
    """Logits of ``tokens``, which then belong to the text."""
    stream.push(tokens)
    stream.advance()
    logits = stream.logits()
    stream.keep(range(stream.rows))
    return logits


def after(target: Target, tokens: Sequence[int]) -> Stream:
    stream = Stream(target, len(tokens))
    commit(stream, tokens)
    return stream


def logits_of(target: Target, tokens: Sequence[int]) -> Tensor:
    return commit(Stream(target, len(tokens)), tokens)


def assert_cached_as_if_fresh(stream: Stream, text: Sequence[int]) -> None:
    """Keys and values of every layer equal those of one pass over ``text``."""
    assert stream.cache.lengths == [len(text)] * LAYERS
    if text:
        fresh = after(stream.target, text)
        for ours, theirs in zip(stream.cache.kv, fresh.cache.kv, strict=True):
            assert_same(ours[:, : len(text)], theirs[:, : len(text)])


class Plain:
    """What a stream must be: the finished text, and its open rows, each with its token, parent and layers run."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.text: list[int] = []
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.ran: list[int] = []

    def push(self, tokens: list[int], parents: list[int]) -> None:
        chain = parents == list(range(len(self.tokens) - 1, len(self.tokens) - 1 + len(tokens)))
        self.stream.push(tokens, None if chain else parents)
        self.tokens += tokens
        self.parents += parents
        self.ran += [0] * len(tokens)

    def advance(self, last: int) -> None:
        self.stream.advance(last)
        self.ran = [max(ran, last) for ran in self.ran]

    def keep(self, path: list[int]) -> None:
        self.stream.keep(path)
        done = sum(self.ran[row] == LAYERS for row in path)
        self.text += [self.tokens[row] for row in path[:done]]
        self.tokens, self.ran = ([values[row] for row in path[done:]] for values in (self.tokens, self.ran))
        self.parents = list(range(-1, len(path) - done - 1))

    def truncate(self, length: int) -> None:
        self.stream.truncate(length)
        del self.text[length:]

    def path_to(self, row: int) -> list[int]:
        return [] if row < 0 else [*self.path_to(self.parents[row]), row]

    def check(self) -> None:
        """Every row is where a pass over its own branch alone takes it."""
        stream = self.stream
        assert stream.text == self.text + self.tokens and (stream.base, stream.rows) == (len(self.text), len(self.ran))
        for row, ran in enumerate(self.ran):
            branch = [self.tokens[other] for other in self.path_to(row)]
            alone = Stream(stream.target, len(self.text) + len(branch))
            alone.push(self.text + branch)
            alone.advance(ran)
            assert_same(stream.states[row], alone.states[-1])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_pushed_run_kept_or_forgotten_at_random_are_as_in_passes_over_each_branch(variant: str, seed: int) -> None:
    """Windows are of 6 tokens and both ways of attending take part, the one for many rows from 17 on."""
    chance = random.Random(seed)
    plain = Plain(Stream(target_of(variant), 2))
    for _ in range(32):
        rows = len(plain.tokens)
        does = chance.choice(("push", "push", "advance", "advance", "keep", "keep", "truncate"))
        if does == "push" and rows < 12:
            count = chance.choice((1, 2, 2, 3, 5, 18))
            likely = [r if chance.random() < 0.6 else chance.randint(-1, r) for r in range(rows - 1, rows + count - 1)]
            parents = likely if chance.random() < 0.5 else list(range(rows - 1, rows + count - 1))
            plain.push(chance.choices(range(VOCABULARY), k=count), parents)
        elif does == "advance" and rows:
            plain.advance(chance.choice((1, 2, LAYERS, LAYERS)))
            plain.check()
        elif does == "keep" and rows:
            plain.keep(plain.path_to(chance.choice((-1, rows - 1, chance.randrange(rows)))))
            plain.check()
        elif does == "truncate" and not rows:
            plain.truncate(chance.randint(0, len(plain.text) + 2))
        if not plain.tokens:
            assert_cached_as_if_fresh(plain.stream, plain.text)
    plain.push([7], [len(plain.tokens) - 1])
    plain.advance(LAYERS)
    plain.check()
    plain.keep(plain.path_to(len(plain.tokens) - 1))
    assert_cached_as_if_fresh(plain.stream, plain.text)


def test_a_stream_with_open_rows_cannot_be_truncated() -> None:
    stream = after(target_of("llama"), TEXT[:6])
    stream.push([1])
    with pytest.raises(ValueError, match="open rows"):
        stream.truncate(3)


@pytest.mark.parametrize("rows", [2, 8, 9, 16, 17])
def test_float32_kernels_run_a_tree_as_its_branches_alone(rows: int) -> None:
    """Transposed weights up to 8 rows, packed ones above; one attention up to 16, the other above."""
    target = tiny_target("llama", layers=LAYERS, seed=1, dtype=torch.float32)
    chance = random.Random(rows)
    plain = Plain(after(target, TEXT[:9]))
    plain.push(chance.choices(range(VOCABULARY), k=rows), [-1, *(chance.randrange(row) for row in range(1, rows))])
    plain.advance(LAYERS)
    for row in range(rows):
        alone = after(target, TEXT[:9])
        for other in plain.path_to(row):
            last = commit(alone, [plain.tokens[other]])[-1]
        torch.testing.assert_close(plain.stream.logits()[row], last, rtol=0.0, atol=1e-4)


def test_a_row_with_earlier_rows_waiting_below_it_cannot_be_filled_in_or_skipped() -> None:
    """Its keys would take the slots of theirs."""
    stream = after(target_of("llama"), TEXT[:8])
    stream.push(TEXT[8:10])
    stream.advance(2)
    with pytest.raises(ValueError, match="still wait"):
        stream.fill(2)
    with pytest.raises(ValueError, match="still wait"):
        stream.skip(2)
    assert (stream.cache.lengths, stream.cache.absent) == ([10, 10, 8, 8], [[]] * 4)


@pytest.mark.parametrize("parents", [None, (-1, -1)], ids=["chain", "tree"])
@pytest.mark.parametrize("beyond", [1, 2])
def test_rows_beyond_the_context_are_refused(parents: tuple[int, int] | None, beyond: int) -> None:
    """One rotation for two rows would be used for both."""
    target = target_of("llama")
    context = target.context_tokens
    last = context - 2 + beyond
    positions = (last, last + 1) if parents is None else (last + 1, last + 1)
    ancestors = None if parents is None else ((0,), (1,))
    with pytest.raises(ValueError, match=f"position {last + 1}, .* {context}"):
        target.layout(last, positions, ancestors)
    assert target.layout(context - 2, (context - 2, context - 1)).rotary.shape[0] == 2


@pytest.mark.parametrize(
    "variant", [*VARIANTS, "qwen3", "qwen3_biases", "phi3_partial", "olmoe_clipped", "mixtral", "smollm3", "exaone4"]
)
def test_stand_ins_fill_each_layer_with_its_own(variant: str) -> None:
    """The very residuals that would arrive make the very keys and values of an ordinary pass."""
    target = target_of(variant)
    whole, stream = after(target, TEXT[:9]), after(target, TEXT[:8])
    stream.push(TEXT[8:9])
    stream.advance(2)
    arriving, twin = [], after(target, TEXT[:8])
    twin.push(TEXT[8:9])
    for layers in (2, 3):
        twin.advance(layers)
        arriving.append(twin.states[0])
    stream.fill(2, torch.stack(arriving))
    assert stream.cache.lengths == [9] * 4
    for ours, theirs in zip(stream.cache.kv, whole.cache.kv, strict=True):
        assert_same(ours[:, 8], theirs[:, 8])


@pytest.mark.parametrize("variant", ["llama", "mistral_window"])
def test_rows_after_one_that_passed_layers_by_do_not_see_it_there(variant: str) -> None:
    """A layer that nothing was ever written to for it and one that wrote rubbish for it are the same to them."""
    target, streams = target_of(variant), []
    for rubbish in (0.0, 1e6):
        stream = after(target, TEXT[:8])
        stream.push(TEXT[8:9])
        stream.advance(2)
        stream.skip(2)
        stream.keep([0])
        assert (stream.rows, stream.cache.lengths) == (0, [9] * 4)
        commit(stream, TEXT[9:10])
        for kv in stream.cache.kv[2:]:
            kv[:, 8] = rubbish
        stream.push(TEXT[10:12])
        stream.advance()
        streams.append(stream)
    assert torch.equal(streams[0].logits(), streams[1].logits())
    assert (streams[0].logits() - logits_of(target, TEXT[:12])[10:]).abs().max() > 1e-3


def test_branches_do_not_see_an_absent_row_either() -> None:
    target, logits = target_of("llama"), []
    for parents in (None, (-1, 0, 0)):
        stream = after(target, TEXT[:8])
        stream.push(TEXT[8:9])
        stream.advance(1)
        stream.skip(1)
        stream.keep([0])
        stream.push(TEXT[9:11] if parents is None else [*TEXT[9:11], 3], parents)
        stream.advance()
        logits.append(stream.logits()[:2])
    assert_same(logits[0], logits[1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_with_given_states_run_as_tokens_of_these_embeddings(variant: str) -> None:
    """Behind rows of a tree, and from a layer on that other rows have reached; what they hold changes no other row."""
    target = target_of(variant)
    tokens, parents = [5, 7, 9, 4], [-1, 0, 0, 2]
    plain, given, empty = (after(target, TEXT[:11]) for _ in range(3))
    plain.push(tokens, parents)
    plain.advance(2)
    states = plain.states[2:].clone()
    plain.advance()
    for stream, begun in ((given, states), (empty, torch.zeros_like(states))):
        stream.push(tokens[:2], parents[:2])
        stream.advance(2)
        stream.push([0, 0], parents[2:], begun)
        stream.pass_by(0, 2)
        stream.advance()
    assert [(run.first, run.last, run.rows) for run in given.runs[1:]] == [(0, 2, 2), (2, LAYERS, 4)]
    assert_same(given.states[:2], plain.states[:2])
    assert_same(given.states[:2], empty.states[:2])
    given.keep([0, 1])
    assert given.text == [*TEXT[:11], 5, 7]
    assert_cached_as_if_fresh(given, [*TEXT[:11], 5, 7])
    first = after(target, TEXT[:11])
    first.push([0], [-1], target.embed_anywhere([8]))
    first.advance()
    assert_same(first.logits(), logits_of(target, [*TEXT[:11], 8])[-1:])
