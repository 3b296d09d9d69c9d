"""From what an engine sent to a Generation: the answer is cut as our own loop cuts, and nothing about it is guessed.

Example: chunks of 1, 4 and 3 tokens, and an engine that reports 3 and 4 accepted tokens for two steps: the second step
went beyond the stop token. So the steps committed 4 and 3 tokens and accepted 3 and 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from benchctl.decoding.counting import Step
from benchctl.decoding.loop import Generation, Reported, StopReason
from benchctl.errors import UserError
from benchctl.serving.engine import Answer, Counts, Question


def settle(
    answer: Answer, question: Question, *, drafts: bool, limited_by_context: bool, vocabulary: int
) -> Generation:
    """The generation that an answer is. `drafts` says whether the engine speculates under this label.

    Steps are known where the engine reports each of them and its stream agrees, and for engines that do not draft where
    every token came alone. Otherwise the generation has no steps, and of the sums those that can be cut.

    Raises UserError for an answer that is no answer to this question.
    """
    if answer.text is not None:
        return _of_text(answer, question, answer.text, limited_by_context)
    _check(answer, question, vocabulary)
    ids = [token for chunk in answer.chunks for token in chunk.token_ids]
    stops = set(question.stop_ids)
    end = next((index + 1 for index, token in enumerate(ids) if token in stops), len(ids))
    end = min(end, question.max_new_tokens)
    ends = [min(total, end) for total in accumulate(len(chunk.token_ids) for chunk in answer.chunks)]
    sizes = [size for size in map(int.__sub__, ends, [0, *ends]) if size]
    arrived_s = tuple(chunk.at_s for chunk in answer.chunks[: len(sizes)])
    reason = _reason(answer, ids[:end], question, limited_by_context)
    counts, is_wrong = (answer.counts, False) if _is_possible(answer.counts) else (Counts(), True)
    if not drafts and (counts.drafted or 0) > 0:
        raise UserError(
            "baseline_drafts",
            f"the engine drafted {counts.drafted} tokens, but it is the baseline, which must not speculate. Start it "
            "without speculation.",
        )
    known = _known([len(chunk.token_ids) for chunk in answer.chunks], sizes, counts, reason, drafts=drafts or is_wrong)
    tokens, step_s = iter(ids[1:end]), map(float.__sub__, arrived_s[1:], arrived_s)
    return Generation(
        token_ids=tuple(ids[:end]),
        stop_reason=reason,
        ttft_s=arrived_s[0],
        steps=tuple(
            Step(tuple(next(tokens) for _ in range(size)), drafted, accepted, 0, ())
            for size, (drafted, accepted) in zip(sizes[1:], known.each or (), strict=False)
        ),
        step_s=tuple(step_s) if known.each is not None else (),
        layers=(),
        counters={"wrong_counts": 1.0} if is_wrong else {},
        reported=Reported(arrived_s, tuple(sizes), known.each is not None, known.steps, known.drafted, known.accepted),
    )


def _check(answer: Answer, question: Question, vocabulary: int) -> None:
    ids = [token for chunk in answer.chunks for token in chunk.token_ids]
    if not ids:
        raise UserError("no_tokens", "the engine sent no tokens.")
    if wrong := [token for token in ids if type(token) is not int or not 0 <= token < vocabulary]:
        raise UserError(
            "wrong_token_ids",
            f"the engine sent token {wrong[0]!r}, and the target has {vocabulary} tokens: it runs another model.",
        )
    asked = len(question.prompt_ids)
    if answer.prompt_tokens is not None and answer.prompt_tokens != asked:
        raise UserError(
            "other_prompt",
            f"the engine read {answer.prompt_tokens} tokens of a prompt of {asked}: it changes prompts, so its answers "
            "are not comparable.",
        )
    _check_cache(answer, asked)
    if answer.new_tokens is not None and answer.new_tokens != len(ids):
        raise UserError(
            "tokens_lost",
            f"the engine generated {answer.new_tokens} tokens and sent {len(ids)}. Some engines send no event for a "
            "part of a character.",
        )


def _check_cache(answer: Answer, asked: int) -> None:
    if answer.cached_tokens:
        raise UserError(
            "prefix_cached",
            f"the engine took {answer.cached_tokens} of {asked} prompt tokens from its cache, so the time to the first "
            "token is not that of this prompt. Start it without a prefix cache.",
        )


def _of_text(answer: Answer, question: Question, text: str, limited_by_context: bool) -> Generation:
    """The generation of an answer without ids: times, and the number of tokens that the engine reports."""
    _check_cache(answer, len(question.prompt_ids))
    if answer.new_tokens == 0 or not answer.chunks:
        raise UserError("no_tokens", "the engine sent no tokens.")
    if answer.new_tokens is None:
        raise UserError(
            "no_token_counts",
            "the engine did not report how many tokens it generated (usage.completion_tokens), so its speed is not "
            "known. Use a version that does.",
        )
    arrived_s = tuple(chunk.at_s for chunk in answer.chunks)
    at_limit: StopReason = "context" if limited_by_context else "length"
    return Generation(
        token_ids=(),
        stop_reason="stop" if answer.finish == "stop" else at_limit,
        ttft_s=arrived_s[0],
        steps=(),
        step_s=(),
        layers=(),
        reported=Reported(arrived_s, (), by_step=False, text=text, new_tokens=answer.new_tokens),
    )


def _reason(answer: Answer, ids: Sequence[int], question: Question, limited_by_context: bool) -> StopReason:
    if ids[-1] in question.stop_ids:
        return "stop"
    if len(ids) == question.max_new_tokens:
        return "context" if limited_by_context else "length"
    if answer.finish == "stop":  # the engine leaves the stop token out, for the baseline alike
        return "stop"
    raise UserError(
        "answer_too_short",
        f"the engine ended its answer after {len(ids)} of {question.max_new_tokens} tokens, without a stop token. Give "
        "it a larger context.",
    )


def _is_possible(counts: Counts) -> bool:
    """Whether an engine's counts can be true: none negative, no more accepted than drafted, sums as their parts."""
    given = [counts.steps, counts.drafted, counts.accepted, *(counts.drafted_each or ()), *(counts.accepted_each or ())]
    if any(number is not None and (type(number) is not int or number < 0) for number in given):
        return False
    pairs = [(counts.accepted, counts.drafted)]
    if counts.drafted_each is not None or counts.accepted_each is not None:
        drafted, accepted = counts.drafted_each or (), counts.accepted_each or ()
        if len(drafted) != len(accepted) or (sum(drafted), sum(accepted)) != (counts.drafted, counts.accepted):
            return False
        pairs += zip(accepted, drafted, strict=True)
    return all(accepted is None or drafted is None or accepted <= drafted for accepted, drafted in pairs)


@dataclass(frozen=True)
class _Known:
    """What is known of the steps after the first token: drafted and accepted tokens of `each`, or else the sums."""

    each: Sequence[tuple[int, int]] | None = None
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None


def _known(sent: Sequence[int], sizes: Sequence[int], counts: Counts, reason: StopReason, *, drafts: bool) -> _Known:
    """From the tokens of each chunk as `sent`, and as cut to `sizes`."""
    if sizes[0] == 1 and set(sizes) == {1} and (not drafts or counts.drafted == 0):
        return _Known([(0, 0)] * (len(sizes) - 1))
    if sizes[0] == 1 and counts.drafted_each is not None and counts.accepted_each is not None:
        by_chunk = _accepted_by_chunk(sent[1:], counts.accepted_each)
        if by_chunk is None:
            return _Known()
        accepted = [min(count, size) for count, size in zip(by_chunk, sizes[1:], strict=False)]
        if len(counts.drafted_each) == len(by_chunk):
            return _Known(list(zip(counts.drafted_each, accepted, strict=False)))
        drafted = counts.drafted if len(sizes) == len(sent) else None  # of steps that a cut removed
        return _Known(None, len(accepted), drafted, sum(accepted))
    committed = sum(sizes) - 1
    if counts.accepted is None and sizes[0] == 1 and counts.steps == len(sent) - 1:
        return _Known(None, len(sizes) - 1)
    if counts.steps is not None and counts.accepted is not None and counts.drafted:
        # Each step adds its accepted tokens and one more: so the answer shows whether all of them are in it.
        is_whole = sizes[0] == 1 and committed == counts.steps + counts.accepted
        return _Known(None, counts.steps, counts.drafted, counts.accepted) if is_whole else _Known()
    # Without steps, tokens beyond a stop token cannot be separated from those before it; and to keep only the answers
    # of which none was accepted would bias their sum.
    if counts.accepted is None or counts.accepted > committed or (counts.drafted and reason == "stop"):
        return _Known()
    return _Known(None, None, counts.drafted, counts.accepted)


def _accepted_by_chunk(sent: Sequence[int], accepted: Sequence[int]) -> list[int] | None:
    """The accepted tokens of each chunk, where chunks are steps: each holds its accepted tokens and one more.

    Only the last one may hold fewer, as the engine ends an answer within a step. Steps that drafted nothing may be left
    out of `accepted`; they came as chunks of one token. None where the two do not agree.

    >>> _accepted_by_chunk([4, 1, 1, 2], [3, 0, 1]), _accepted_by_chunk([4, 1, 2], [3, 0, 4])
    ([3, 0, 0, 1], [3, 0, 4])
    """
    found = list(accepted)
    if len(found) != len(sent):
        left, found = [count for count in accepted if count], []
        for place, size in enumerate(sent, 1):
            found.append(left.pop(0) if left and (size > 1 or place == len(sent)) else 0)
        if left or len(accepted) > len(sent):
            return None
    *whole, last = [size - 1 for size in sent] or [0]
    return found if whole == found[:-1] and last <= (found[-1] if found else 0) else None
