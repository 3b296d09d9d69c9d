"""The checks of `benchctl doctor`: what a method claims, and how it counts, ends, draws and uses the cache."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from benchctl.conformance.distributions import Text, distribution, total_variation
from benchctl.conformance.findings import Deviation, Finding, Result, Skipped, finding, shown
from benchctl.conformance.method_under_test import MethodUnderTest, Watched, answer
from benchctl.conformance.random_models import (
    CONTEXT_TOKENS,
    FEW_TOKENS,
    KINDS,
    NEW_TOKENS,
    VOCABULARY,
    RandomModels,
    prompt_of,
    random_models,
)
from benchctl.decoding.batch import decode_batch, why_not_batched
from benchctl.decoding.counting import Step
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, Generation
from benchctl.decoding.method import Exactness, Method, why_unsupported
from benchctl.decoding.sampling import Sampling
from benchctl.decoding.verify import Unforced, common_start
from benchctl.errors import UserError
from benchctl.registry import Label, build, canonical_label, method_options, parse_label

_PROMPTS = (1, 2, 13, CONTEXT_TOKENS - 7, CONTEXT_TOKENS - 1)
_SHORT_PROMPT = (1, 3, 0, 1, 3)  # its tail occurred before, so that looking back finds something
SHORT = 4  # tokens of a drawn answer: few enough to enumerate, with room for drafts two tokens deep
WARM = Sampling(temperature=1.5, top_k=2)
_ROUNDING = 1e-6  # transformers' routers of experts compute in float32; a wrong rule is off by 1e-3 and more
_PROMPT_TOKENS = 13
_SAMPLED = Sampling(temperature=0.9, top_p=0.9, seed=5)
_CACHE_ROUNDING = 1e-9
OWN_TOKENS = "commit only what the target's logits say, and its own token after that; or claim lossy"
_KEPT = "commit with stream.keep the root and the accepted rows, no others, and nothing of what is still to be read"


def options(subject: MethodUnderTest) -> Result:
    """Options are read and written as labels.

    Every option can be written in a label and is read back as it was; the label has one spelling.
    """
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


def unsupported(subject: MethodUnderTest) -> Result:
    """Each target is supported, or refused with a reason.

    At least one target is supported.
    """
    method = subject.fresh()
    reasons = {kind: why_unsupported(method, random_models(kind).target.info) for kind in KINDS}
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


def claim(subject: MethodUnderTest) -> Result:
    """The claim is a known one; a lossy one has a reason."""
    method = subject.fresh()
    if method.exactness not in get_args(Exactness):
        return Deviation("exactness exact, exact_greedy or lossy", repr(method.exactness), "claim one of the three")
    if method.exactness == "lossy" and not method.reason.strip():
        return Deviation("a reason why answers may differ", "an empty one", "set reason to what the method gives up")
    return None


def greedy(subject: MethodUnderTest, models: RandomModels) -> Result:
    """Greedy answers are the target's.

    Prompts are short, long, and up to the end of the context.
    """
    method = subject.prepared(models)
    if method.exactness == "lossy":
        return Skipped(f"claims no exactness: {method.reason}")
    for length in _PROMPTS:
        prompt = prompt_of(length)
        got, truth = answer(method, models, prompt, NEW_TOKENS).token_ids, models.truth(prompt, NEW_TOKENS)
        if got != truth:
            expected = f"the target's own {shown(truth)} after a prompt of {length} tokens"
            return Deviation(expected, f"{shown(got)}, other from token {common_start(got, truth) + 1} on", OWN_TOKENS)
    return None


def sampled(subject: MethodUnderTest, models: RandomModels) -> Result:
    """Sampled answers have the target's distribution.

    All ways that draws of a short answer can go are enumerated.
    """
    method = subject.fresh()
    if reason := not_sampled(method):
        return reason
    few = random_models(models.kind, FEW_TOKENS)
    if unsupported := why_unsupported(method, few.target.info):
        return Skipped(f"cannot run with a vocabulary of {FEW_TOKENS}: {unsupported}")
    # A fresh method each time: what one keeps of an earlier prompt is for another check to find.
    drawn = distribution(lambda _: answer(subject.prepared(few), few, _SHORT_PROMPT, SHORT, WARM).token_ids)
    return unlike(total_variation(drawn, _chances(few)))


def not_sampled(method: Method) -> Skipped | None:
    """Why the sampled answers of a method are not checked."""
    return None if method.exactness == "exact" else Skipped(f"claims {method.exactness}, not exactness under sampling")


def unlike(distance: float) -> Deviation | None:
    """What is wrong where answers are drawn with a total variation of ``distance`` from the target's distribution."""
    if distance < _ROUNDING:
        return None
    action = (
        "draw with context.pick, Chain or sampling.draw, give Draft the distribution drawn from, and leave "
        "verification to Speculative; or claim exact_greedy"
    )
    return Deviation("total variation 0 from the target's distribution", f"{distance:.3g}", action)


def _chances(few: RandomModels) -> dict[Text, float]:
    return chances_of(lambda text: few.naive.logits(few.naive.last_states([*_SHORT_PROMPT, *text])[-1]))


@torch.inference_mode()
def chances_of(next_logits: Callable[[Text], Tensor], stop_ids: Set[int] = frozenset()) -> dict[Text, float]:
    """Probability of every short answer; ``next_logits`` gives those [vocabulary] after an answer so far."""
    chances: dict[Text, float] = {(): 1.0}
    for _ in range(SHORT):
        longer: dict[Text, float] = {}
        for text, chance in chances.items():
            if text and text[-1] in stop_ids:
                longer[text] = chance
                continue
            probs = WARM.probs(next_logits(text)[None])[0]
            for token in probs.nonzero().flatten().tolist():
                longer[*text, token] = chance * float(probs[token])
        chances = longer
    return chances


def engaged(subject: MethodUnderTest, models: RandomModels) -> Result:
    """Drafts are accepted, or layers skipped.

    Otherwise the other checks would have little to find. This one never fails.
    """
    method, full = subject.prepared(models), models.target.layers
    steps = [
        step
        for sampling in (Sampling(), _SAMPLED)
        for step in answer(method, models, prompt_of(_PROMPT_TOKENS), NEW_TOKENS, sampling).steps
    ]
    drafted, accepted = sum(step.drafted for step in steps), sum(step.accepted for step in steps)
    if accepted or any(layer != full for step in steps for layer in step.layers):
        return None
    if drafted:
        return Skipped(f"none of {drafted} drafted tokens was accepted here, so no check covers accepted tokens")
    return Skipped(
        "nothing was drafted and no layer skipped here, as in plain decoding. If the method should draft or skip, "
        "examine it with other options, such as a lower threshold"
    )


def counting(subject: MethodUnderTest, models: RandomModels) -> Result:
    """All passes of the target are counted.

    Its last layer runs only where the stream counts it: passes elsewhere would not be in the figures.
    """
    runs: list[int] = []
    counted = 0

    def look(stream: Stream, text: Sequence[int]) -> None:
        nonlocal counted
        counted += sum(run.last == stream.target.layers for run in stream.runs)

    watched = models.with_last_layer_watched(lambda: runs.append(1))
    method = Watched(subject.prepared(watched), look)
    for sampling in (Sampling(), _SAMPLED):
        answer(method, watched, prompt_of(_PROMPT_TOKENS), NEW_TOKENS, sampling)
    if len(runs) > counted:
        seen = f"{len(runs)} runs of the last layer, of which the stream made {counted}"
        return Deviation("every pass through context.stream", seen, "run rows through context.stream only")
    return None


def limits(subject: MethodUnderTest, models: RandomModels) -> Result:
    """Answers end at the limit.

    Limits are one token, two, and around the length of a draft.
    """
    method, prompt = subject.prepared(models), prompt_of(_PROMPT_TOKENS)
    full = answer(method, models, prompt, NEW_TOKENS)
    drafted = max((step.drafted for step in full.steps), default=0)
    for limit in sorted({1, 2, *range(max(drafted - 1, 1), min(drafted + 2, NEW_TOKENS) + 1)}):
        got = answer(method, models, prompt, limit)
        expected = full.token_ids[:limit]
        short = len(got.token_ids) != limit or got.stop_reason != "length"
        if short or (method.exactness != "lossy" and got.token_ids != expected):
            wanted = f"{shown(expected)}, ended by the limit of {limit}"
            action = "draft no deeper than the budget, and let the answer depend on the text only"
            return Deviation(wanted, f"{shown(got.token_ids)}, ended by {got.stop_reason}", action)
    return None


def stops(subject: MethodUnderTest, models: RandomModels) -> Result:
    """Answers end at the first stop token.

    It may fall anywhere. One that is drafted and rejected ends nothing.
    """
    prompt = prompt_of(_PROMPT_TOKENS)
    full = answer(subject.prepared(models), models, prompt, NEW_TOKENS)
    unsaid = frozenset(range(VOCABULARY)) - set(full.token_ids)
    cases = {f"as {role} token": (frozenset({token}), end) for role, (token, end) in _roles(full).items()}
    cases["that never occurs"] = (unsaid, len(full.token_ids))
    for role, (stop_ids, end) in cases.items():
        ending = models.with_stops(stop_ids)
        got = answer(subject.prepared(ending), ending, prompt, NEW_TOKENS)
        reason = "stop" if stop_ids != unsaid else "length"
        if got.token_ids != full.token_ids[:end] or got.stop_reason != reason:
            wanted = f"with a stop token {role}: {shown(full.token_ids[:end])}, ended by {reason}"
            action = "leave stop tokens to the loop: commit the step as if there were none"
            return Deviation(wanted, f"{shown(got.token_ids)}, ended by {got.stop_reason}", action)
    return None


def _roles(full: Generation) -> dict[str, tuple[int, int]]:
    """Role -> a token that comes first in this role, and the length of the answer up to it."""
    roles = {"first": (full.token_ids[0], 1)}
    at = 1
    for step in full.steps:
        for offset, token in enumerate(step.tokens):
            role = "bonus" if offset == step.accepted else "last accepted" if offset == step.accepted - 1 else "inner"
            if full.token_ids.index(token) == at + offset:
                roles.setdefault(role, (token, at + offset + 1))
        at += len(step.tokens)
    return roles


def isolation(subject: MethodUnderTest, models: RandomModels) -> Result:
    """Earlier prompts have no effect.

    A prompt after others gives what it gives to a fresh method.
    """
    for sampling in (Sampling(), _SAMPLED):
        used = subject.prepared(models)
        for length in (30, _PROMPT_TOKENS, 1, _PROMPT_TOKENS):
            prompt = prompt_of(length)
            after = answer(used, models, prompt, NEW_TOKENS, sampling)
            alone = answer(subject.prepared(models), models, prompt, NEW_TOKENS, sampling)
            if problem := _differs(alone, after, "alone", "after other prompts"):
                return replace(problem, action="create all state of one prompt in start()")
    return None


def determinism(subject: MethodUnderTest, models: RandomModels) -> Result:
    """The same seed gives the same answer and steps."""
    prompt = prompt_of(_PROMPT_TOKENS)
    one, other = (answer(subject.prepared(models), models, prompt, NEW_TOKENS, _SAMPLED) for _ in range(2))
    if problem := _differs(one, other, "once", "again with the same seed"):
        return replace(problem, action="draw with context.generator only: no random, no generator of your own")
    return None


def batches(subject: MethodUnderTest, models: RandomModels) -> Result:
    """Answers in a batch are those given alone.

    A method that decodes no batches says why.
    """
    if reason := why_not_batched(subject.prepared(models)):
        return Skipped(f"it decodes no batches, since {reason}")
    prompts = [prompt_of(length) for length in (_PROMPT_TOKENS, 1, 30)]
    for sampling in (Sampling(), _SAMPLED):
        asked = [DecodeRequest(prompt, NEW_TOKENS, sampling) for prompt in prompts]
        together = decode_batch(subject.prepared(models), models.target, asked)
        for prompt, got in zip(prompts, together, strict=True):
            alone = answer(subject.prepared(models), models, prompt, NEW_TOKENS, sampling)
            if problem := _differs(alone, got, "alone", "in a batch"):
                return replace(problem, action="let layers_at name the layers that step runs, by new tokens alone")
    return None


def replay(subject: MethodUnderTest, models: RandomModels) -> Result:
    """A forced text is written in the same steps.

    That text is the method's own answer. A method that cannot write any other text is skipped.
    """
    prompt, other = prompt_of(_PROMPT_TOKENS), prompt_of(NEW_TOKENS)
    free = answer(subject.prepared(models), models, prompt, NEW_TOKENS)
    try:
        own = answer(subject.prepared(models), models, prompt, NEW_TOKENS, forced=free.token_ids)
        answer(subject.prepared(models), models, prompt, NEW_TOKENS, forced=other)
    except Unforced as refusal:
        return Skipped(f"run --replay cannot take it: {refusal}")
    if problem := _differs(free, own, "when decoding freely", "when forced to write its own answer"):
        return replace(problem, action="let steps depend on the tokens of the text only, not on whether it is forced")
    assert own.forced is not None
    if (own.forced.agreed, own.forced.judged) != (NEW_TOKENS, NEW_TOKENS):
        seen = f"{own.forced.agreed} of {own.forced.judged}"
        action = "call context.pick once for each token of the answer"
        return Deviation(f"its own choice at all {NEW_TOKENS} tokens of its own answer", seen, action)
    return None


def _differs(one: Generation, other: Generation, when: str, then: str) -> Deviation | None:
    if one.token_ids != other.token_ids:
        return Deviation(f"{shown(one.token_ids)}, as {when}", f"{shown(other.token_ids)} {then}", "")
    for number, (first, second) in enumerate(zip(one.steps, other.steps, strict=False), 1):
        if first != second:
            return Deviation(f"step {number} to be {_described(first)}, as {when}", f"{_described(second)} {then}", "")
    return None


def _described(step: Step) -> str:
    layers = ", ".join(map(str, step.layers))
    return f"{step.accepted} accepted of {step.drafted} in {step.rows} rows of {layers} layers"


def cache(subject: MethodUnderTest, models: RandomModels) -> Result:
    """The cache is that of a fresh prefill.

    After each step, every layer holds what a prefill of the committed text gives it.
    """
    method = subject.prepared(models)
    if method.exactness == "lossy":
        return Skipped(f"claims no exactness: {method.reason}")
    problems: list[Deviation] = []

    def look(stream: Stream, text: Sequence[int]) -> None:
        if stream.length != len(text):
            problems.append(Deviation(f"{len(text)} rows of text in the cache", str(stream.length), _KEPT))
            return
        fresh = Stream(models.target, len(text))
        fresh.push(list(text))
        fresh.advance()
        for layer, length in enumerate(stream.cache.lengths):
            held = [slot for slot in range(min(length, len(text))) if slot not in stream.cache.absent[layer]]
            off = (stream.cache.kv[layer][:, held] - fresh.cache.kv[layer][:, held]).abs().amax((0, 2))
            wrong = [slot for slot, much in zip(held, off.tolist(), strict=True) if not much < _CACHE_ROUNDING]
            if wrong:
                seen = f"other keys or values in layer {layer} at position {wrong[0]} of {len(text)}"
                problems.append(Deviation("the cache of a fresh prefill of the same text", seen, _KEPT))
                return

    for sampling in (Sampling(), _SAMPLED):
        answer(Watched(method, look), models, prompt_of(_PROMPT_TOKENS), NEW_TOKENS, sampling)
    return problems[0] if problems else None


OF_THE_METHOD: dict[str, Callable[[MethodUnderTest], Result]]
OF_THE_METHOD = {check.__name__: check for check in (options, claim, unsupported)}
_ON_A_TARGET = (engaged, greedy, sampled, counting, limits, stops) + (isolation, determinism, batches, replay, cache)
OnATarget = Callable[[MethodUnderTest, RandomModels], Result]
ON_A_TARGET: dict[str, OnATarget] = {check.__name__: check for check in _ON_A_TARGET}
# By name. The first line of a docstring says what a pass means; `doctor` prints it.
CHECKS: dict[str, Callable[..., Result]] = {**OF_THE_METHOD, **ON_A_TARGET}


def examine(label: str) -> Iterator[Finding]:
    """All findings on the method of a label. Raises UserError for a label that the registry refuses.

    Nothing is read or written but untrained modules in a temporary folder, where the method needs some.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on models this small more threads take longer
    try:
        with tempfile.TemporaryDirectory(prefix="benchctl-doctor-") as folder:
            yield from _examined(MethodUnderTest(label, Path(folder)))
    finally:
        torch.set_num_threads(threads)


def _examined(subject: MethodUnderTest) -> Iterator[Finding]:
    name = subject.canonical
    for check, look in OF_THE_METHOD.items():
        yield finding(name, check, "", partial(look, subject))
    for kind in KINDS:
        for check, test in ON_A_TARGET.items():
            yield finding(name, check, kind, partial(_on_a_target, test, subject, random_models(kind)))


def _on_a_target(test: OnATarget, subject: MethodUnderTest, models: RandomModels) -> Result:
    reason = why_unsupported(subject.fresh(), models.target.info)
    return Skipped(reason) if reason else test(subject, models)
