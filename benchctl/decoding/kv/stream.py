"""One sequence on its way through a model: a layer runs only the open rows it lacks, all of them in one batch.

That makes "verify a draft", "verify from layer E" and "compute skipped layers later" the same operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from benchctl.decoding.kv.cache import Cache, Layout, branches
from benchctl.decoding.model.layers import Parts, run_parts
from benchctl.decoding.model.target import Target

RunRows = Callable[[Tensor, Cache, Layout], Tensor]
"""A method's own pass: residuals [rows, width] before the first of its layers in, those behind the last one out.

It writes keys and values of these rows into the cache, from slot ``layout.start`` on, in each of the layers.
"""


class LayerRun(NamedTuple):
    """One run of so many rows through layers ``first`` .. ``last`` - 1.

    ``sublayers`` is how many attentions and MLPs of these layers ran in a detour, whose rows are forgotten; otherwise
    it is None, and all of them ran.
    """

    first: int
    last: int
    rows: int
    sublayers: int | None = None


class Stream:
    """Rows of one sequence.

    base    cache slot, and position, of the first open row: one that is uncommitted or has layers still to run
    text    ids of all rows, committed and open; parents: the open row each one continues, -1 for the text before them
    states  [open rows, width] each row's residual after the last layer it ran
    runs    every run through layers, which the loop counts passes, rows and layers from
    taps    layer counts, ascending, that `features` are wanted of: set before the first pass; rows then run all layers
            in one pass
    features  for each tap [rows of the latest pass, width]: their residuals after so many layers
    """

    def __init__(self, target: Target, capacity: int) -> None:
        self.target = target
        self.cache = target.new_cache(capacity)
        self.base = 0
        self.text: list[int] = []
        self.runs: list[LayerRun] = []
        self.taps: tuple[int, ...] = ()
        self.features: tuple[Tensor, ...] = ()
        self._parents: list[int] = []
        self._tree: tuple[list[int], list[list[int]]] | None = None
        self._is_chain, self._last_only = True, False
        self._states: Tensor | None = None

    @property
    def rows(self) -> int:
        return len(self.text) - self.base

    @property
    def length(self) -> int:
        """Rows committed or open."""
        return len(self.text)

    def push(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        states: Tensor | None = None,
        last_only: bool = False,
    ) -> None:
        """Add open rows; ``parents`` are indices of open rows, by default each row continues the one before it.

        ``states`` [rows, width] stand in for the embeddings of rows that are no tokens; such rows cannot be committed,
        and their ``tokens`` only count them. Where other rows have run layers already, `pass_by` these. ``last_only``
        promises that nothing but the state of the last row is read before these rows are committed.
        """
        if states is not None:
            self._states = torch.cat((self.states, states)) if self.rows else states
        chain = range(self.rows - 1, self.rows - 1 + len(tokens))
        self._is_chain = self._is_chain and (parents is None or list(parents) == list(chain))
        self._parents += chain if parents is None else parents
        self._tree, self._last_only = None, last_only
        self.text += tokens

    @property
    def states(self) -> Tensor:
        """[open rows, width], rows pushed since the last call embedded."""
        done = 0 if self._states is None else self._states.shape[0]
        if done < self.rows:
            fresh = self.target.embed(self.text[self.base + done :], self._branches()[0][done:])
            self._states = fresh if self._states is None else torch.cat((self._states, fresh))
        assert self._states is not None, "a stream without open rows has no states"
        return self._states

    def advance(self, last: int | None = None) -> None:
        """Run every open row through the layers below ``last`` (default all) that it has not run yet."""
        last = self.target.layers if last is None else last
        lengths, absent = self.cache.lengths, self.cache.absent
        first = 0
        while first < last:
            start, group = lengths[first], first
            while group < last and lengths[group] == start and absent[group] == absent[first]:
                group += 1
            if start < self.length:
                layout = self._layout(start, first)
                self.runs.append(LayerRun(first, group, self.length - start))
                if self.taps and (first, group, start) != (0, self.target.layers, self.base):
                    raise ValueError("rows of a stream with taps run all layers in one pass")
                states, features = self._states_from(start), list[Tensor]()
                for below, above in pairwise((first, *self.taps, group)):
                    if below < above:
                        states = self.target.run(states, self.cache, below, above, layout)
                    features.append(states)
                self.features = tuple(features[:-1])
                self._replace_states(start, states)
            first = group

    def run_rows(self, first: int, last: int, run: RunRows, rows: int | None = None) -> None:
        """Run rows through layers ``first`` .. ``last`` - 1 in a method's own way; layers below run as in advance.

        These are all open rows that layer ``first`` lacks, or only the last ``rows`` of them. Raises ValueError where
        the layers lack other rows, and where earlier rows are absent from some of the layers only.
        """
        self.advance(first)
        lengths, absent = self.cache.lengths, self.cache.absent
        start = lengths[first] if rows is None else self.length - rows
        if set(lengths[first:last]) - {start} or not self.base <= start < self.length:
            raise ValueError(f"layers {first} to {last} do not lack exactly the rows from {start} to {self.length}")
        if any(slots != absent[first] for slots in absent[first:last]):
            raise ValueError(f"rows are absent from some of layers {first} to {last} only; run these one by one")
        states = run(self._states_from(start), self.cache, self._layout(start, first))
        if set(lengths[first:last]) - {self.length}:
            raise ValueError(f"`run` gave layers {first} to {last} no keys and values of the rows from {start} on")
        self.runs.append(LayerRun(first, last, self.length - start))
        self._replace_states(start, states)

    def detour(
        self,
        states: Tensor,
        parts: Sequence[Parts],
        first: int = 0,
        *,
        start: int | None = None,
        earlier: int = 0,
        apart: bool = False,
        view: Cache | None = None,
        choose: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """Residuals of rows that run only these ``parts`` of layers ``first`` .. and are then forgotten.

        states   [rows, width] residuals before layer ``first``
        start    position of the first row, which sees the text before it; by default behind all finished rows
        earlier  rows of detours just before this one that its rows continue; they stand from ``start`` on
        apart    all rows stand at ``start`` and do not see each other
        view     a cache that is read instead of the stream's, see Cache.hold; rows stay in it, behind ``earlier`` ones
        choose   as for Layout; it may fill the ``view``

        Finished rows from ``start`` on stay as they are, and are not seen. No row may wait halfway or have passed a
        layer by, and ``view`` goes with neither ``start`` nor ``apart``: ValueError.
        """
        if view is not None and (apart or start is not None):
            raise ValueError("rows that see a view stand one behind the other, behind all finished rows")
        if set(self.cache.lengths) != {self.base} or any(self.cache.absent):
            raise ValueError("rows make a detour only where all layers hold the same rows of the text")
        hidden = 0 if start is None else self.base - start
        rows = earlier + states.shape[0]
        parents = [-1] * rows if apart else [-1, *range(hidden, hidden + rows - 1)]
        positions, ancestors = branches(self.base - hidden, [*range(-1, hidden - 1), *parents])
        seen = ancestors if hidden or apart else None
        layers = self.target.blocks[first : first + len(parts)]
        if view is not None:
            layout = self.target.layout(view.lengths[first], positions[earlier:])
            layout.windows, layout.choose = False, choose
            states = run_parts(layers, parts, first, states, view, layout)
        else:
            layout = self.target.layout(self.base - hidden, positions, seen, hidden + earlier)
            states = run_parts(layers, parts, first, states, self.cache, layout)
            self.cache.truncate(self.base)
        self.runs.append(LayerRun(first, first + len(parts), len(states), sum(map(sum, parts))))
        return states

    def _states_from(self, start: int) -> Tensor:
        finished = start - self.base
        return self.states[finished:] if finished else self.states

    def _replace_states(self, start: int, states: Tensor) -> None:
        finished = start - self.base
        self._states = torch.cat((self.states[:finished], states)) if finished else states

    def fill(self, first: int, stand_ins: Tensor | None = None) -> None:
        """Give layers ``first`` .. keys and values for the last open row, which runs them neither now nor later.

        They are made of ``stand_ins`` [layers from first on, or 1 for all, width], by default the row's present state.
        """
        start = self._leave(first)
        states = self.states[-1:] if stand_ins is None else stand_ins
        self.target.fill(states.expand(self.target.layers - first, -1), self.cache, first, self._layout(start, first))

    def skip(self, first: int) -> None:
        """Let the last open row pass layers ``first`` .. by: no row sees it there, and it runs them no more."""
        start = self._leave(first)
        for layer in range(first, self.target.layers):
            self.cache.skip(layer, start)

    def pass_by(self, first: int, last: int) -> None:
        """Let all open rows that layers ``first`` .. ``last`` - 1 lack pass them by, likewise."""
        for layer in range(first, last):
            if self.cache.lengths[layer] < self.length:
                self.cache.skip(layer, self.length - 1)

    def _leave(self, first: int) -> int:
        """The slot of the last open row; all others must be ahead of it in layers ``first`` .. ."""
        start = self.length - 1
        if self.cache.lengths[first] != start:
            raise ValueError("earlier rows still wait for these layers; run them before this one is filled in")
        return start

    def logits(self, first: int = 0, end: int | None = None) -> Tensor:
        """Logits [rows, vocabulary] of the states of open rows ``first`` to ``end`` as they are."""
        states = self.states
        whole = first == 0 and end in (None, len(states))
        return self.target.head(states if whole else states[first:end])

    def keep(self, rows: Sequence[int]) -> None:
        """Commit these open rows (ascending, each the parent of the next) and forget the others."""
        kept = len(rows)
        if self._is_chain and kept == self.rows:  # those that ran all layers leave, the others wait
            finished = self.cache.lengths[-1] - self.base
            if finished == self.rows:
                self._forget_all(finished)
            elif finished:
                self._states = self.states[finished:]
                self.base += finished
                self._parents = list(range(-1, self.rows - 1))
            return
        slots = [self.base + row for row in rows]
        self.cache.keep(self.base, slots)
        # A layer never holds more rows than the one below it, so what the last layer holds is finished.
        finished = self.cache.lengths[-1] - self.base
        waiting = self.states[list(rows[finished:])] if finished < kept else None
        self.text[self.base :] = [self.text[slot] for slot in slots]
        if waiting is None:
            self._forget_all(kept)
            return
        self._parents = list(range(-1, kept - 1 - finished))
        self._states = waiting
        self._is_chain = True
        self.base += finished

    def _forget_all(self, kept: int) -> None:
        self.base += kept
        self._parents, self._states, self._is_chain = [], None, True

    def truncate(self, length: int) -> None:
        """Go back to the first ``length`` rows of a stream without open rows."""
        if self.rows:
            raise ValueError("only a stream without open rows can be truncated")
        self.cache.truncate(length)
        del self.text[length:]
        self.base = self.length

    def _branches(self) -> tuple[Sequence[int], list[list[int]] | None]:
        """Positions of the open rows, and the open rows that each one sees; None for a chain."""
        if self._is_chain:
            return range(self.base, self.length), None
        if self._tree is None:
            self._tree = branches(self.base, self._parents)
        return self._tree

    def _layout(self, start: int, layer: int) -> Layout:
        """Of the open rows from slot ``start`` on in ``layer``, where its absent slots are hidden."""
        positions, ancestors = self._branches()
        layout = self.target.layout(self.base, positions, ancestors, start - self.base)
        layout.absent_bias = self.cache.absent_bias(layer, self.length)
        layout.tokens, layout.last_only = self.text[start:], self._last_only
        return layout
