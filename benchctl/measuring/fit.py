"""Prompts against the target's context: refused, left out or cut, as asked, and never silently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchctl.decoding.tokenizer import TargetTokenizer
from benchctl.errors import UserError
from benchctl.measuring.conversation import messages
from benchctl.measuring.prompts import Prompt, Suite
from benchctl.measuring.settings import LongPrompts

_LISTED = 20


@dataclass(frozen=True)
class LongPrompt:
    """A prompt that leaves no room for an answer, with its length in tokens."""

    prompt: Prompt
    tokens: int


def fits(prompt_tokens: int, context_tokens: int) -> bool:
    """Whether a prompt leaves room in the context for at least one new token."""
    return prompt_tokens < context_tokens


def cut_prompt(prompt_ids: list[int], context_tokens: int, max_new_tokens: int) -> list[int]:
    """The last tokens of a prompt that does not fit: room is left for a whole answer, but at most half the context.

    >>> cut_prompt(list(range(20)), context_tokens=10, max_new_tokens=4)
    [14, 15, 16, 17, 18, 19]
    """
    room = min(max_new_tokens, context_tokens // 2)
    return prompt_ids if fits(len(prompt_ids), context_tokens) else prompt_ids[room - context_tokens :]


def find_long_prompts(
    suite: Suite, tokenizer: TargetTokenizer, room_tokens: int | None = None
) -> tuple[LongPrompt, ...]:
    """The prompts of which some turn cannot fit. Answers to earlier turns are not known yet and counted as empty."""
    room = tokenizer.context_tokens if room_tokens is None else room_tokens
    found = (LongPrompt(prompt, _longest_turn_tokens(prompt, tokenizer)) for prompt in suite.prompts)
    return tuple(long for long in found if not fits(long.tokens, room))


def fit_suite(
    suite: Suite,
    tokenizer: TargetTokenizer,
    policy: LongPrompts,
    notify: Callable[[str], None] = lambda notice: None,
    room_tokens: int | None = None,
) -> Suite:
    """The suite as it will be measured; its origin, which the run records, says what was left out or cut.

    `room_tokens` of the context, by default all, are there for prompt and answer.

    Raises UserError when a prompt is too long and the policy is "error", or when nothing would be left.
    """
    room = tokenizer.context_tokens if room_tokens is None else room_tokens
    long_prompts = find_long_prompts(suite, tokenizer, room)
    if not long_prompts:
        return suite
    if policy == "error":
        raise _refusal(suite, long_prompts, room, tokenizer.context_tokens)
    fitted = _leave_out(suite, long_prompts) if policy == "skip" else suite
    remark = f"{len(long_prompts)} longer than the context {'left out' if policy == 'skip' else 'cut'}"
    notify(f"{suite.name}: {len(suite.prompts)} prompts, {remark}")
    return replace(fitted, origin=f"{suite.origin}, {remark}")


def _leave_out(suite: Suite, long_prompts: Sequence[LongPrompt]) -> Suite:
    dropped = {long.prompt.id for long in long_prompts}
    kept = tuple(prompt for prompt in suite.prompts if prompt.id not in dropped)
    if not kept:
        raise UserError(f"No prompt of {suite.name} fits into the target's context; use another --bench or --model.")
    return replace(suite, prompts=kept)


def _refusal(suite: Suite, long_prompts: Sequence[LongPrompt], room: int, context_tokens: int) -> UserError:
    """The error that lists the long prompts and what can be done about them."""
    listed = ", ".join(f"{long.prompt.id} ({long.tokens})" for long in long_prompts[:_LISTED])
    more = f" and {len(long_prompts) - _LISTED} more" if len(long_prompts) > _LISTED else ""
    left = "" if room == context_tokens else f", of which --context leaves {room}"
    return UserError(
        f"{len(long_prompts)} of {len(suite.prompts)} prompts of {suite.name} do not fit into the target's context of "
        f"{context_tokens} tokens{left}; ids (tokens): {listed}{more}. "
        "Leave them out with --long-prompts skip, keep their last tokens with --long-prompts cut, "
        f"{'or' if room == context_tokens else 'fill less, or'} give a --model with a longer context."
    )


def _longest_turn_tokens(prompt: Prompt, tokenizer: TargetTokenizer) -> int:
    """A later turn holds all earlier ones, so the last is the longest."""
    return len(tokenizer.encode_chat(messages(prompt, [""] * (len(prompt.turns) - 1))))
