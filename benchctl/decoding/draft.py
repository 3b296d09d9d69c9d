"""The rows proposed for one verification, as a tree below the root; a chain is the tree with one branch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

ROOT = -1  # the last committed token, whose keys and values are not cached yet


@dataclass(frozen=True, eq=False)
class Draft:
    """Drafted rows.

    tokens      [rows] proposed token ids
    parents     [rows] the row each one continues, ROOT for children of the root; a parent precedes its children
    scratch     [rows] True for rows that only ride along: never accepted, their logits go back to the drafter
    probs       [rows][vocabulary] the distribution each token was really drawn from, None for deterministic drafts;
                for siblings without replacement the one before any of them was removed; siblings may share a row
    replacement whether siblings were drawn independently (True) or without replacement (False)

    Siblings are tried in row order. Tokens (5, 7, 9), parents (ROOT, 0, ROOT) propose "5 7" and, besides, "9".
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    scratch: tuple[bool, ...] = ()
    probs: Sequence[Tensor] | None = None
    replacement: bool = True

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.parents)} parents")
        if self.scratch and len(self.scratch) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.scratch)} scratch marks")
        for row, parent in enumerate(self.parents):
            if not ROOT <= parent < row:
                raise ValueError(f"row {row} names parent {parent}; a parent must come before its child")
            if parent != ROOT and self.is_scratch(parent) and not self.is_scratch(row):
                raise ValueError(f"row {row} could be accepted, but its parent {parent} is scratch")

    @classmethod
    def chain(cls, tokens: Sequence[int], probs: Sequence[Tensor] | None = None) -> Draft:
        return cls(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)), probs=probs)

    @classmethod
    def merged(cls, paths: Iterable[tuple[int, ...]]) -> Draft:
        """A tree of paths from the root, in their order: 5 7 and 5 8 give rows 5 7 8, 7 and 8 below 5."""
        rows: dict[tuple[int, ...], int] = {(): ROOT}
        for path in paths:
            for end in range(1, len(path) + 1):
                rows.setdefault(path[:end], len(rows) - 1)
        drafted = [path for path in rows if path]
        return cls(tuple(path[-1] for path in drafted), tuple(rows[path[:-1]] for path in drafted))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """[rows] the tokens from the root to each row, its own the last."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            paths.append((*(paths[parent] if parent != ROOT else ()), token))
        return paths

    def is_scratch(self, row: int) -> bool:
        return bool(self.scratch) and self.scratch[row]

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """[rows] distance from the root, 1 for its children."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """Tokens along the deepest branch that can be accepted."""
        return max((d for row, d in enumerate(self.depths) if not self.is_scratch(row)), default=0)

    def depth_to(self, stop_ids: frozenset[int]) -> int:
        """Depth of the draft up to the first stop token of each branch; the acceptance rate divides by it.

        Tokens (5, 2, 7, 9), a chain, count 2 where 2 is a stop token.
        """
        if stop_ids.isdisjoint(self.tokens):
            return self.depth
        behind: set[int] = set()  # rows behind a stop token
        for row, parent in enumerate(self.parents):
            if parent in behind or (parent != ROOT and self.tokens[parent] in stop_ids):
                behind.add(row)
        rows = (row for row in range(len(self)) if row not in behind and not self.is_scratch(row))
        return max((self.depths[row] for row in rows), default=0)

    def children(self, parent: int) -> list[int]:
        """Acceptable rows that continue ``parent``, in row order."""
        return [row for row, p in enumerate(self.parents) if p == parent and not self.is_scratch(row)]
