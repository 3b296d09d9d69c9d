"""The one loop, with literal methods: where it stops, what it cuts and counts; methods that would count better."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import pytest
from cheats import MergesPasses, RecitesFromStart
from fakes_measuring import Plain
from refusals import refused
from runs import pair, ticking
from tiny import tiny_target
from torch import Tensor

from benchctl.conformance.random_models import LAYERS, prompt_of
from benchctl.decoding.counting import Step
from benchctl.decoding.draft import Draft
from benchctl.decoding.experts.offload import Timer
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Context, Exactness, Method, Speculative
from benchctl.decoding.model.target import Target
from benchctl.decoding.verify import Verdict

CONTEXT_TOKENS = 32
STOPS = frozenset({5, 9})


@cache
def stopping_target() -> Target:
    return tiny_target("llama", layers=2, stop_ids=STOPS, max_position_embeddings=CONTEXT_TOKENS)


@dataclass(frozen=True)
class Block:
    """A step: ``tokens`` are those accepted, and the bonus token; ``drafted`` of them, and more, were in the draft."""

    tokens: tuple[int, ...]
    drafted: int


@dataclass
class Literal(Speculative):
    """Says ``first``, then what its blocks say; remembers how much room each step was given."""

    first: int
    steps: Sequence[Block]
    room: list[int] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)

    def start(self, context: Context) -> int:
        self.texts.append(list(context.tokens))
        self.prefill(context)
        return self.first

    def draft(self, context: Context, budget: int) -> Draft:
        self.room.append(context.remaining_tokens)
        self.texts.append(list(context.tokens))
        block = self.steps[len(self.room) - 1]
        accepted = block.tokens[:-1]
        return Draft.chain([*accepted, *[0] * (block.drafted - len(accepted))])

    def verify(self, context: Context, draft: Draft, target_logits: Tensor) -> Verdict:
        tokens = self.steps[len(self.room) - 1].tokens
        return Verdict(tuple(range(len(tokens) - 1)), tokens[-1])


def block(*tokens: int, drafted: int) -> Block:
    return Block(tokens, drafted)


def single(token: int) -> Block:
    return block(token, drafted=0)


def fake_clock(*marks: float) -> Callable[[], float]:
    """Fails when asked once too often."""
    return iter(marks).__next__


def generate(method: Literal, prompt: Sequence[int] = (1, 2), new_tokens: int = 10) -> Generation:
    return decode(method, stopping_target(), DecodeRequest(prompt, new_tokens, clock=ticking()))


def assert_counted(generation: Generation) -> None:
    """Counting identity: the prefill token, what was accepted, and at most one bonus token per step."""
    steps = generation.steps
    bonus = [len(step.tokens) - step.accepted for step in steps]
    assert set(bonus) <= {0, 1}
    assert len(generation.token_ids) == 1 + sum(step.accepted for step in steps) + sum(bonus)
    assert len(generation.layers) == len(generation.token_ids)
    assert len(generation.step_s) == len(steps)
    assert all(len(step.layers) == len(step.tokens) for step in steps)


def test_times_are_the_differences_of_the_clock_s_marks() -> None:
    steps = [block(3, 4, drafted=2), single(6)]
    clock = fake_clock(10.0, 12.5, 13.0, 15.0)
    generation = decode(Literal(7, steps), stopping_target(), DecodeRequest([1, 2], 4, clock=clock))
    assert generation.ttft_s == 2.5
    assert generation.step_s == (0.5, 2.0)
    with pytest.raises(StopIteration):
        clock()


def test_a_method_sees_the_text_grow_and_the_room_shrink() -> None:
    method = Literal(7, [block(3, 4, drafted=2), single(6)])
    generation = generate(method, new_tokens=4)
    assert method.texts == [[1, 2], [1, 2, 7], [1, 2, 7, 3, 4]]
    assert method.room == [3, 1]
    assert generation.token_ids == (7, 3, 4, 6)
    assert generation.stop_reason == "length"
    assert_counted(generation)


@pytest.mark.parametrize(
    ("steps", "new_tokens", "tokens", "accepted", "reason"),
    [
        pytest.param([block(3, 5, 7, 8, drafted=3)], 10, (7, 3, 5), 2, "stop", id="inside a block"),
        pytest.param([block(3, 5, 8, drafted=2)], 10, (7, 3, 5), 2, "stop", id="last accepted, no bonus"),
        pytest.param([block(3, 4, 5, drafted=2)], 10, (7, 3, 4, 5), 2, "stop", id="the bonus"),
        pytest.param([single(4), block(3, 9, 5, 9, drafted=3)], 10, (7, 4, 3, 9), 2, "stop", id="several"),
        pytest.param([block(3, 4, 5, drafted=2)], 3, (7, 3, 4), 2, "length", id="beyond the limit"),
        pytest.param([block(3, 5, 8, drafted=2)], 3, (7, 3, 5), 2, "stop", id="the last one allowed"),
    ],
)
def test_the_first_stop_token_ends_the_answer(
    steps: Sequence[Block], new_tokens: int, tokens: tuple[int, ...], accepted: int, reason: str
) -> None:
    generation = generate(Literal(7, steps), new_tokens=new_tokens)
    assert (generation.token_ids, generation.stop_reason) == (tokens, reason)
    assert generation.steps[-1].accepted == accepted
    assert_counted(generation)


def test_a_step_cut_at_a_stop_token_keeps_the_rows_it_ran() -> None:
    generation = generate(Literal(7, [block(3, 5, 7, 8, drafted=3)]))
    assert generation.steps == (Step((3, 5), drafted=2, accepted=2, rows=4, layers=(2, 2), passes=1),)


def test_a_stop_token_from_prefill_leaves_nothing_to_do() -> None:
    generation = generate(Literal(9, []))
    assert (generation.token_ids, generation.stop_reason) == ((9,), "stop")
    assert (generation.steps, generation.step_s, generation.layers) == ((), (), (2,))


@pytest.mark.parametrize(
    ("new_tokens", "tokens", "accepted"),
    [(1, (7,), []), (2, (7, 3), [1]), (3, (7, 3, 4), [2]), (4, (7, 3, 4, 6), [2]), (5, (7, 3, 4, 6, 8), [2, 1])],
)
def test_the_limit_cuts_any_block(new_tokens: int, tokens: tuple[int, ...], accepted: list[int]) -> None:
    blocks = [block(3, 4, 6, drafted=2), block(8, 2, 2, drafted=2)]
    generation = generate(Literal(7, blocks), new_tokens=new_tokens)
    assert generation.token_ids == tokens
    assert [step.accepted for step in generation.steps] == accepted
    assert generation.stop_reason == "length"
    assert_counted(generation)


def test_the_end_of_the_context_is_not_called_the_limit() -> None:
    prompt = [1] * (CONTEXT_TOKENS - 2)
    steps = [single(3), single(4)]
    assert generate(Literal(7, steps), prompt, 10).stop_reason == "context"
    assert generate(Literal(7, steps), prompt, 10).token_ids == (7, 3)
    assert generate(Literal(7, steps), prompt, 2).stop_reason == "length"
    assert generate(Literal(7, steps), prompt, 1).token_ids == (7,)
    assert generate(Literal(7, []), [1] * (CONTEXT_TOKENS - 1), 10).stop_reason == "context"


def test_the_prompt_of_the_caller_stays_as_it_was() -> None:
    prompt = [1, 2]
    generate(Literal(7, [single(3)]), prompt, 2)
    assert prompt == [1, 2]


@pytest.mark.parametrize(
    ("prompt_tokens", "new_tokens", "error", "fact"),
    [
        (CONTEXT_TOKENS, 10, "prompt_too_long", "32 tokens"),
        (0, 10, "empty_prompt", ""),
        (2, 0, "no_new_tokens", "is 0"),
        (2, -3, "no_new_tokens", "is -3"),
    ],
)
def test_what_cannot_be_decoded_is_refused(prompt_tokens: int, new_tokens: int, error: str, fact: str) -> None:
    with refused(error, fact):
        generate(Literal(7, []), [1] * prompt_tokens, new_tokens)


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


def test_an_answer_that_no_pass_of_a_step_gave_is_refused() -> None:
    """Decoded before the clock started, it once had a speed-up of 5,997x and was lossless without a warning."""
    with refused("more_tokens_than_passes", "0 passes"):
        run(RecitesFromStart())


def test_the_cache_holds_the_text_and_nothing_else() -> None:
    with refused("cache_not_text"):
        run(Unkept())


def test_the_clock_starts_before_serve() -> None:
    method = SlowToServe()
    request = DecodeRequest(PROMPT, 2, clock=lambda: method.now[0])
    assert decode(method, pair("llama").target, request).ttft_s == 5.0
