"""Tokens that run some layers only, as plainly as it can be: transformers' own model over the whole text.

Adapters are merged into copies of transformers' weights; which token runs which layer is decided from the residuals
before it; the others keep theirs and are hidden by a mask. Nothing here knows of caches, slots or rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from oracles import Naive
from runs import run
from torch import Tensor
from transformers import DynamicCache
from two_streams import halves, hooked_states, masked, merged

from benchctl.decoding.method import Context
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.adapters import Adapters

Plan = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""Index of a layer and what arrives there [tokens, width] -> which tokens run it, and what its change is times."""
PlanOf = Callable[[int], Plan]  # for a text of so many tokens


def with_adapters(model: Any, adapters: Adapters) -> Any:
    """A copy of a model with separate projections whose weights have their adapters added."""
    twin = copy.deepcopy(model)
    for index, layer in enumerate(twin.model.layers):
        adapter, attention = adapters.layers.of(index + 1), layer.self_attn
        head_dim = attention.head_dim
        heads, kv_heads = (part.weight.shape[0] // head_dim for part in (attention.q_proj, attention.k_proj))
        parts = torch.split(merged(adapter.qkv), [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim])
        for projection, change in zip((attention.q_proj, attention.k_proj), parts, strict=False):
            projection.weight.data += change.view(-1, head_dim, change.shape[1])[:, halves(head_dim)].flatten(0, 1)
        attention.v_proj.weight.data += parts[2]
        attention.o_proj.weight.data += merged(adapter.out)
        if adapter.gate_up is not None and adapter.down is not None:
            gate, up = merged(adapter.gate_up).chunk(2)
            layer.mlp.gate_proj.weight.data += gate
            layer.mlp.up_proj.weight.data += up
            layer.mlp.down_proj.weight.data += merged(adapter.down)
    return twin


def planned_states(model: Any, text: Sequence[int], plan: Plan, cache: Any = None) -> Tensor:
    """[layers + 1, tokens, width] residuals; ``cache``, an empty one of transformers, is given keys and values."""
    current: list[tuple[Tensor, Tensor]] = []

    def arrive(index: int) -> Any:
        def hook(_module: Any, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
            current.append(plan(index, inputs[0][0]))
            return inputs, {**named, "attention_mask": masked(model, len(text), ~current[-1][0])}

        return hook

    def leave(_module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        runs, weights = current[-1]
        changed = inputs[0] + weights[:, None] * (output - inputs[0])
        return torch.where(runs[:, None], changed, inputs[0])

    layers = model.model.layers
    hooks = [layer.register_forward_pre_hook(arrive(i), with_kwargs=True) for i, layer in enumerate(layers)]
    return hooked_states(model, text, [*hooks, *(layer.register_forward_hook(leave) for layer in layers)], cache)


def plan_of_depths(layers: int, warmup: int, depths: Sequence[int]) -> Plan:
    """Each token runs the first ``warmup`` layers and then the last ones, as many as its depth says in all."""

    def plan(index: int, states: Tensor) -> tuple[Tensor, Tensor]:
        below_top = [index < warmup or layers - index <= depth - warmup for depth in depths]
        return torch.tensor(below_top), torch.ones(len(depths), dtype=torch.float64)

    return plan


def plan_of_routers(weights: dict[str, Tensor], threshold: float) -> Plan:
    """In layers that have a router, tokens run whose predictor says more than the threshold; r scales the change."""

    def plan(index: int, states: Tensor) -> tuple[Tensor, Tensor]:
        everyone = torch.ones(len(states), dtype=torch.bool), torch.ones(len(states), dtype=torch.float64)
        return routed(weights, index, states, threshold) if f"{index + 1}.weigh.weight" in weights else everyone

    return plan


def routed(weights: dict[str, Tensor], index: int, states: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    scores, shares = router_says(weights, index, states)
    return 1 / (1 + torch.exp(-scores)) > threshold, shares


def router_says(weights: dict[str, Tensor], index: int, states: Tensor) -> tuple[Tensor, Tensor]:
    """The predictor's scores and r, [tokens] each."""
    eps = torch.finfo(torch.float32).eps
    scaled = states / (states.square().mean(-1, keepdim=True) + eps).sqrt()
    named = {part: weights[f"{index + 1}.{part}.weight"][0].double() for part in ("foresee", "weigh")}
    shares = scaled @ named["weigh"] + weights[f"{index + 1}.weigh.bias"].double()
    scores = torch.cat((scaled, shares[:, None]), 1) @ named["foresee"]
    return scores + weights[f"{index + 1}.foresee.bias"].double(), shares


def picked_from(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Context, Tensor]]:
    """Takes the logits [1, vocabulary] of every token that a method picks from now on, and what it picks for."""
    seen: list[tuple[Context, Tensor]] = []
    pick = Context.pick

    def noting(context: Context, logits: Tensor) -> int:
        seen.append((context, logits.clone()))
        return pick(context, logits)

    monkeypatch.setattr(Context, "pick", noting)
    return seen


def assert_one_pass(
    monkeypatch: pytest.MonkeyPatch, label: str, target: Target, prompt: list[int], model: Any, plan_of: PlanOf
) -> list[int]:
    """Twenty tokens, their logits, their layers and the cache are those of one pass; the layers of the whole text."""
    seen = picked_from(monkeypatch)
    found = run(label, target, prompt, 20)
    text, cache = [*prompt, *found.token_ids[:-1]], DynamicCache()
    plan = plan_of(len(text))
    with torch.inference_mode():
        states = planned_states(model, text, plan, cache)
        runs = torch.stack([plan(index, states[index])[0] for index in range(target.layers)])
        expected = said_by(model, states)[len(prompt) - 1 :]
    assert (torch.cat([logits for _, logits in seen]) - expected).abs().max() < 1e-10
    assert list(found.token_ids) == expected.argmax(-1).tolist()
    layers: list[int] = runs.sum(0).tolist()
    assert list(found.layers) == layers[len(prompt) - 1 :]
    held, fresh = seen[-1][0].stream.cache, cast(Any, cache).layers
    for kv, absent, layer, ran in zip(held.kv, held.absent, fresh, runs, strict=True):
        assert absent == (~ran).nonzero().flatten().tolist()
        slots = ran.nonzero().flatten()
        keys, values = kv[: held.kv_heads, slots], kv[held.kv_heads :, slots]
        torch.testing.assert_close(keys[..., halves(keys.shape[-1])], layer.keys[0][:, slots], rtol=0, atol=1e-11)
        torch.testing.assert_close(values, layer.values[0][:, slots], rtol=0, atol=1e-11)
    return layers


def said_by(model: Any, states: Tensor) -> Tensor:
    """Logits [tokens, vocabulary] of the last residuals."""
    logits: Tensor = Naive(model).logits(states[-1])
    return logits


def divergence(model: Any, final: Tensor, said: Tensor, following: int, share: float) -> Tensor:
    """KL(target || said) + share * cross-entropy with the token that follows, for logits [vocabulary]."""
    log_final, log_said = F.log_softmax(final, -1), F.log_softmax(said, -1)
    return (log_final.exp() * (log_final - log_said)).sum() - share * log_said[following]
