"""What an engine sent is cut as our own loop cuts, and what it does not report stays unknown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

import pytest
from refusals import refused

from benchctl.decoding.loop import Generation
from benchctl.serving.engine import Answer, Chunk, Counts, Question
from benchctl.serving.ledger import settle

STOP = 9
PROMPT = (1, 2, 3)
CHUNKS = (Chunk(1.0, (5,)), Chunk(2.0, (9,)))


NOTHING = Counts()


def settled(
    chunks: Sequence[Sequence[int]], counts: Counts = NOTHING, *, most: int = 100, drafts: bool = True
) -> Generation:
    """The generation of chunks that arrive a second apart."""
    sent = tuple(Chunk(1.0 + place, tuple(chunk)) for place, chunk in enumerate(chunks))
    question = Question(PROMPT, most, (STOP,), lambda: 0.0)
    return settle(Answer(sent, "stop", counts), question, drafts=drafts, limited_by_context=False, vocabulary=50)


def each(drafted: Sequence[int], accepted: Sequence[int]) -> Counts:
    """Counts of steps, with their sums."""
    return Counts(len(drafted), sum(drafted), sum(accepted), tuple(drafted), tuple(accepted))


def per_step(generation: Generation) -> list[tuple[int, int, int]]:
    assert generation.reported is not None and generation.reported.by_step
    return [(len(step.tokens), step.drafted, step.accepted) for step in generation.steps]


def sums(generation: Generation) -> tuple[int | None, int | None, int | None]:
    told = generation.reported
    assert told is not None and not told.by_step and not generation.steps and not generation.step_s
    return told.steps, told.drafted, told.accepted


def test_steps_are_those_that_the_engine_reports_and_its_chunks_show() -> None:
    generation = settled([[5], [6, 7, 8], [6], [7, 9]], each([3, 3, 2], [2, 0, 1]))
    assert per_step(generation) == [(3, 3, 2), (1, 3, 0), (2, 2, 1)]
    assert generation.token_ids == (5, 6, 7, 8, 6, 7, 9) and generation.stop_reason == "stop"
    assert (generation.ttft_s, generation.step_s, generation.wall_s) == (1.0, (1.0, 1.0, 1.0), 4.0)


def test_tokens_after_the_stop_token_do_not_count_however_they_are_sent() -> None:
    """The step accepted 4 tokens, of which the second is the stop token; vLLM sends 2 of them and reports 4."""
    for last in ([7, 9], [7, 9, 4, 4, 4]):
        generation = settled([[5], [6], last], each([0, 4], [0, 4]))
        assert generation.token_ids == (5, 6, 7, 9) and per_step(generation) == [(1, 0, 0), (2, 4, 2)]


def test_the_limit_cuts_as_our_own_loop_cuts() -> None:
    generation = settled([[5], [6, 7, 8], [6, 7]], each([3, 3], [2, 1]), most=3)
    assert generation.token_ids == (5, 6, 7) and generation.stop_reason == "length"
    assert per_step(generation) == [(2, 3, 2)]
    assert generation.reported is not None and generation.reported.arrived_tokens == (1, 2)


def test_without_drafts_every_token_that_came_alone_is_a_step() -> None:
    assert per_step(settled([[5], [6], [9]], drafts=False)) == [(1, 0, 0), (1, 0, 0)]
    assert per_step(settled([[5], [6], [9]], Counts(drafted=0, accepted=0))) == [(1, 0, 0), (1, 0, 0)]
    assert sums(settled([[5], [6, 7], [9]], drafts=False)) == (None, None, None)
    assert sums(settled([[5], [6], [9]])) == (None, None, None), "it may have drafted without success"


def test_steps_that_drafted_nothing_may_be_left_out_but_then_only_sums_are_known() -> None:
    told = Counts(2, 6, 3, (3, 3), (2, 1))
    assert sums(settled([[5], [6, 7, 8], [6], [7, 6], [9]], told)) == (4, 6, 3)
    cut = Counts(2, 6, 5, (3, 3), (2, 3))
    assert sums(settled([[5], [6, 7, 8], [6], [9]], cut)) == (3, 6, 3), "the last step accepted 3, and one came"


@pytest.mark.parametrize(
    "chunks",
    [
        [[5, 6, 7, 8], [6], [7, 9]],  # the first step came with the first token
        [[5], [6, 7, 8, 6], [7, 9]],  # two steps in a chunk
        [[5], [6], [7], [8], [6], [7, 9]],  # a step in three chunks
        [[5], [6, 7], [8, 6], [7, 9]],  # as many chunks as steps, but others
    ],
)
def test_chunks_that_are_not_the_reported_steps_leave_everything_unknown(chunks: list[list[int]]) -> None:
    told = each([3, 3, 2], [2, 0, 1])
    assert sums(settled(chunks, told))[0] is None
    generation = settled(chunks, told)
    assert generation.token_ids == (5, 6, 7, 8, 6, 7, 9)


def test_sums_of_an_engine_that_reports_its_steps_count_where_the_answer_is_whole() -> None:
    """SGLang: two steps that accepted 3 of 10 drafted tokens add five tokens to the first one."""
    chunks = [[5], [6, 7, 8], [6, 7]]
    assert sums(settled([*chunks, [9]], Counts(3, 15, 3))) == (3, 15, 3)
    assert sums(settled([*chunks, [9]], Counts(3, 15, 4))) == (None, None, None), "one of them was cut off"


def test_sums_without_steps_count_unless_a_stop_token_may_have_cut_some_off() -> None:
    """llama.cpp: it drafts no more than may be added, but goes beyond a stop token."""
    tokens = [[5], [6], [7], [8]]
    assert sums(settled(tokens, Counts(drafted=4, accepted=2), most=4)) == (None, 4, 2)
    assert sums(settled([*tokens, [9]], Counts(drafted=4, accepted=2))) == (None, None, None)
    assert sums(settled([*tokens, [9]], Counts(drafted=4, accepted=0))) == (None, None, None)
    assert sums(settled(tokens, Counts(drafted=9, accepted=4), most=4)) == (None, None, None), "four of three tokens"


@pytest.mark.parametrize(
    "counts",
    [
        Counts(drafted=2, accepted=3),
        Counts(drafted=-1, accepted=-1),
        Counts(2, 6, 3, (3, 3), (2, 0)),
        Counts(2, 6, 4, (3, 3), (4, 0)),
        Counts(2, 6, 3, (3, 3), (3,)),
    ],
)
def test_impossible_counts_are_left_out_and_marked(counts: Counts) -> None:
    generation = settled([[5], [6, 7, 8], [9]], counts)
    assert generation.counters == {"wrong_counts": 1.0} and sums(generation) == (None, None, None)


def test_a_stop_token_that_the_engine_leaves_out_ends_the_answer_all_the_same() -> None:
    assert settled([[5], [6]], drafts=False).stop_reason == "stop"


@pytest.mark.parametrize(
    ("answer", "id"),
    [
        (Answer((), "stop"), "no_tokens"),
        (Answer((Chunk(1.0, (50,)),), "stop"), "wrong_token_ids"),
        (Answer(CHUNKS, "stop", prompt_tokens=4), "other_prompt"),
        (Answer(CHUNKS, "stop", cached_tokens=2), "prefix_cached"),
        (Answer(CHUNKS, "stop", new_tokens=3), "tokens_lost"),
        (Answer(CHUNKS[:1], "length"), "answer_too_short"),
        (Answer(CHUNKS, "stop", Counts(drafted=2, accepted=0)), "baseline_drafts"),
    ],
)
def test_what_is_no_answer_to_the_question_is_refused(answer: Answer, id: str) -> None:
    question, drafts = Question(PROMPT, 5, (STOP,), lambda: 0.0), id != "baseline_drafts"
    with refused(id):
        settle(answer, question, drafts=drafts, limited_by_context=False, vocabulary=50)


def test_any_steps_of_any_engine_give_what_our_loop_counts() -> None:
    """2,000 answers: steps are made at random, sent as they are, or merged, or without empty drafts; the truth is what
    our loop counts of the same steps, and nothing else is ever recorded."""
    random = Random(0)
    known = 0
    for _, how in product(range(500), ("as they are", "merged", "left out", "sums")):
        steps = []
        for _ in range(random.randrange(1, 6)):
            drafted = random.choice((0, 0, 3, 5))
            steps.append((drafted, random.randrange(drafted + 1)))
        tokens = [random.randrange(4, 9) if random.random() < 0.93 else STOP for _ in range(40)]
        most = random.choice((100, 7))
        sent, place = [[tokens[0]]], 1
        for _, accepted in steps:
            sent.append(tokens[place : place + accepted + 1])
            place += accepted + 1
        truth, text = [], [tokens[0]]
        for (drafted, accepted), new in zip(steps, sent[1:], strict=True):
            if text[-1] == STOP or len(text) == most:
                break
            end = next((at + 1 for at, token in enumerate(new) if token == STOP), len(new))
            new = new[: min(end, most - len(text))]
            truth.append((len(new), drafted, min(accepted, len(new))))
            text += new
        drafts, accepts = zip(*steps, strict=True)
        counts = each(drafts, accepts)
        if how == "left out":
            left = [step for step in steps if step[0]]
            counts = each([step[0] for step in left], [step[1] for step in left])
        if how == "sums":
            counts = Counts(len(steps), sum(drafts), sum(accepts))
        chunks = [sent[0], *sent[1:]]
        if how == "merged":
            chunks = [sent[0] + sent[1], *sent[2:]]
        generation = settled(chunks, counts, most=most)
        told = generation.reported
        assert told is not None and generation.token_ids == tuple(text)
        assert sum(told.arrived_tokens) == len(text)
        if told.by_step:
            assert per_step(generation) == truth
        for value, index in ((told.steps, None), (told.drafted, 1), (told.accepted, 2)):
            assert value is None or value == (len(truth) if index is None else sum(step[index] for step in truth))
        known += told.by_step or told.accepted is not None
        assert told.by_step or how != "as they are"
    assert 1000 < known < 2000
