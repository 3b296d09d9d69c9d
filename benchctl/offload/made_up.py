"""Traces and predictions that no run recorded: made up, seeded, and always labelled as that."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchctl.decoding.experts.trace import Generation, Trace, Visit

Reach = Literal["next", "aot"]


@dataclass(frozen=True)
class Shape:
    """A mixture of experts as far as loading goes. ``layer_s`` is what a layer computes for one token, its experts
    included, which are ``experts_share`` of that."""

    name: str
    layers: int
    experts: int
    top_k: int
    expert_bytes: int
    layer_s: float
    experts_share: float = 0.6


@dataclass(frozen=True)
class Routing:
    """How tokens choose experts. None of these numbers was measured on the shape they are used for: vary them.

    popularity   exponent of Zipf's law over the experts of a layer, in an order of its own; 0: all alike
    persistence  chance that an expert of a token serves the next token of the same layer again, before any popularity
    """

    popularity: float = 0.5
    persistence: float = 0.3


@dataclass(frozen=True)
class Guessing:
    """What made-up predictions are like: each needed expert is found with chance ``recall``, among top_k + ``spare``
    that are named, however far ahead (a real predictor is worse further ahead); a prediction takes ``predict_s``."""

    recall: float = 0.9
    spare: int = 0
    predict_s: float = 0.0
    seed: int = 0


def made_up_trace(shape: Shape, routing: Routing, *, tokens: int, prompt_tokens: int, seed: int) -> Trace:
    """One generation: a prefill of ``prompt_tokens``, whose experts are needed together, then ``tokens`` passes."""
    chance = random.Random(seed)
    weights = [_popularity(shape, routing, chance) for _ in range(shape.layers)]
    present: list[list[int]] = [[] for _ in range(shape.layers)]
    visits: list[Visit] = []
    for number in range(tokens + 1):
        for layer in range(shape.layers):
            needed: set[int] = set()
            for _ in range(1 if number else prompt_tokens):
                present[layer] = _draw(shape, routing, present[layer], weights[layer], chance)
                needed.update(present[layer])
            visits.append(_visit(shape, layer, needed))
    source = (
        f"{shape.name}, synthetic routing (popularity {routing.popularity:g}, persistence {routing.persistence:g}, "
        f"seed {seed}), {shape.layer_s * 1e3:g} ms per layer assumed"
    )
    facts = (shape.layers, shape.experts, shape.top_k, shape.expert_bytes)
    return Trace(source, True, *facts, generations=(tuple(visits),))


def made_up_predictions(trace: Trace, reach: Reach, guessing: Guessing) -> tuple[Generation, ...]:
    """The generations with predictions; those that name no needed expert name one drawn from the others.

    ``next`` predicts at each layer the one after it. ``aot`` predicts at the l-th layer, counted from one, those of
    layers 2 (l - 1) + 1 to 2 l that are still to come, as an accelerated stream of rate 2 does (M2R2, arXiv
    2502.02040). A visit that needs more experts than are named is named as many.
    """
    chance = random.Random(guessing.seed)
    return tuple(tuple(_predicting(trace, generation, reach, guessing, chance)) for generation in trace.generations)


def _predicting(
    trace: Trace, generation: Generation, reach: Reach, guessing: Guessing, chance: random.Random
) -> Iterator[Visit]:
    for place, visit in enumerate(generation):
        ahead = (visit.layer + 1,) if reach == "next" else (2 * visit.layer, 2 * visit.layer + 1)
        guesses: dict[int, tuple[int, ...]] = {}
        if place >= trace.layers:  # a prefill needs nearly all experts: nothing to predict
            for layer in ahead:
                if visit.layer < layer < trace.layers:
                    needed = generation[place + layer - visit.layer].experts
                    guesses[layer] = _guess(needed, trace, guessing, chance)
        yield replace(visit, predicted=guesses, predict_s=guessing.predict_s if guesses else 0.0)


def _guess(needed: Sequence[int], trace: Trace, guessing: Guessing, chance: random.Random) -> tuple[int, ...]:
    right = [expert for expert in needed if chance.random() < guessing.recall]
    others = [expert for expert in range(trace.experts) if expert not in needed]
    size = min(max(trace.top_k + guessing.spare, len(needed)), trace.experts)
    wrong = chance.sample(others, min(size - len(right), len(others)))
    return (*right, *wrong)


def _popularity(shape: Shape, routing: Routing, chance: random.Random) -> Mapping[int, float]:
    order = chance.sample(range(shape.experts), shape.experts)
    return {expert: (rank + 1) ** -routing.popularity for rank, expert in enumerate(order)}


def _draw(
    shape: Shape, routing: Routing, before: Sequence[int], weights: Mapping[int, float], chance: random.Random
) -> list[int]:
    """The experts of one token: some of those before, the rest by popularity, none twice."""
    chosen = [expert for expert in before if chance.random() < routing.persistence]
    rest = {expert: weight for expert, weight in weights.items() if expert not in chosen}
    while len(chosen) < shape.top_k:
        (found,) = chance.choices(list(rest), list(rest.values()))
        chosen.append(found)
        del rest[found]
    return chosen


def _visit(shape: Shape, layer: int, needed: set[int]) -> Visit:
    experts_s = shape.layer_s * shape.experts_share
    return Visit(layer, tuple(sorted(needed)), {}, shape.layer_s - experts_s, 0.0, experts_s)
