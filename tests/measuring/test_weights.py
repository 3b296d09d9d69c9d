"""The guard of a target's weights: what a run leaves is no weight, and a changed weight is found."""

from __future__ import annotations

from plain_t5 import tiny_t5
from refusals import refused

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.measuring.weights import WeightGuard
from benchctl.registry import build


def test_a_prompt_that_an_encoder_reads_changes_no_weight() -> None:
    """The keys and values of the encoded prompt were part of the target, so every run of a T5 target was refused.

    The cache of the sequence holds them now.
    """
    target = Target(tiny_t5(), None)
    target.next_logits([9])  # as loading does
    guard = WeightGuard(target)
    for label, prompt in (("autoregressive", [3, 4, 5]), ("early_exit[exits=2,threshold=0.1]", [7, 2])):
        method = build(label)
        method.prepare(target)
        decode(method, target, DecodeRequest(prompt, 4))
        guard.check(label)


def test_a_changed_weight_of_cross_attention_is_found() -> None:
    target = Target(tiny_t5(), None)
    guard = WeightGuard(target)
    cross = target.blocks[1].cross
    assert cross is not None
    cross.weights[2].add_(1.0)
    with refused("weights_changed", "blocks.1.cross"):
        guard.check("nobody")
