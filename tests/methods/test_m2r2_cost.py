"""What M2R2 computes is what its definition charges: products with weights, counted by torch as they are called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from runs import LAYERS, NEW_TOKENS, pair, prepared, prompt_of
from torch.utils.flop_counter import FlopCounterMode

from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.model.target import TargetInfo
from benchctl.methods.m2r2.gates import LATENT, Interval

RANK = 5
aten = torch.ops.aten


def product(rows: float, *sizes: int) -> float:
    """Operations of rows that pass matrices of these inner and outer sizes, one after the other."""
    return rows * sum(2 * inner * outer for inner, outer in zip(sizes, sizes[1:], strict=False))


class Cost:
    """Operations of one row in the parts of a target, written down from the shapes of its weights."""

    def __init__(self, info: TargetInfo, head_dim: int, kv_heads: int) -> None:
        width, queries, inner = info.hidden_size, info.query_size, info.mlp_size
        self.info, self.keys_values = info, product(1, width, 2 * kv_heads * head_dim)
        self.qkv = product(1, width, queries) + self.keys_values
        self.layer = self.qkv + product(1, queries, width) + 2 * product(1, width, inner) + product(1, inner, width)
        self.head = product(1, width, info.vocabulary)
        around = ((width, queries), (queries, width), (width, 2 * inner), (inner, width))
        self.adapter = sum(product(1, inputs, RANK, outputs) for inputs, outputs in around)

    def prefill(self, prompt_tokens: int) -> float:
        return prompt_tokens * self.info.layers * self.layer + self.head

    def speculative(self, generation: Generation, gate: int) -> float:
        """Every row runs all layers and the head; one that proposes also runs those below the gate adapted, and the
        head, and leaves the gate's layer keys and values before it waits there (queries come with that product)."""
        rows = sum(step.rows for step in generation.steps)
        proposing = sum(step.drafted for step in generation.steps)
        slow = rows * (self.info.layers * self.layer + self.head) + proposing * self.qkv
        return slow + proposing * (gate * (self.layer + self.adapter) + self.head)

    def dynamic(self, depths: Iterable[int], parts: list[Interval], arla: bool, rate_map: bool) -> float:
        """Both streams run up to the gate where the token leaves; above it only keys and values are made."""
        total, layers = 0.0, self.info.layers
        for depth in depths:
            passed = [interval for interval in parts if interval.gate <= depth]
            both = passed[-1].gate
            total += both * (2 * self.layer + self.adapter)
            asked = [product(interval.gate - interval.first + 1, self.info.hidden_size, LATENT) for interval in passed]
            total += sum(asked) + self.head if arla else len(passed) * self.head
            if depth == layers:
                total += (layers - both) * self.layer + (0 if arla else self.head)
            else:
                mixed = product(layers - depth, 2 + depth - passed[-1].first, self.info.hidden_size)
                total += (layers - depth) * self.keys_values + rate_map * mixed
        return total


def _in_place(_there: Any, left: Any, right: Any, **_kwargs: Any) -> float:
    """Of addmm_, which torch's counter does not know; it is given shapes."""
    return product(left[0], *right)


def counted(label: str, prompt: list[int]) -> tuple[Generation, float]:
    """A generation and the operations of its products of two matrices; those of the attention are batches of them."""
    target = pair("llama").target
    method = prepared(label, target)
    with FlopCounterMode(display=False, custom_mapping={aten.addmm_: _in_place}) as counter:
        generation = decode(method, target, DecodeRequest(prompt, NEW_TOKENS))
    counts = counter.get_flop_counts()["Global"]
    return generation, float(sum(counts.get(op, 0) for op in (aten.mm, aten.addmm, aten.addmm_)))


def cost() -> Cost:
    models = pair("llama")
    return Cost(models.target.info, models.model.config.head_dim, models.model.config.num_key_value_heads)


@pytest.mark.slow
@pytest.mark.parametrize(("gate", "draft_tokens"), [(1, 4), (3, 2)])
def test_a_draft_costs_the_layers_below_the_gate_and_no_more(gate: int, draft_tokens: int) -> None:
    prompt = prompt_of(9)
    generation, operations = counted(f"m2r2[gates={gate},draft_tokens={draft_tokens},rank={RANK}]", prompt)
    assert operations == cost().prefill(len(prompt)) + cost().speculative(generation, gate)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(("router", "kv_fill"), [("arla", "rate_map"), ("softmax_max", "copy_h")])
def test_a_token_that_leaves_costs_both_streams_up_to_there(router: str, kv_fill: str, threshold: float) -> None:
    prompt = prompt_of(9)
    how = f"gates=1+3,router={router},kv_fill={kv_fill},threshold={threshold}"
    generation, operations = counted(f"m2r2_dynamic[rank={RANK},{how}]", prompt)
    parts, depths = [Interval(0, 1, LAYERS), Interval(1, 3, LAYERS)], generation.layers[1:]
    assert (threshold == 0.5) == (len(set(depths)) > 1), "some leave, some stay"
    expected = cost().dynamic(depths, parts, router == "arla", kv_fill == "rate_map")
    assert operations == cost().prefill(len(prompt)) + expected
