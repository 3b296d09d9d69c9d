"""What a step ran, and the bare pass that runs as much: a plain chain of rows through the same layers and heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from benchctl.decoding.kv.cache import Cache
from benchctl.decoding.model.target import Target


@dataclass(frozen=True)
class Span:
    """Layers ``first`` .. ``last`` - 1 ran ``rows`` rows, the first of them in cache slot ``start``."""

    first: int
    last: int
    start: int
    rows: int


@dataclass(frozen=True)
class Work:
    """What there was to do while the clock ran.

    drafted  whether it verified a draft; else it is a whole step
    tokens   rows that began at the embedding
    spans    layers and the rows that they lacked, from the first layer up
    heads    rows of each product with the target's LM head; of a verification one for the root and all drafted rows
    argmax_rows  rows whose likeliest token had to reach the host
    """

    drafted: bool
    tokens: tuple[int, ...]
    spans: tuple[Span, ...]
    heads: tuple[int, ...]
    argmax_rows: int

    @property
    def layer_rows(self) -> int:
        """Rows of all layers together."""
        return sum((span.last - span.first) * span.rows for span in self.spans)


@dataclass(frozen=True)
class Bare:
    """Seconds of a bare pass: embedding, masks and layers; then heads, with the transfer of the likeliest tokens."""

    layers_s: float
    heads_s: float

    @property
    def seconds(self) -> float:
        return self.layers_s + self.heads_s


def spans_of(starts: Sequence[int], rows: Sequence[int]) -> tuple[Span, ...]:
    """Neighbouring layers that run the same rows together; ``starts`` and ``rows`` are by layer.

    Example: starts (9, 9, 7) and rows (1, 1, 3) give Span(0, 2, 9, 1) and Span(2, 3, 7, 3).
    """
    spans = []
    for (start, count), group in groupby(range(len(rows)), key=lambda layer: (starts[layer], rows[layer])):
        layers = list(group)
        if count:
            spans.append(Span(layers[0], layers[-1] + 1, start, count))
    return tuple(spans)


def run_bare(target: Target, cache: Cache, work: Work, stored: Tensor, clock: Callable[[], float]) -> Bare:
    """Time the work as a plain chain on the cache that is about to do it, and leave its books as they were.

    The rows go where the coming pass will write its own, so nothing that is committed is lost. ``stored`` [rows, width]
    stands for rows that have run lower layers before.
    """
    lengths = list(cache.lengths)
    begin_s = clock()
    x = target.embed(work.tokens) if work.tokens else stored[:0]
    for span in work.spans:
        x = _with_stored(x, span.rows, stored)
        assert x.shape[0] == span.rows, "a layer lacks all rows that the layers below it lacked"
        at = min(
            span.start, target.context_tokens - span.rows
        )  # a tree's rows share positions, those of a chain do not
        layout = target.layout(span.start, range(at, at + span.rows))
        x = target.run(x, cache, span.first, span.last, layout)
    layers_s = clock() - begin_s
    logits = x[:0]
    for rows in work.heads:
        x = _with_stored(x, rows, stored)
        logits = target.head(x[-rows:])
    logits[: work.argmax_rows].argmax(-1).tolist()
    heads_s = clock() - begin_s - layers_s
    cache.lengths = lengths
    return Bare(layers_s, heads_s)


def _with_stored(x: Tensor, rows: int, stored: Tensor) -> Tensor:
    """At least ``rows`` rows: those that lower layers ran before come first."""
    missing = rows - x.shape[0]
    return torch.cat((stored[:missing], x)) if missing > 0 else x
