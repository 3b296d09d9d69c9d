"""Passes over a target outside a run: what one row costs, and several rows as verification needs them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchctl.decoding.kv.cache import Cache
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import likeliest

_TEXT_TOKENS, _ROWS = 64, 4
_FEWEST_PASSES, _MOST_PASSES, _ENOUGH_S = 3, 12, 1.0


class Passes:
    """A decoder-only target behind a text of so many tokens, ready for passes of up to ``most_rows`` rows."""

    def __init__(self, target: Target, text_tokens: int, most_rows: int) -> None:
        self.target, self._start = target, text_tokens
        self._cache: Cache = target.new_cache(text_tokens + most_rows)
        layout = target.layout(0, range(text_tokens))
        layout.tokens = self._tokens(text_tokens)
        target.run(target.embed(layout.tokens, range(text_tokens)), self._cache, 0, target.layers, layout)

    def run(self, rows: int) -> None:
        """One pass of a chain of rows behind the text, from the embedding to the likeliest tokens on the host."""
        target, positions = self.target, range(self._start, self._start + rows)
        layout = target.layout(self._start, positions)
        layout.tokens = self._tokens(rows)
        states = target.run(target.embed(layout.tokens, positions), self._cache, 0, target.layers, layout)
        likeliest(target.head(states))

    def _tokens(self, count: int) -> list[int]:
        return [index * 7919 % self.target.vocabulary for index in range(count)]


@torch.inference_mode()
def one_row_cost(target: Target, clock: Callable[[], float]) -> float | None:
    """Seconds of a pass of one row / those of one of four rows, of the best pass each; None with an encoder or experts.

    Both read the same weights, so above 1 the kernels of one row are slow on this machine. The baseline takes one row
    and verification several, whose speed-ups are then too high.
    """
    if target.encoder is not None or target.info.experts_per_token:
        return None
    passes = Passes(target, min(_TEXT_TOKENS, target.context_tokens - _ROWS), _ROWS)
    best_s, begun_s = {1: float("inf"), _ROWS: float("inf")}, clock()
    for number in range(_MOST_PASSES):
        for rows in best_s:
            started_s = clock()
            passes.run(rows)
            best_s[rows] = min(best_s[rows], clock() - started_s)
        if number + 1 >= _FEWEST_PASSES and clock() - begun_s > _ENOUGH_S:
            break
    return best_s[1] / best_s[_ROWS]
