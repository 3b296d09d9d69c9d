"""One sequence on its way through a model: committed rows in the cache, uncommitted ones behind them.

Rows may stand at different depths. A layer runs only the rows it lacks, all of them in one batch, which makes
"verify a draft", "verify from layer E on stored states" and "compute skipped layers later" the same operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchctl.decoding.kv.cache import Cache
from benchctl.decoding.kv.layout import Layout
from benchctl.decoding.model.target import Target

Accompanied = Callable[[Tensor, int, Cache, Layout], tuple[Tensor, list[Tensor]]]
Chosen = Callable[[Tensor, Sequence[int], Cache, Layout], Tensor]


class Stream:
    """Rows of one sequence.

    base    cache slot, and position, of the first open row: one that is uncommitted or has layers still to run
    tokens  ids of the open rows; parents: the open row each one continues, -1 for the text before them
    states  [open rows, width] each row's residual after the last layer it ran
    """

    def __init__(self, target: Target, capacity: int, cache: Cache | None = None) -> None:
        self.target = target
        self.cache = cache or target.new_cache(capacity)
        self.base = 0
        self.tokens: list[int] = []
        self._parents: list[int] = []
        self._is_chain = True
        self._states: Tensor | None = None

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        """Rows committed or open."""
        return self.base + self.rows

    def push(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """Add open rows; ``parents`` are indices of open rows, by default each row continues the one before it."""
        chain = range(self.rows - 1, self.rows - 1 + len(tokens))
        self._is_chain = self._is_chain and (parents is None or list(parents) == list(chain))
        self._parents += chain if parents is None else parents
        self.tokens += tokens

    @property
    def states(self) -> Tensor:
        """[open rows, width], rows pushed since the last call embedded."""
        done = 0 if self._states is None else self._states.shape[0]
        if done < self.rows:
            fresh = self.target.embed(self.tokens[done:])
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
                self._run(start, first, group)
            first = group

    def _run(self, start: int, first: int, last: int) -> None:
        skip = start - self.base
        states = self.states
        done = self.target.run(states[skip:] if skip else states, self.cache, first, last, self._layout(start, first))
        self._states = torch.cat((states[:skip], done)) if skip else done

    def accompany(self, first: int, last: int, companions: int, run: Accompanied, waits: bool = False) -> list[Tensor]:
        """Run the open rows through layers ``first`` .. ``last`` - 1, the last ``companions`` of them twice.

        ``run(states, companions, cache, layout)`` gives the rows' states [rows, width] after those layers, and whatever
        it has to tell of their companions: that is returned. Layers below ``first`` run as in advance.

        With ``waits`` the rows stop before the last of these layers: they leave keys and values there, which companions
        of later rows see too, and run it later, in a batch with other rows. Then all rows of the pass have companions.

        Raises ValueError where not all open rows of that pass, or too few of them, lack exactly these layers, and where
        rows before them are absent from some of these layers only.
        """
        self.advance(first)
        lengths, absent = self.cache.lengths, self.cache.absent
        waiting = lengths[last - 1]
        start = self.length - companions if waits else lengths[first]
        lacked = lengths[first : last - 1] if waits else lengths[first:last]
        if set(lacked) - {start} or waiting > start or not 0 < companions <= self.length - start:
            raise ValueError(f"{companions} rows cannot be accompanied from layer {first} to {last}: they have run it")
        if any(slots != absent[first] for slots in absent[first:last]):
            raise ValueError(f"rows are absent from some of layers {first} to {last} only; run these one by one")
        skip = start - self.base
        states = self.states
        layout = self._layout(start, first, companions)
        done, told = run(states[skip:] if skip else states, companions, self.cache, layout)
        self._states = torch.cat((states[:skip], done)) if skip else done
        if waits:
            self.cache.lengths[last - 1] = waiting
        return told

    def fill(self, first: int, stand_ins: Tensor | None = None) -> None:
        """Give layers ``first`` .. keys and values for the last open row without running it through them.

        They are made of ``stand_ins`` [layers from first on, or 1 for all, width]: what stands for the residual that
        would arrive at each; by default the row's present state for all. The row runs these layers no more.
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

    def choose(self, layer: int, rows: Sequence[int], run: Chosen) -> None:
        """Run some of the open rows through one layer, by indices that ascend; the others pass it by.

        ``run(states, rows, cache, layout)`` gives all states [open rows, width] after it, and writes keys and values of
        all of them: nobody will see those of the others. ``layout`` is that of all open rows, with those hidden.

        Raises ValueError where not all open rows of a chain stand before this layer.
        """
        if self.cache.lengths[layer] != self.base or not self._is_chain:
            raise ValueError(f"rows can be chosen only where all wait for layer {layer}, each behind the one before")
        if not rows:
            self.pass_by(layer, layer + 1)
            return
        chosen = set(rows)
        others = [self.base + row for row in range(self.rows) if row not in chosen]
        layout = self._layout(self.base, layer, others=others)
        self._states = run(self.states, rows, self.cache, layout)
        self.cache.leave_out(layer, others)

    def _leave(self, first: int) -> int:
        """The slot of the last open row, which all others are to be ahead of in layers ``first`` .. ."""
        start = self.length - 1
        if self.cache.lengths[first] != start:
            raise ValueError("earlier rows still wait for these layers; run them before this one is filled in")
        return start

    def logits(self, first: int = 0) -> Tensor:
        """Logits [open rows - first, vocabulary] of the states as they are."""
        states = self.states
        return self.target.head(states[first:] if first else states)

    def keep(self, rows: Sequence[int]) -> None:
        """Commit these open rows (ascending, each the parent of the next) and forget the others."""
        kept = len(rows)
        if self._is_chain and rows == range(self.rows):
            self._forget_finished()
            return
        self.cache.keep(self.base, [self.base + row for row in rows])
        # A layer never holds more rows than the one below it, so what the last layer holds is finished.
        finished = self.cache.lengths[-1] - self.base
        if finished >= kept:
            self._forget_all(kept)
            return
        states = self.states[list(rows)] if list(rows) != list(range(self.rows)) else self.states
        self.tokens = [self.tokens[row] for row in rows][finished:]
        self._parents = list(range(-1, kept - 1 - finished))
        self._states = states[finished:]
        self._is_chain = True
        self.base += finished

    def _forget_finished(self) -> None:
        """Keep every row of a chain: those that ran all layers leave the stream, the others wait."""
        finished = self.cache.lengths[-1] - self.base
        if finished == self.rows:
            self._forget_all(finished)
        elif finished:
            self._states = self.states[finished:]
            del self.tokens[:finished]
            self._parents = list(range(-1, self.rows - 1))
            self.base += finished

    def _forget_all(self, kept: int) -> None:
        self.base += kept
        self.tokens, self._parents, self._states, self._is_chain = [], [], None, True

    def truncate(self, length: int) -> None:
        """Go back to the first ``length`` rows of a stream without open rows."""
        if self.rows:
            raise ValueError("only a stream without open rows can be truncated")
        self.cache.truncate(length)
        self.base = min(self.base, length)

    def fork(self) -> Stream:
        """An independent copy of a stream without open rows."""
        if self.rows:
            raise ValueError("only a stream without open rows can be forked")
        twin = Stream(self.target, 0, self.cache.fork())
        twin.base = self.base
        return twin

    def _layout(self, start: int, layer: int, companions: int = 0, others: Sequence[int] = ()) -> Layout:
        """Of the open rows from slot ``start`` on in ``layer``, where its absent slots and ``others`` are not seen."""
        skip, hiding = start - self.base, self.cache.hiding(layer, self.length, others)
        if self._is_chain:
            positions = range(self.base, self.length)
            return self.target.layout(self.base, positions, skip=skip, companions=companions, hiding=hiding)
        places: list[int] = []
        seen: list[list[int]] = []
        for row, parent in enumerate(self._parents):
            places.append(self.base if parent < 0 else places[parent] + 1)
            seen.append([*(seen[parent] if parent >= 0 else []), row])
        return self.target.layout(self.base, places, seen, skip, companions, hiding)
