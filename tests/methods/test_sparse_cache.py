"""sparse_cache: steps equal a replay by transformers' model, whose attention is told which keys drafted rows see."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from oracles import Drafter
from runs import FIRST_FAST, LAYERS, check_chain, generate, pair, prompt_of
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from benchctl.decoding.kv.cache import Cache
from benchctl.decoding.kv.stream import LayerRun, Stream
from benchctl.decoding.model.layers import Parts
from benchctl.methods.sparse_cache import SparseCache

KINDS: dict[str, dict[str, Any]] = {
    "window": {"select": "window", "budget": 10, "sinks": 3, "draft_tokens": 3},
    "window without sinks": {"select": "window", "budget": 1, "sinks": 0, "confidence": 0.0},
    "retrieval": {"budget": 13, "chunk": 3, "confidence": 0.0},
    "retrieval of single tokens": {"budget": 4, "chunk": 1, "draft_tokens": 2},
    "whole": {"confidence": 0.2},
}


@dataclass
class Sparse:
    """The attention of a transformers model over a text whose tokens from ``root`` on see only chosen ones before."""

    method: SparseCache
    root: int = 0

    def chosen(self, query: Tensor, keys: Tensor) -> list[int]:
        """Of the tokens before the root; ``query`` [group, head_dim] are the root's, ``keys`` [tokens, head_dim]."""
        method, root = self.method, self.root
        if root <= method.budget:
            return list(range(root))
        if method.select == "window":
            return [at for at in range(root) if at < method.sinks or at >= root - (method.budget - method.sinks)]
        size = method.chunk
        whole = [list(range(start, start + size)) for start in range(0, root - size + 1, size)]
        fit = {number: float((query @ keys[chunk].mean(0)).sum()) for number, chunk in enumerate(whole)}
        middle = sorted(range(1, len(whole) - 1), key=lambda number: -fit[number])[: method.budget // size - 2]
        return [at for number in (0, *middle) for at in whole[number]] + list(range(whole[-1][0], root))

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **more: Any
    ) -> tuple[Tensor, None]:
        n, groups = query.shape[2], query.shape[1] // key.shape[1]
        at = torch.arange(n)
        mixed = torch.empty_like(query)
        for head in range(query.shape[1]):
            keys, values = key[0, head // groups], value[0, head // groups]
            sees = at[None, :] <= at[:, None]
            if (window := more.get("sliding_window")) is not None:
                sees &= at[:, None] - at[None, :] < window
            first = head // groups * groups
            seen = self.chosen(query[0, first : first + groups, self.root], keys)
            sees[self.root :, : self.root] = False
            sees[self.root :, seen] = True
            sees[self.root :, self.root :] = at[None, self.root :] <= at[self.root :, None]
            scores = (query[0, head] @ keys.T * scaling).masked_fill(~sees, -torch.inf)
            mixed[0, head] = scores.softmax(-1) @ values
        return mixed.transpose(1, 2), None

    def drafter(self, model: Any) -> Drafter:
        AttentionInterface.register("sparse", self)
        AttentionMaskInterface.register("sparse", eager_mask)
        twin = copy.deepcopy(model)
        twin.config._attn_implementation = "sparse"

        def draft(text: list[int], budget: int) -> list[int]:
            tokens, self.root = list[int](), len(text) - 1
            while len(tokens) < min(self.method.draft_tokens, budget):
                logits = twin(torch.tensor([[*text, *tokens]]), use_cache=False).logits[0, -1]
                tokens.append(int(logits.argmax()))
                if float(logits.softmax(-1).max()) < self.method.confidence:
                    break
            return tokens

        return draft


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
@torch.inference_mode()
def test_steps_equal_a_replay_with_the_same_keys(family: str, seed: int, kind: str) -> None:
    models, method = pair(family, seed), SparseCache(**KINDS[kind])
    draft = Sparse(method).drafter(models.model)
    steps = check_chain(method, draft, family, seed)
    accepted = sum(step.accepted for step in steps)
    assert accepted > 5
    assert (accepted == sum(step.drafted for step in steps)) == (kind == "whole" and family != "mistral_window")


@pytest.mark.parametrize("shape", ["one list for all heads", "a list for each head"])
def test_a_view_holds_copies_of_chosen_slots(shape: str) -> None:
    like = torch.zeros(0, dtype=torch.float64)
    source, view = Cache(2, 2, 4, 20, like), Cache(2, 2, 4, 3, like)
    rows = torch.randn(4, 9, 4, dtype=torch.float64)
    source.write(1, 0, rows)
    per_head = [[1, 4, 7, 8, 2], [0, 3, 4, 5, 8]]
    slots = torch.tensor(per_head if shape.startswith("a ") else per_head[0])
    view.hold(5)
    view.take(1, source, slots)
    for head in range(4):
        expected = rows[head, per_head[head % 2] if slots.ndim == 2 else per_head[0]]
        assert torch.equal(view.kv[1][head, :5], expected)
    assert view.lengths == [5, 5]
    more = torch.randn(4, 100, 4, dtype=torch.float64)  # grows
    keys, values = view.write(1, 5, more)
    assert torch.equal(keys[0, :5], rows[0, slots[0] if slots.ndim == 2 else slots]) and keys.shape[1] == 105
    source.write(1, 0, rows + 1)
    assert torch.equal(keys[0, :5], rows[0, slots[0] if slots.ndim == 2 else slots])  # copies


@torch.inference_mode()
def test_rows_that_see_a_view_are_counted_and_leave_the_stream_alone() -> None:
    target, parts = pair("llama").target, [Parts()] * LAYERS
    stream, view = Stream(target, 20), target.new_cache(20)
    stream.push([5, 6, 7, 8])
    stream.advance()
    stream.keep(range(4))
    stream.runs.clear()
    before = [kv[:, :4].clone() for kv in stream.cache.kv]
    view.hold(4)
    states, chosen = list[Tensor](), list[tuple[int, int]]()

    def choose(layer: int, queries: Tensor) -> None:
        view.take(layer, stream.cache, torch.arange(4))
        chosen.append((layer, len(queries)))

    for at, token in enumerate((9, 10)):
        row = target.embed_anywhere([token])
        states.append(stream.detour(row, parts, earlier=at, view=view, choose=None if at else choose))
    assert chosen == [(layer, 1) for layer in range(LAYERS)]
    assert stream.runs == [LayerRun(0, LAYERS, 1, 2 * LAYERS)] * 2
    assert stream.cache.lengths == [4] * LAYERS and view.lengths == [6] * LAYERS
    assert all(torch.equal(kv[:, :4], old) for kv, old in zip(stream.cache.kv, before, strict=True))
    stream.push([9, 10])
    stream.advance()
    torch.testing.assert_close(torch.cat(states), stream.states, rtol=0.0, atol=1e-12)
    stream.keep(range(2))
    for wrong in ({"start": 2}, {"apart": True}):
        with pytest.raises(ValueError, match="view"):
            stream.detour(target.embed_anywhere([9]), parts, view=view, **wrong)


@torch.inference_mode()
def test_drafting_reads_no_more_of_the_cache_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    models, lengths = pair("llama"), list[int]()
    original = Stream.detour

    def detour(stream: Stream, states: Tensor, parts: Sequence[Parts], first: int = 0, **more: Any) -> Tensor:
        after = original(stream, states, parts, first, **more)
        lengths.append(max(more["view"].lengths))
        return after

    monkeypatch.setattr(Stream, "detour", detour)
    for options in (KINDS["window"], KINDS["retrieval"]):
        method = SparseCache(**options)
        lengths.clear()
        got = generate(method, models, prompt_of(30), 30)
        # Each draft: the budget, with retrieval the tokens behind the last whole chunk, and the rows of the draft.
        tail = method.chunk - 1 if method.select == "retrieval" else 0
        assert max(lengths) <= method.budget + tail + method.draft_tokens
        assert sum(sum(step.layers) for step in got.steps) > LAYERS * (len(got.token_ids) - 1)
