"""The methods whose drafts can be made by full recomputation, and how: oracles of their steps, for any target."""

from __future__ import annotations

from typing import Any

from benchctl.conformance.replay import Drafter, ExitRule, Recomputed, exit_drafter, lookup_drafter, model_drafter
from benchctl.decoding.method import Method
from benchctl.decoding.model.target import Target


def drafter_of(name: str, method: Method, target: Target, draft: Target | None) -> Drafter | str:
    """What the method called ``name`` drafts after a text, or why that cannot be told.

    Methods are known by name: a built-in one is under its own, and another distribution cannot take it.
    """
    options: Any = method
    if name == "two_model" and draft is not None:
        recomputed = Recomputed(draft, target.vocabulary)
        return model_drafter(recomputed, options.draft_tokens, options.confidence, draft.context_tokens)
    if name == "prompt_lookup":
        return lookup_drafter(options.draft_tokens, options.max_ngram, options.match, options.allow_short)
    if name == "early_exit" and options.mode == "draft":
        return _exits(options, target)
    return f"there is no oracle of what {name} drafts with these options"


def _exits(options: Any, target: Target) -> Drafter | str:
    if options.needs_modules or options.decay:
        return "there is no oracle of trained exits, of classifiers, or of thresholds that decay"
    rule = ExitRule(options.exit_layers(target), options.confidence, options.threshold)
    return exit_drafter(Recomputed(target), rule, options.draft_tokens)
