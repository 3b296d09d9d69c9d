"""The accelerated stream written as plainly as it can be: one token, one layer after the other, transformers' weights.

Slow states come from transformers' own pass over the whole text. Adapters are merged into copies of the weights, and
the accelerated state of the last token attends to keys and values made of the slow states below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from oracles import Naive, TreeDrafter
from torch import Tensor

from benchctl.decoding.modules.low_rank import LowRank
from benchctl.methods.m2r2.streams import Adapter
from benchctl.methods.m2r2.training import TwoStreams


def merged(trained: LowRank) -> Tensor:
    return trained.scale * trained.up.weight.double() @ trained.down.weight.double()


def _bend(trained: LowRank, x: Tensor) -> Tensor:
    return trained.scale * trained.up.weight.double() @ F.silu(trained.down.weight.double() @ x)


def halves(head_dim: int) -> list[int]:
    """Where transformers' order of a head's dimensions, first halves then second, finds its own in pairs."""
    return [*range(0, head_dim, 2), *range(1, head_dim, 2)]


def masked(model: Any, tokens: int, hidden: Sequence[int] | Tensor) -> Tensor:
    """What a text's tokens see of it, as transformers adds it to the scores; ``hidden`` ones see themselves only."""
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)[None]
    visible = distance >= 0
    if window := getattr(model.config, "sliding_window", None):
        visible &= distance < window
    visible[:, hidden] = False
    visible |= distance == 0
    return torch.zeros(1, 1, tokens, tokens, dtype=torch.float64).masked_fill(~visible, -torch.inf)


@torch.no_grad()
def hooked_states(model: Any, text: Sequence[int], hooks: Sequence[Any], cache: Any = None) -> Tensor:
    """[layers + 1, tokens, width] residuals before the first layer and after each, of one pass; the hooks end with it.

    ``cache``: an empty one of transformers, to be given the keys and values.
    """
    seen, layers = list[Tensor](), model.model.layers
    handles = [*hooks, layers[-1].register_forward_hook(lambda _module, _inputs, output: seen.append(output[0]))]
    for layer in layers:
        handles.append(layer.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0][0])))
    try:
        model(torch.tensor([list(text)]), past_key_values=cache, use_cache=cache is not None)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(seen)


def _rotate(model: Any, x: Tensor, positions: Tensor) -> Tensor:
    """x [tokens, heads, head_dim] in transformers' order."""
    cos, sin = (part[0, :, None] for part in model.model.rotary_emb(x, positions[None]))
    first, second = x.chunk(2, -1)
    rotated: Tensor = x * cos + torch.cat((-second, first), -1) * sin
    return rotated


def accelerated_states(naive: Naive, module: TwoStreams, text: list[int], first: int, gate: int) -> Tensor:
    """[gate - first + 1, width]: the accelerated state of the last token after each layer, its start included."""
    return accelerated_beside(naive, module, naive.states(text), first, gate)


def own_states(naive: Naive, module: TwoStreams, text: list[int], drafted: int, first: int, gate: int) -> Tensor:
    """With features: the same where the text's last ``drafted`` tokens are drafts, whose last states are not known."""
    slow = naive.states(text)
    before = own_states(naive, module, text[:-1], drafted - 1, first, gate)[-1] if drafted else slow[-1, -2]
    ahead = module.features.of(gate).weight.double() @ naive.model.model.norm(before)
    return accelerated_beside(naive, module, slow, first, gate, ahead=ahead)


def accelerated_beside(
    naive: Naive,
    module: TwoStreams,
    slow: Tensor,
    first: int,
    gate: int,
    unseen: Sequence[Sequence[int]] | None = None,
    ahead: Tensor | None = None,
) -> Tensor:
    """The same for slow states ``slow`` [layers + 1, tokens, width].

    ``unseen`` are the tokens that hold nothing, by layer; ``ahead`` is added at the start.
    """
    states = [slow[first, -1] if ahead is None else slow[first, -1] + ahead]
    for layer in range(first + 1, gate + 1):
        hidden = unseen[layer - 1] if unseen else []
        states.append(_layer(naive.model, layer - 1, module.adapters.of(layer), states[-1], slow[layer - 1], hidden))
    return torch.stack(states)


def _layer(
    model: Any, index: int, adapter: Adapter, state: Tensor, below: Tensor, hidden: Sequence[int] = ()
) -> Tensor:
    layer, own = model.model.layers[index], adapter.own_attention
    attention = layer.self_attn
    head_dim = attention.head_dim
    normed, seen = layer.input_layernorm(state), layer.input_layernorm(below)
    paired = (merged(adapter.query) @ normed).view(-1, head_dim)
    query = paired[:, halves(head_dim)] + (0 if own else attention.q_proj(normed).view(-1, head_dim))
    keys, values = (part(seen).view(len(seen), -1, head_dim) for part in (attention.k_proj, attention.v_proj))
    if hasattr(attention, "q_norm"):
        query, keys = attention.q_norm(query), attention.k_norm(keys)
    positions = torch.arange(len(seen))
    query, keys = _rotate(model, query[None], positions[-1:])[0], _rotate(model, keys, positions)
    groups = query.shape[0] // keys.shape[1]
    scores = torch.einsum("hd,thd->ht", query, keys.repeat_interleave(groups, 1)) * attention.scaling
    window = getattr(model.config, "sliding_window", None)
    if window:
        scores[:, : max(0, len(seen) - window)] = -torch.inf
    scores[:, list(hidden)] = -torch.inf
    mixed = torch.einsum("ht,thd->hd", scores.softmax(-1), values.repeat_interleave(groups, 1)).flatten()
    state = state + merged(adapter.out) @ mixed + (0 if own else attention.o_proj(mixed))
    normed = layer.post_attention_layernorm(state)
    if adapter.gate_up is None:
        return state + _bend(adapter.mlp, normed)
    gates, ups = (merged(adapter.gate_up) @ normed).chunk(2)
    inner = layer.mlp.act_fn(layer.mlp.gate_proj(normed) + gates) * (layer.mlp.up_proj(normed) + ups)
    grown: Tensor = state + layer.mlp.down_proj(inner) + merged(adapter.mlp) @ inner
    return grown


def exit_states(naive: Naive, module: TwoStreams, text: list[int], gate: int) -> Tensor:
    """[width] what the LITE-style exit gives to the LM head."""
    state, norm, found = naive.last_states(text)[gate], naive.model.model.norm, module.exits.of(gate)
    assert found.gain is not None
    normed: Tensor = norm(state + _bend(found.change, norm(state))) * found.gain.double()
    return normed


Guess = Callable[[list[int], int], Tensor]


def guess(naive: Naive, module: TwoStreams, source: str, first: int, gate: int) -> Guess:
    """Draft log-probabilities [vocabulary] after a text, of which so many tokens are drafted."""
    model = naive.model

    def logits(text: list[int], drafted: int) -> Tensor:
        if source == "exit":
            return model.lm_head(exit_states(naive, module, text, gate))  # type: ignore[no-any-return]
        if source == "slow":
            return naive.logits(naive.last_states(text)[gate])
        if module.features:
            return naive.logits(own_states(naive, module, text, drafted, first, gate)[-1])
        return naive.logits(accelerated_states(naive, module, text, first, gate)[-1])

    return lambda text, drafted: logits(text, drafted).log_softmax(-1)


def beam_drafter(guess: Guess, draft_tokens: int, width: int, confidence: float = 0.0) -> TreeDrafter:
    """Every path of a draft that keeps the ``width`` likeliest continuations at each depth."""

    def draft(text: list[int], budget: int) -> list[list[int]]:
        kept: list[tuple[float, list[int]]] = [(0.0, [])]
        paths: list[list[int]] = [[]]
        for _ in range(min(draft_tokens, budget)):
            grown = [
                (share + log_share, [*path, token])
                for share, path in kept
                for token, log_share in enumerate(guess([*text, *path], len(path)).tolist())
            ]
            kept = sorted(grown, reverse=True)[:width]
            if kept[0][0] < torch.tensor(max(confidence, 1e-300), dtype=torch.float64).log():
                break
            paths += [path for _, path in kept]
        return paths

    return draft
