"""What a method says of itself: its options, where it runs, how far its answers are the target's."""

from __future__ import annotations

from typing import get_args

import torch

from benchctl.conformance.chances import distribution, total_variation
from benchctl.conformance.findings import Deviation, Result, Skipped, shown
from benchctl.conformance.grounds import CONTEXT_TOKENS, FEW_TOKENS, KINDS, NEW_TOKENS, Ground, ground, prompt_of
from benchctl.conformance.subject import Subject, answer
from benchctl.decoding.method import Exactness
from benchctl.decoding.sampling import Sampling
from benchctl.errors import UserError
from benchctl.registry import Label, build, canonical_label, method_options, parse_label

_PROMPTS = (1, 2, 13, CONTEXT_TOKENS - 7, CONTEXT_TOKENS - 1)
_SHORT_PROMPT = (1, 3, 0, 1, 3)  # its tail occurred before, so that looking back finds something
_SHORT = 4  # tokens of an enumerated answer
_WARM = Sampling(temperature=1.5, top_k=2)
_ROUNDING = 1e-6  # transformers' routers of experts compute in float32; a wrong rule is off by 1e-3 and more


def options(subject: Subject) -> Result:
    """Every option can be written in a label and is read back as it was; the label has one spelling."""
    again = canonical_label(build(subject.canonical), parse_label(subject.canonical))
    if again != subject.canonical:
        action = "make __post_init__ leave the options as they were given"
        return Deviation(f"the label {subject.canonical} to be read back as it is", again, action)
    name = parse_label(subject.label).name
    for option in method_options(name):
        if not option.default:
            continue  # an empty text cannot be written, and is what leaving it out means
        spelt = Label(name, ((option.name, option.default),)).text
        try:
            plain = canonical_label(build(spelt), parse_label(spelt))
        except UserError as problem:
            return Deviation(f"{spelt}, its own default, to be read", str(problem), _kinds(option.name))
        if plain != name:
            return Deviation(f"{spelt}, its own default, to mean {name}", plain, _kinds(option.name))
    return None


def _kinds(option: str) -> str:
    return f"annotate {option} as str, int, float, bool or a Literal of texts, without commas or brackets in them"


def unsupported(subject: Subject) -> Result:
    """None or a reason, on every target, and None on one at least."""
    method = subject.fresh()
    reasons = {kind: method.unsupported(ground(kind).target.info) for kind in KINDS}
    for kind, reason in reasons.items():
        if reason is not None and (not isinstance(reason, str) or not reason.strip()):
            action = "let unsupported return a sentence for the user, or None"
            return Deviation(f"None or a reason for {kind}", repr(reason), action)
    if all(reasons.values()):
        action = "examine it with options that fit 4 layers, 24 tokens of vocabulary and 64 of context"
        return Deviation(
            "a target that it runs on", "; ".join(f"{kind}: {why}" for kind, why in reasons.items()), action
        )
    return None


def claim(subject: Subject) -> Result:
    """The claim is one that benchctl knows, and a lossy method says why."""
    method = subject.fresh()
    if method.exactness not in get_args(Exactness):
        return Deviation("exactness exact, exact_greedy or lossy", repr(method.exactness), "claim one of the three")
    if method.exactness == "lossy" and not method.reason.strip():
        return Deviation("a reason why answers may differ", "an empty one", "set reason to what the method gives up")
    return None


def greedy(subject: Subject, place: Ground) -> Result:
    """Greedy answers are the target's, at prompts short and long and up to the end of the context."""
    method = subject.prepared(place)
    if method.exactness == "lossy":
        return Skipped(f"claims no exactness: {method.reason}")
    for length in _PROMPTS:
        prompt = prompt_of(length)
        got, truth = answer(method, place, prompt, NEW_TOKENS).token_ids, place.truth(prompt, NEW_TOKENS)
        if got != truth:
            at = next((at for at, (one, other) in enumerate(zip(got, truth, strict=False)) if one != other), len(truth))
            expected = f"the target's own {shown(truth)} after a prompt of {length} tokens"
            action = "commit only what the target's logits say, and its own token after that; or claim lossy"
            return Deviation(expected, f"{shown(got)}, other from token {at + 1} on", action)
    return None


def sampled(subject: Subject, place: Ground) -> Result:
    """Short sampled answers have the target's distribution: all ways that draws can go are enumerated."""
    method = subject.fresh()
    if method.exactness != "exact":
        return Skipped(f"claims {method.exactness}, not exactness under sampling")
    few = ground(place.kind, FEW_TOKENS)
    if reason := method.unsupported(few.target.info):
        return Skipped(f"cannot run with a vocabulary of {FEW_TOKENS}: {reason}")
    # A fresh method each time: what one keeps of an earlier prompt is for another check to find.
    found = distribution(lambda _: answer(subject.prepared(few), few, _SHORT_PROMPT, _SHORT, _WARM).token_ids)
    distance = total_variation(found, _chances(few))
    if not distance < _ROUNDING:
        action = (
            "draw with context.pick, Chain or sampling.draw, give Draft the distribution drawn from, and leave "
            "verification to Speculative; or claim exact_greedy"
        )
        return Deviation("total variation 0 from the target's distribution", f"{distance:.3g}", action)
    return None


@torch.inference_mode()
def _chances(few: Ground) -> dict[tuple[int, ...], float]:
    """Probability of every short answer, by passes over the whole text."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(_SHORT):
        longer: dict[tuple[int, ...], float] = {}
        for text, chance in found.items():
            state = few.naive.last_states([*_SHORT_PROMPT, *text])[-1:]
            probs = _WARM.probs(few.naive.logits(state))[0].tolist()
            longer |= {(*text, token): chance * probs[token] for token in range(FEW_TOKENS) if probs[token] > 0}
        found = longer
    return found
