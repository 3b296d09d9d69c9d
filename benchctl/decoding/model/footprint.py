"""What a model takes in memory, by its configuration alone: nothing is read but that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchctl.decoding.model.kernels import Linear, packed_bytes
from benchctl.decoding.model.layers import Experts, Layer, Mlp
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


def dense_mlp(block: Layer) -> Mlp | None:
    """The MLP that every row goes through, which may be the shared one of a mixture of experts."""
    return block.mlp.shared if isinstance(block.mlp, Experts) else block.mlp


def products(block: Layer) -> Iterator[Linear]:
    """The weight products of a layer, apart from those of experts that only some rows go to."""
    for part in (block.attention, dense_mlp(block), block.cross):
        yield from (value for value in vars(part or object).values() if isinstance(value, Linear))


def read_bytes(block: Layer) -> int:
    """Of the weights that a row reads in a layer, each once: of experts those that a token goes to."""
    mlp, size = block.mlp, sum(tensor.nbytes for norm in block.norms for tensor in norm.tensors)
    for product in products(block):
        size += product.weight_bytes + (0 if product.bias is None else product.bias.nbytes)
    if isinstance(mlp, Experts):
        size += _bytes(mlp.router, mlp.router_bias, mlp.shared_gate)
        size += _bytes(mlp.gate_up, mlp.down, mlp.gate_up_bias, mlp.down_bias) * mlp.top_k // len(mlp.gate_up)
    return size + _bytes(block.attention.sinks)


def _bytes(*tensors: Tensor | None) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def footprint(target: Target, device: str, weights: str = "auto", layerwise: bool = True) -> Footprint:
    """What Target.load of an outlined ``target`` with these ``weights`` takes, by formula.

    Read ``layerwise``, a layer is held in two forms at a time, and so are at the end the embedding and the LM head
    where they are held in another form. Otherwise transformers maps the file, of F bytes, and converts its weights to W
    bytes where the dtype is another one. They go to the device layer by layer. On a CPU the weights of small models in
    float32, and those in float16, become other forms, and are held next to the file until all are read.
    """
    if target.info.opaque:
        held, stored = target.parameters * target.dtype.itemsize, target.config.dtype or torch.float32
        read = held + (target.parameters * stored.itemsize if stored != target.dtype else 0)
        return Footprint(held, held, read) if device != "cpu" else Footprint(held, read, read)
    embedding, head = target.embedding.nbytes, target.lm_head.weight.nbytes
    matrices = [product.weight for block in target.blocks for product in products(block)]
    in_layers = sum(matrix.nbytes for matrix in matrices)
    plain = target.parameters * target.dtype.itemsize
    stored = target.config.dtype or torch.float32
    converted = stored != target.dtype
    file = target.parameters * stored.itemsize
    joined = sum(block.attention.qkv.weight.nbytes for block in target.blocks)
    joined += sum(mlp.gate_up.weight.nbytes for mlp in map(dense_mlp, target.blocks) if mlp is not None)
    tied = head * bool(target.config.tie_word_embeddings)
    count = forms(target, device, weights)
    if count == 0.5:
        # All layers, then also the embedding and the LM head in both forms.
        packed = sum(map(packed_bytes, matrices))
        positions = 0 if target.positions is None else target.positions.nbytes
        held = packed + packed_bytes(target.lm_head.weight) + embedding // 2 + positions
        one_layer = packed + embedding + head - tied + (in_layers + joined) // target.layers
        at_last = held + embedding + head - tied
    elif count == 2:
        held = plain + in_layers + head + tied
        one_layer = plain + in_layers + (in_layers + joined) // target.layers
        at_last = held + head - tied
    else:
        mapped = device == "cpu" and not (layerwise or converted)  # joined copies are next to the mapped file
        held = plain + joined * mapped
        one_layer = at_last = held + joined // target.layers
    if layerwise:
        peak = max(one_layer, at_last)
        largest = embedding // target.dtype.itemsize * stored.itemsize  # of the weights, as the file has it
        return Footprint(held, peak, peak if device == "cpu" else largest)
    read = file + plain * converted
    if device != "cpu":
        return Footprint(held, one_layer, read)
    peak = max(read, at_last if count != 1 else held) if converted else file + (held if count != 1 else joined)
    return Footprint(held, peak, peak)


def forms(target: Target, device: str, weights: str = "auto") -> float:
    """Bytes that products hold of each weight of an outlined ``target``, as a multiple of those of its dtype."""
    if weights == "float16":
        return 0.5
    packed = target.form == "fast" and target.dtype == torch.float32 and device == "cpu"
    return 2 if packed and torch.backends.mkldnn.is_available() else 1  # type: ignore[no-untyped-call]
