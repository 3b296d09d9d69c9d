"""What a step of the baseline has to read from memory: the bound below which no kernel can bring its time."""

from __future__ import annotations

from dataclasses import dataclass

from benchctl.decoding.layers import Experts
from benchctl.decoding.target import Target


@dataclass(frozen=True)
class Traffic:
    """Bytes that a step of one row at full depth reads: of weights, and of keys and values for each token before it and
    its own. 0 where that cannot be said."""

    step_bytes: int = 0
    cache_token_bytes: int = 0


def traffic_of(target: Target) -> Traffic:
    """Of a target's layers, final norm and head, each weight read once; of experts those that a token goes to. The one
    row of the embedding that a token takes is left out.

    Not said of a target with an encoder, nor of one that looks back through a window: what their caches cost does not
    grow with the text.

    A target of one layer whose weights are 1,000 numbers, a head of 500 and keys and values of 8 each in float32:
    `step_bytes` 6,000, `cache_token_bytes` 64.
    """
    if target.encoder is not None or any(block.attention.window is not None for block in target.blocks):
        return Traffic()
    step_bytes = target.final_norm.gain.nbytes + target.lm_head.weight.nbytes
    cache_token_bytes = 0
    for block in target.blocks:
        attention = block.attention
        linears = [attention.qkv, attention.out]
        norms = (block.attention_norm, block.mlp_norm, attention.query_norm, attention.key_norm)
        if isinstance(block.mlp, Experts):
            of_experts = block.mlp.gate_up.nbytes + block.mlp.down.nbytes
            step_bytes += block.mlp.router.nbytes + of_experts * block.mlp.top_k // len(block.mlp.gate_up)
        else:
            linears += [block.mlp.gate_up, block.mlp.down]
        step_bytes += sum(linear.weight.nbytes for linear in linears)
        step_bytes += sum(linear.bias.nbytes for linear in linears if linear.bias is not None)
        step_bytes += sum(norm.gain.nbytes for norm in norms if norm is not None)
        cache_token_bytes += 2 * attention.kv_heads * attention.head_dim * target.dtype.itemsize
    return Traffic(step_bytes, cache_token_bytes)
