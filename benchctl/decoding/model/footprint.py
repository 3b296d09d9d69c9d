"""What a model takes in memory, by its configuration alone: nothing is read but that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchctl.decoding.model.kernels import Linear, layouts
from benchctl.decoding.model.layers import Mlp
from benchctl.decoding.model.target import Target


@dataclass(frozen=True)
class Footprint:
    """Bytes of a model on the device and on the host.

    held        on the device once it is loaded: weights in all layouts that kernels read
    device_peak, host_peak
                the most at a time while it is loaded; on a CPU the host is the device
    """

    held: int
    device_peak: int
    host_peak: int


def products(target: Target) -> Iterator[Linear]:
    """The weight products of all layers."""
    for block in target.blocks:
        for part in (block.attention, block.mlp, block.cross):
            yield from (value for value in vars(part or object).values() if isinstance(value, Linear))


def footprint(target: Target, device: str) -> Footprint:
    """What Target.load of an outlined ``target`` takes, by formula.

    transformers maps the file, of F bytes, and converts its weights to W bytes where the dtype is another one. They go
    to the device layer by layer. On a CPU float32 weights of small models become a second and a third form.
    """
    size, head = target.dtype.itemsize, target.lm_head.weight.nbytes
    weights, in_layers = target.parameters * size, sum(product.weight.nbytes for product in products(target))
    stored = target.config.dtype or torch.float32
    converted = stored != target.dtype
    file = target.parameters * stored.itemsize
    read = file + weights * converted
    joined = sum(block.attention.qkv.weight.nbytes for block in target.blocks)
    joined += sum(block.mlp.gate_up.weight.nbytes for block in target.blocks if isinstance(block.mlp, Mlp))
    if device != "cpu":
        return Footprint(weights, weights + joined // target.layers, read)
    forms = layouts(weights, target.dtype)
    if forms == 1:
        held = weights if converted else weights + joined  # joined copies, next to the mapped file
        return Footprint(held, max(read, held), max(read, held))
    tied = head * bool(target.config.tie_word_embeddings)
    held = weights + (forms - 1) * (in_layers + head) + tied
    peak = max(read, held + target.embedding.nbytes + head - tied) if converted else file + held
    return Footprint(held, peak, peak)
