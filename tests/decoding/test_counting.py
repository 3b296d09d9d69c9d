"""Methods that would count themselves better than they are: the harness counts, or refuses what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from cheats import MergesPasses
from fakes_measuring import Plain
from refusals import refused
from runs import pair

from benchctl.conformance.random_models import LAYERS, prompt_of
from benchctl.decoding.draft import Draft
from benchctl.decoding.experts.offload import Timer
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Context, Exactness, Method, Speculative
from benchctl.decoding.model.target import Target

PROMPT = prompt_of(13)
NEW_TOKENS = 13


def run(method: Method) -> Generation:
    return decode(method, pair("llama").target, DecodeRequest(PROMPT, NEW_TOKENS))


@dataclass
class Halved(Method):
    """Runs half of the layers for each token; claims what ``claim`` says."""

    claim: Exactness

    @property
    def exactness(self) -> Exactness:  # type: ignore[override]
        return self.claim

    def step(self, context: Context) -> Sequence[int]:
        stream = context.stream
        stream.push(context.tokens[-1:])
        stream.advance(LAYERS // 2)
        token = context.pick(stream.logits())
        stream.fill(LAYERS // 2)
        stream.keep((0,))
        return (token,)


@dataclass
class Spoiled(Speculative):
    """Drafts zeros and returns what ``spoil`` makes of the tokens it verified."""

    spoil: Callable[[tuple[int, ...]], Sequence[int]]

    def draft(self, context: Context, budget: int) -> Draft:
        return Draft.chain([0] * min(budget, 2))

    def step(self, context: Context) -> Sequence[int]:
        return self.spoil(tuple(super().step(context)))


@dataclass
class Recites(Method):
    """Decodes in `serve`, which once was not timed, and repeats the answer without running anything."""

    answer: tuple[int, ...] = ()
    at: int = 0

    @contextmanager
    def serve(self, target: Target, timer: Timer | None) -> Iterator[Target]:
        self.answer, self.at = decode(Plain(), target, DecodeRequest(PROMPT, NEW_TOKENS)).token_ids, 0
        yield target

    def start(self, context: Context) -> int:
        return self.answer[0]

    def step(self, context: Context) -> Sequence[int]:
        self.at += 1
        return (self.answer[self.at],)


@dataclass
class Unkept(Plain):
    """Runs a row more than its text has, and keeps it."""

    def step(self, context: Context) -> tuple[int]:
        tokens = super().step(context)
        context.stream.push(tokens)
        context.stream.advance()
        context.stream.keep((0,))
        return tokens


@dataclass
class SlowToServe(Plain):
    now: list[float] = field(default_factory=lambda: [0.0])

    @contextmanager
    def serve(self, target: Target, timer: Timer | None) -> Iterator[Target]:
        self.now[0] += 5.0
        yield target


def test_four_passes_in_one_step_are_one_token_a_pass() -> None:
    """Such a method once had 4 tokens per step, and passed all checks of doctor."""
    generation = run(MergesPasses())
    assert generation.token_ids == run(Plain()).token_ids
    assert [(len(step.tokens), step.passes, step.accepted) for step in generation.steps] == [(4, 4, 0)] * 3
    assert generation.layers == (LAYERS,) * NEW_TOKENS


def test_layers_are_those_that_ran() -> None:
    assert set(run(Halved("lossy")).layers[1:]) == {LAYERS // 2}
    with refused("layers_skipped", f"layer {LAYERS // 2 + 1} ran 13 rows for a text of 25"):
        run(Halved("exact"))


@pytest.mark.parametrize(
    ("error", "spoil"),
    [
        ("tokens_not_verified", lambda tokens: (*tokens[:-1], 3)),
        ("tokens_not_verified", lambda tokens: (*tokens, 3)),
        ("no_token_ids", lambda tokens: ()),
        ("no_token_ids", lambda tokens: ("a",)),
    ],
)
def test_a_step_returns_the_tokens_it_verified(error: str, spoil: Callable[[tuple[int, ...]], Sequence[int]]) -> None:
    with refused(error):
        run(Spoiled(spoil))


def test_an_answer_from_before_the_clock_is_refused() -> None:
    """It once had a speed-up of 5,997x and was lossless without a warning."""
    with refused("more_tokens_than_passes", "0 passes"):
        run(Recites())


def test_the_cache_holds_the_text_and_nothing_else() -> None:
    with refused("cache_not_text"):
        run(Unkept())


def test_the_clock_starts_before_serve() -> None:
    method = SlowToServe()
    request = DecodeRequest(PROMPT, 2, clock=lambda: method.now[0])
    assert decode(method, pair("llama").target, request).ttft_s == 5.0
