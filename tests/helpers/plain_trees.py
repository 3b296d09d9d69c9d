"""Trees of draft methods by their definitions: every text is scored from its beginning, and nothing is remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod

import torch
from torch import Tensor

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.drafting.grow import Frontier
from benchctl.decoding.sampling import Sampling

Text = tuple[int, ...]
Model = Callable[[Text], Tensor]  # probabilities [vocabulary] after a text


def table(seed: int, sampling: Sampling, vocabulary: int) -> Model:
    """A language model that is a table: warped probabilities after each text."""

    @cache
    def probs(text: Text) -> Tensor:
        mixed = seed * 1009 + sum((token + 1) * 31**place for place, token in enumerate(text))
        logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(mixed), dtype=torch.float64)
        return sampling.probs(1.5 * logits)[0]

    return probs


class Expanding:
    """An ``expand`` that a table answers; it finds the text of each node by the parents it is given."""

    def __init__(self, model: Model) -> None:
        self._model, self.texts = model, list[Text]()

    def __call__(self, frontier: Frontier) -> Tensor:
        pairs = zip(frontier.tokens, frontier.parents, strict=True)
        fresh = [(*self.texts[parent], token) for token, parent in pairs] if frontier.depth else [()]
        self.texts += fresh
        return torch.stack([self._model(text) for text in fresh])


def texts_of(draft: Draft) -> list[Text]:
    """The text that each row ends."""
    texts: list[Text] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        texts.append((token,) if parent == ROOT else (*texts[parent], token))
    return texts


def chance(model: Model, text: Text) -> float:
    return prod(float(model(text[:at])[token]) for at, token in enumerate(text))


def ranked(model: Model, text: Text) -> list[int]:
    """All tokens behind a text, the likeliest first."""
    tokens: list[int] = model(text).sort(descending=True, stable=True).indices.tolist()
    return tokens


def scored_by_eagle(model: Model, width: int, depth: int) -> dict[Text, float]:
    """All candidates of EAGLE-2, each frontier expanded in full."""
    scored: dict[Text, float] = {}
    frontier: list[Text] = [()]
    for _ in range(depth):
        behind = [(*text, token) for text in frontier for token in ranked(model, text)[:width]]
        newest = {text: chance(model, text) for text in behind}
        scored |= newest
        frontier = sorted(newest, key=lambda text: -newest[text])[:width]
    return scored


def likeliest(model: Model, width: int, depth: int, nodes: int, confidence: float = 0.0) -> list[Text]:
    scored = scored_by_eagle(model, width, depth)
    return [text for text in sorted(scored, key=lambda text: -scored[text])[:nodes] if scored[text] >= confidence]


def of_shape(model: Model, shape: Sequence[Text]) -> list[Text]:
    """The texts of paths of ranks."""
    texts = []
    for path in shape:
        text: Text = ()
        for rank in path:
            text = (*text, ranked(model, text)[rank])
        texts.append(text)
    return texts


def dyspec(model: Model, depth: int, nodes: int, confidence: float = 0.0) -> list[Text]:
    """By looking at every possible next child at each step: the one with the largest key of algorithm 1."""
    tree: list[Text] = []
    while len(tree) < nodes:
        keys: dict[Text, float] = {}
        for text in [(), *tree]:
            drawn = [other[-1] for other in tree if len(other) == len(text) + 1 and other[:-1] == text]
            left = 1.0 - sum(float(model(text)[token]) for token in drawn)
            if len(text) < depth and len(drawn) < len(model(text)):
                keys[text] = chance(model, text) * left
        if max(keys.values(), default=-1.0) < confidence:
            return tree
        text = max(keys, key=keys.__getitem__)
        tree.append((*text, next(token for token in ranked(model, text) if (*text, token) not in tree)))
    return tree


def sequoia(ranks: Sequence[float], nodes: int, depth: int) -> float:
    """Tokens that the best tree of so many nodes and levels gets accepted: the paper's dynamic programme."""
    if nodes == 0 or depth == 0:
        return 0.0

    def behind(first: int, left: int) -> float:
        """Of children of ranks ``first`` and on, with so many nodes."""
        if first == len(ranks) or left == 0:
            return 0.0
        with_child = (
            ranks[first] * (1 + sequoia(ranks, size - 1, depth - 1)) + behind(first + 1, left - size)
            for size in range(1, left + 1)
        )
        return max(behind(first + 1, left), *with_child)

    return behind(0, nodes)
