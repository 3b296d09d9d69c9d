"""Does a step take what its rows explain? The time of real steps against a bare pass that runs as much.

A verification is predicted by a plain chain of as many rows through the layers they lack, on the same cache, with the
same rows once through the head: no tree, no mixed depths, no verdict, no rows moved, no further head. A step without a
draft is predicted by the layers that it ran and by all products with the target's head that it made: those at exits are
part of its rule, so here too many of them would not show. What a method runs
in addition to the target's own layers and head is not predicted, so it shows.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import torch

from benchctl import bundled
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.errors import UserError
from benchctl.measuring.check import Choice, Models, choose_method, choose_models
from benchctl.measuring.clock import Clock
from benchctl.measuring.settings import ModelSettings
from benchmarks.origin import origin, refuse_equal_names, without_places
from benchmarks.speed import embedded_prompts, paired_interval
from benchmarks.watch import Recorder, Timekeeper, Took
from benchmarks.work import Bare, Work

LABELS = (
    "autoregressive",
    "two_model",
    "prompt_lookup",
    "lookahead",
    "early_exit[mode=draft]",
    "medusa",
    "deed[mode=draft]",
    "m2r2",
    "early_exit[threshold=0.5]",
    "early_exit[threshold=0.5,kv_policy=deferred_exact]",
    "skip_decode[adapters=none]",
    "mixture_of_depths",
)
WITHIN = 0.15
WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class StepCost:
    """A step's work, what it took, and what the bare pass took."""

    work: Work
    took: Took
    bare: Bare


@dataclass(frozen=True)
class Cost:
    """What the steps of a method took, against what their rows explain.

    timed               verification (from the finished draft to the committed cache) or step
    rows                mean rows through the head; layer_rows: mean rows of all layers together
    ratio               measured / predicted seconds, sums over the same steps; low, high: 95% interval over prompts
    goal                what the interval says of `WITHIN`
    parts_ms            of the measured milliseconds per step, those of each part that watch.Took names
    predicted_parts_ms  of the predicted ones, those of layers (with embedding and masks) and of heads
    measured_s          seconds of all steps of each prompt, and predicted_s: what ratio and interval are made of
    """

    label: str
    timed: str
    prompts: int
    steps: int
    rows: float
    layer_rows: float
    measured_ms: float
    predicted_ms: float
    ratio: float
    low: float
    high: float
    goal: str
    parts_ms: Mapping[str, float]
    predicted_parts_ms: Mapping[str, float]
    measured_s: tuple[float, ...]
    predicted_s: tuple[float, ...]


@dataclass
class Arm:
    """A prepared method and its steps, prompt by prompt."""

    label: str
    method: Method
    prompts: list[list[StepCost]] = field(default_factory=list)


def measure(
    models: Models, labels: Sequence[str], prompts: int, max_new_tokens: int, threads: int
) -> dict[str, object]:
    """The default methods that need no other files than the package has, and ``labels``, in turns on each prompt.

    share_within is of those that verify: they are what the goal is about.
    """
    torch.set_num_threads(threads)
    choices, left_out = choose(labels, models)
    loaded, draft_model = Target.load(bundled.resolve(models.target)), Target.load(bundled.resolve(models.draft))
    ready = [choice.prepare(loaded, lambda name: draft_model, models.draft) for choice in choices]
    left_out |= {choice.label: choice.unsupported for choice in ready if choice.unsupported}
    ready = [choice for choice in ready if not choice.unsupported]
    loads = {"target": (models.target, loaded), "draft": (models.draft, draft_model)}
    origins = origin(loads, ready, prompts, max_new_tokens)
    arms = [Arm(without_places(choice.label), choice.method) for choice in ready if isinstance(choice.method, Method)]
    texts = embedded_prompts(loaded, prompts)
    for arm in arms:
        time_steps(arm.method, loaded, texts[0], WARM_UP_TOKENS, Clock())
    for index, text in enumerate(texts):
        for arm in arms if index % 2 == 0 else reversed(arms):
            arm.prompts.append(time_steps(arm.method, loaded, text, max_new_tokens, Clock()))
    costs = [cost_of(arm.label, arm.prompts) for arm in arms]
    verifying = [cost for cost in costs if cost.timed == "verification"]
    return {
        **origins,
        "threads": threads,
        "within": WITHIN,
        "share_within": sum(cost.goal.startswith("met") for cost in verifying) / len(verifying),
        "left_out": left_out,
        "methods": [asdict(cost) for cost in costs],
    }


def against_band(low: float, high: float, within: float) -> str:
    """Whether an interval of a ratio lies ``within`` that share of 1: met, missed, or open."""
    if 1 - within <= low and high <= 1 + within:
        return "met, by the whole interval"
    return "missed, by the whole interval" if high < 1 - within or low > 1 + within else "open; measure longer"


def choose(labels: Sequence[str], models: Models) -> tuple[list[Choice], dict[str, str]]:
    """LABELS without those whose modules the package has not, and why; then ``labels``.

    Raises UserError where one of ``labels`` cannot run, where it names a draft model, since all are measured with that
    of ``models``, and where two would have the same name; loads no weights.
    """
    tokenizer = load_tokenizer(bundled.resolve(models.target))
    choices, left_out = [], {}
    for text in LABELS:
        try:
            choices.append(choose_method(text, models).fit(tokenizer))
        except UserError as problem:
            left_out[text] = str(problem)
    choices = [replace(choice, named=False) for choice in choices]  # embedded modules may be for other options
    choices += [_with_draft_of(models, choose_method(text, models).fit(tokenizer)) for text in labels]
    unique = list({choice.label: choice for choice in choices}.values())
    refuse_equal_names(unique)
    return unique, left_out


def _with_draft_of(models: Models, choice: Choice) -> Choice:
    if choice.draft_model(""):
        raise UserError(
            "several_draft_models",
            f"{choice.label} names a draft model, but costs are measured with {models.draft} alone: leave draft_model "
            "out.",
        )
    return choice


def time_steps(
    method: Method, target: Target, prompt_ids: Sequence[int], max_new_tokens: int, clock: Callable[[], float]
) -> list[StepCost]:
    """Decode three times: once to write down what each step has to run, then to time one half of the steps and the bare
    passes of the other, then the halves changed over. Raises RuntimeError where the three differ."""
    recorder = Recorder()

    def answer() -> tuple[int, ...]:
        return decode(method, target, DecodeRequest(prompt_ids, max_new_tokens, clock=clock)).token_ids

    with recorder.on(method):
        recorded = answer()
    most = max((rows for work in recorder.works for rows in (*work.heads, *_rows(work))), default=1)
    stored = target.embed([0] * most)
    took: dict[int, Took] = {}
    bare: dict[int, Bare] = {}
    for parity in (0, 1):
        timekeeper = Timekeeper(recorder.works, parity, stored, clock)
        with timekeeper.on(method):
            if answer() != recorded:
                raise RuntimeError("watched decoding gave another answer: the bare passes disturb it")
        took |= timekeeper.took
        bare |= timekeeper.bare
    return [StepCost(work, took[number], bare[number]) for number, work in enumerate(recorder.works)]


def _rows(work: Work) -> list[int]:
    return [span.rows for span in work.spans]


def cost_of(label: str, prompts: Sequence[Sequence[StepCost]]) -> Cost:
    """Sums over all steps; prompts are what the interval resamples."""
    steps = [step for prompt in prompts for step in prompt]
    measured_s = [sum(step.took.seconds for step in prompt) for prompt in prompts]
    predicted_s = [sum(step.bare.seconds for step in prompt) for prompt in prompts]
    interval = paired_interval(measured_s, predicted_s)
    parts: defaultdict[str, float] = defaultdict(float)
    for step in steps:
        for name, seconds in step.took.parts.items():
            parts[name] += seconds
    layers_s, heads_s = (sum(getattr(step.bare, name) for step in steps) for name in ("layers_s", "heads_s"))
    in_ms = 1e3 / len(steps)
    return Cost(
        label=label,
        timed="verification" if any(step.work.drafted for step in steps) else "step",
        prompts=len(prompts),
        steps=len(steps),
        rows=sum(sum(step.work.heads) for step in steps) / len(steps),
        layer_rows=sum(step.work.layer_rows for step in steps) / len(steps),
        measured_ms=sum(measured_s) * in_ms,
        predicted_ms=sum(predicted_s) * in_ms,
        ratio=sum(measured_s) / sum(predicted_s),
        low=interval.low,
        high=interval.high,
        goal=against_band(interval.low, interval.high, WITHIN),
        parts_ms={name: seconds * in_ms for name, seconds in sorted(parts.items())},
        predicted_parts_ms={"layers": layers_s * in_ms, "heads": heads_s * in_ms},
        measured_s=tuple(measured_s),
        predicted_s=tuple(predicted_s),
    )


if __name__ == "__main__":
    print(json.dumps(measure(choose_models(ModelSettings()), **json.loads(sys.argv[1]))))
