"""Which sublayers a draft skips: a fixed set, the best of random sets (SWIFT), or the nearest states (CLaSp)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.layers import Parts

CHOICES = ("even", "search", "nearest")
NOTHING = Parts(attention=False, mlp=False)
_GOOD_SCORE, _MOST_FAILURES, _MOST_TRIES = 0.95, 300, 1000  # of a search, as in SWIFT's code


def read_list(text: str) -> dict[int, Parts]:
    """What runs of listed layers, by their index: 3+5a+8m skips layer 3, the attention of layer 5, the MLP of layer 8.

    Raises ValueError for other text. In labels layers count from 1.
    """
    if not re.fullmatch(r"[1-9]\d*[am]?(\+[1-9]\d*[am]?)*", text):
        raise ValueError(f"skip is {text!r}; it is {', '.join(CHOICES)} or a list such as 3+5a+8m")
    parts: dict[int, Parts] = {}
    for item in text.split("+"):
        kept = parts.get(index := int(item.rstrip("am")) - 1, Parts())
        parts[index] = Parts(kept.attention and item[-1] == "m", kept.mlp and item[-1] == "a")
    return parts


def even(layers: int, share: float) -> dict[int, Parts]:
    """Skips this share of the inner layers; the others are the first, the last, and evenly spaced ones between them."""
    gaps = layers - 1 - int((layers - 2) * share)
    kept = {(2 * number * (layers - 1) + gaps) // (2 * gaps) for number in range(gaps + 1)}  # rounded to the nearest
    return dict.fromkeys(set(range(layers)) - kept, NOTHING)


def all_but(layers: int, parts: Mapping[int, Parts]) -> tuple[Parts, ...]:
    """What runs of every layer, where ``parts`` says it of those that do not run whole."""
    return tuple(parts.get(index, Parts()) for index in range(layers))


class Tries(NamedTuple):
    """How far a search is; ``score`` is that of the set in use, ``failures`` are tries since it was found."""

    score: float = -1.0
    failures: int = 0
    tries: int = 0

    @property
    def end(self) -> bool:
        return self.score > _GOOD_SCORE or self.failures > _MOST_FAILURES or self.tries > _MOST_TRIES


class Search:
    """Random sets of sublayers, each scored on the first tokens of this answer; the best one is used.

    SWIFT, Xia et al. 2024, arXiv 2410.06916, by its code without the Bayesian optimisation of every 25th try. The
    first and the last layer always run. Ours: the first set is scored too.
    """

    def __init__(self, parts: Sequence[Parts], share: float, window: int) -> None:
        self.parts, self._window = tuple(parts), window
        self._skipped = int(2 * (len(parts) - 2) * share)
        self._generator = torch.Generator().manual_seed(0)
        self._state = Tries()

    def step(self, stream: Stream, answer: Sequence[int]) -> None:
        """Score one set, once the answer is long enough; ``stream`` holds all of its tokens but the last."""
        if self._state.end or len(answer) <= self._window + 1:
            return
        score, failures, tries = self._state
        parts = self._random() if tries else self.parts
        if (new_score := matchness(stream, parts, answer, self._window)) > score:
            self.parts, score, failures = parts, new_score, 0
        else:
            failures += 1
        self._state = Tries(score, failures, tries + 1)

    def _random(self) -> tuple[Parts, ...]:
        inner = len(self.parts) - 2
        drawn = set(torch.randperm(2 * inner, generator=self._generator)[: self._skipped].tolist())
        between = (Parts(index not in drawn, inner + index not in drawn) for index in range(inner))
        return (Parts(), *between, Parts())


def matchness(stream: Stream, parts: Sequence[Parts], answer: Sequence[int], window: int) -> float:
    """Share of the ``window`` tokens behind the first token of the answer that these sublayers give, in one pass.

    The rows see the prompt as the whole target left it, and each other.
    """
    start = stream.base - len(answer) + 1
    scored = answer[:window]
    states = stream.detour(stream.target.embed(scored, range(start, start + len(scored))), parts, start=start)
    likeliest: list[int] = stream.target.head(states).argmax(-1).tolist()
    return sum(map(int.__eq__, likeliest, answer[1 : window + 1])) / window


def nearest(stream: Stream, row: int, share: float) -> tuple[Parts, ...]:
    """Skips the layers that change least: by the dynamic programme of CLaSp, Chen et al. 2025, arXiv 2505.24196.

    ``row`` of the latest pass is the text's last row, and the stream's taps are 0, 1, .. layers. s(i, j) is a state
    after i layers of which j were skipped: of s(i - 1, j) through layer i and s(i - 1, j - 1) the one with the larger
    cosine to the whole target's state (the former if both are equal). The answer is the way to s(layers, skipped).
    """
    trail = torch.stack([states[row] for states in stream.features])  # [layers + 1, width]
    layers = len(trail) - 1
    skipped = int((layers - 2) * share)
    states, least = trail[:1], 0  # states[j - least] is s(i, j), where s(layers, skipped) can be reached from it
    ways: list[tuple[int, ...]] = [()]
    for layer in range(layers):
        run = stream.detour(states, (Parts(),), layer, start=stream.base - 1, apart=True)
        most = least + len(ways) - 1
        needed = range(max(least, skipped - (layers - layer - 1)), min(most + 1, skipped) + 1)
        near_run, near_skipped = (
            F.cosine_similarity(rows, trail[layer + 1], dim=-1).tolist() for rows in (run, states)
        )
        rows, next_ways = list[Tensor](), list[tuple[int, ...]]()
        for count in needed:
            keeps, skips = count - least, count - 1 - least
            if skips < 0 or (keeps < len(ways) and near_run[keeps] >= near_skipped[skips]):
                rows.append(run[keeps])
                next_ways.append(ways[keeps])
            else:
                rows.append(states[skips])
                next_ways.append((*ways[skips], layer))
        states, ways, least = torch.stack(rows), next_ways, needed.start
    return all_but(layers, dict.fromkeys(ways[0], NOTHING))
