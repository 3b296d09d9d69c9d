"""Prompts and the target's context: chats of several turns, prompts that are too long, and filler text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import cycle, islice

from benchctl.decoding.model.tokenizer import TargetTokenizer, UnreadableText, talk
from benchctl.errors import UserError
from benchctl.measuring.prompts.suites import Suite
from benchctl.measuring.settings import LongPrompts

_LISTED = 20
# What fit_suite puts behind an origin.
_REMARK = re.compile(
    r"(?:, \d+ that the model cannot read left out)?"
    r"(?:, (?:\d+ longer than the context (?:left out|cut)|later turns cut where too long))?$"
)


def cut_prompt(prompt_ids: list[int], context_tokens: int, max_new_tokens: int) -> list[int]:
    """The last tokens of a prompt that does not fit: room is left for a whole answer, but at most half the context.

    >>> cut_prompt(list(range(20)), context_tokens=10, max_new_tokens=4)
    [14, 15, 16, 17, 18, 19]
    """
    room = min(max_new_tokens, context_tokens // 2)
    return prompt_ids if len(prompt_ids) < context_tokens else prompt_ids[room - context_tokens :]


def unanswered_ids(tokenizer: TargetTokenizer, turns: Sequence[str]) -> list[int]:
    """Ids of a chat whose answers are not known yet. They count as a full stop: some templates refuse empty answers."""
    return tokenizer.encode_chat(talk(turns, ["."] * (len(turns) - 1)))


def fit_suite(
    suite: Suite,
    tokenizer: TargetTokenizer,
    policy: LongPrompts,
    notify: Callable[[str], None] = lambda notice: None,
    room_tokens: int | None = None,
) -> Suite:
    """The suite as it will be measured. Its origin, which the run records, says how many prompts were left out or cut.

    A prompt that the files of the model cannot read is left out. `room_tokens` of the context (default: all) are for
    prompt and answer. Raises UserError if a prompt is too long and the policy is "error", or if no prompt would be
    left.
    """
    context = tokenizer.context_tokens
    room = context if room_tokens is None else room_tokens
    long_prompts, unreadable = dict[str, int](), dict[str, UnreadableText]()
    for prompt in suite.prompts:
        try:
            tokens = len(unanswered_ids(tokenizer, prompt.turns))  # the last turn contains all earlier ones
        except UnreadableText as problem:
            unreadable[prompt.id] = problem
            continue
        if tokens >= room:  # no room for a new token
            long_prompts[prompt.id] = tokens
    if unreadable:
        suite = _without(suite, unreadable, notify)
    if not long_prompts:
        chats = policy == "cut" and any(len(prompt.turns) > 1 for prompt in suite.prompts)
        return replace(suite, origin=f"{suite.origin}, later turns cut where too long") if chats else suite
    if policy == "error":
        listed = ", ".join(f"{prompt_id} ({tokens})" for prompt_id, tokens in islice(long_prompts.items(), _LISTED))
        more = f" and {len(long_prompts) - _LISTED} more" if len(long_prompts) > _LISTED else ""
        left = "" if room == context else f", of which --context leaves {room}"
        raise UserError(
            "prompt_too_long",
            f"{len(long_prompts)} of {len(suite.prompts)} prompts of {suite.name} do not fit into the target's context "
            f"of {tokenizer.context_limit}{left}; ids (tokens): {listed}{more}. "
            "Leave them out with --long-prompts skip, keep their last tokens with --long-prompts cut, "
            f"{'fill less, or' if left else 'or'} give a --model with a longer context.",
        )
    kept = tuple(prompt for prompt in suite.prompts if policy == "cut" or prompt.id not in long_prompts)
    if not kept:
        raise UserError(
            "no_prompt_fits", f"No prompt of {suite.name} fits into the context; use another --bench or --model."
        )
    remark = f"{len(long_prompts)} longer than the context {'left out' if policy == 'skip' else 'cut'}"
    notify(f"{suite.name}: {len(suite.prompts)} prompts, {remark}")
    return replace(suite, prompts=kept, origin=f"{suite.origin}, {remark}")


def _without(suite: Suite, unreadable: Mapping[str, UnreadableText], notify: Callable[[str], None]) -> Suite:
    """The suite without these prompts. Raises the first problem where no other prompt is left."""
    kept = tuple(prompt for prompt in suite.prompts if prompt.id not in unreadable)
    for prompt_id, problem in islice(unreadable.items(), _LISTED):
        if not kept:
            raise UnreadableText(problem.id, f"No prompt of {suite.name} can be measured. {prompt_id}: {problem}.")
        notify(f"{suite.name}: prompt {prompt_id} is left out: {problem}.")
    if len(unreadable) > _LISTED:
        notify(f"{suite.name}: {len(unreadable) - _LISTED} more prompts are left out for such reasons.")
    remark = f"{len(unreadable)} that the model cannot read left out"
    return replace(suite, prompts=kept, origin=f"{suite.origin}, {remark}")


def without_remark(origin: str) -> str:
    """Where a suite comes from, whatever `fit_suite` did to its prompts."""
    return _REMARK.sub("", origin)


@dataclass(frozen=True)
class Filler:
    """The `ids` put before a prompt, behind the tokenizer's own first token `first` where a prompt begins with that."""

    ids: tuple[int, ...] = ()
    first: int | None = None

    def before(self, prompt_ids: Sequence[int]) -> list[int]:
        """The prompt with the filler.

        >>> Filler((7, 8), first=1).before([1, 5, 6]), Filler((7, 8), first=1).before([5, 6])
        ([1, 7, 8, 5, 6], [7, 8, 5, 6])
        """
        head = 1 if self.first is not None and list(prompt_ids[:1]) == [self.first] else 0
        return [*prompt_ids[:head], *self.ids, *prompt_ids[head:]]


def filler_text() -> str:
    """The text that fills the context, repeated as often as needed."""
    return files("benchctl").joinpath("assets/prompts/filler.txt").read_text(encoding="utf-8")


def make_filler(tokenizer: TargetTokenizer, tokens: int) -> Filler:
    """A filler of exactly so many tokens. Raises UserError for more than leave room for a prompt and an answer."""
    if tokens == 0:
        return Filler()
    if tokens > tokenizer.context_tokens - 2:
        raise UserError(
            "filler_too_long",
            f"--context {tokens} leaves no room for a prompt: the target takes {tokenizer.context_limit} "
            "in all. Give fewer, or a --model with a longer context.",
        )
    return Filler(tuple(islice(cycle(tokenizer.encode_text(filler_text())), tokens)), tokenizer.first_id)
