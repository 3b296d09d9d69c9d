"""Side layers: committed and open rows, in any order of calls, are as in one pass over each branch alone."""

from __future__ import annotations

import random

import pytest
import torch
from tiny import tiny_target
from torch import Tensor

from benchctl.decoding.drafting.side import SideLayers
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.target import Target


class Plain:
    """Side layers that are the target's own, and what they were given: residuals of the text, and of open rows."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.side = SideLayers(target.blocks, target.rotary, target.rotary.real.new_empty(0), 4)
        self.text: list[int] = []
        self.open: list[tuple[int, int]] = []  # token and parent

    def read(self, tokens: list[int]) -> None:
        states = self.side.read(self.target.embed_anywhere(tokens))
        self.text, self.open = self.text + tokens, []
        for row, state in enumerate(states):
            self._check(state, self.text[: len(self.text) - len(tokens) + row + 1])

    def grow(self, rows: list[tuple[int, int]]) -> None:
        states = self.side.grow(
            self.target.embed_anywhere([token for token, _ in rows]), [parent for _, parent in rows]
        )
        first = len(self.open)
        self.open += rows
        for row, state in enumerate(states, first):
            self._check(state, [*self.text, *self._branch(row)])

    def truncate(self, length: int) -> None:
        self.side.truncate(length)
        self.text, self.open = self.text[:length], []

    def _branch(self, row: int) -> list[int]:
        return [] if row < 0 else [*self._branch(self.open[row][1]), self.open[row][0]]

    def _check(self, state: Tensor, text: list[int]) -> None:
        alone = Stream(self.target, len(text))
        alone.push(text)
        alone.advance()
        torch.testing.assert_close(state, alone.states[-1], rtol=0.0, atol=1e-12)

    def audit(self) -> None:
        """Keys and values of the text equal those of a fresh pass."""
        assert self.side.length == len(self.text) and set(self.side.cache.lengths) == {len(self.text)}
        fresh = Stream(self.target, len(self.text))
        fresh.push(self.text)
        fresh.advance()
        for ours, theirs in zip(self.side.cache.kv, fresh.cache.kv, strict=True):
            held = slice(0, len(self.text))
            torch.testing.assert_close(ours[:, held], theirs[:, held], rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("variant", ["llama", "mistral_window", "gemma"])
@torch.inference_mode()
def test_rows_read_grown_and_forgotten_at_random_are_as_in_passes_over_each_branch(variant: str, seed: int) -> None:
    chance, plain = random.Random(seed), Plain(tiny_target(variant, layers=2, seed=1))
    plain.read([chance.randrange(90) for _ in range(chance.choice((1, 5, 19)))])
    for _ in range(12):
        what = chance.random()
        if what < 0.3:
            plain.read([chance.randrange(90) for _ in range(chance.randint(1, 4))])
        elif what < 0.8:
            rows: list[tuple[int, int]] = []
            for _ in range(chance.randint(1, 5)):  # rows of one call cannot be each other's parents in a draft
                rows.append((chance.randrange(90), chance.randint(-1, len(plain.open) - 1)))
            plain.grow(rows)
        elif what < 0.9:
            plain.side.forget()
            plain.open = []
            plain.audit()
        else:
            plain.truncate(chance.randint(1, len(plain.text)))
            plain.audit()


@torch.inference_mode()
def test_the_first_attention_reads_what_it_is_given_instead_of_its_norm() -> None:
    target = tiny_target("llama", layers=2)
    x = target.embed_anywhere([5, 6, 7])
    like = target.rotary.real.new_empty(0)
    norm = target.blocks[0].attention_norm
    ours, plain = (SideLayers(target.blocks, target.rotary, like, 4) for _ in range(2))
    assert torch.equal(ours.read(x, norm(x)), plain.read(x))
    assert not torch.allclose(ours.read(x, norm(2 * x + 1)), plain.read(x))
