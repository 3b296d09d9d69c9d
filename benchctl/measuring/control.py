"""The no-draft control: how far the target's logits move when nothing changes but the number of rows in a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from benchctl.decoding.stream import Stream
from benchctl.decoding.target import Target

MOST_SIZES = 4


def pass_sizes(rows: Sequence[int], together: int = 1) -> tuple[int, ...]:
    """How many rows stood in a pass of the target, other than one, for a method whose steps read `rows`.

    A step of no row left the target early. Where answers are decoded `together`, their rows go through its kernels
    together, the baseline's single ones too. Of more than MOST_SIZES numbers the least, the greatest and the most
    frequent stand for all. Empty where every pass had one row, as the baseline's have: then there is nothing that would
    round otherwise.
    """
    used = Counter(count * together for count in (1, *rows) if count)
    del used[1]
    often = [size for size, _ in used.most_common()]
    ends = [min(often), max(often)] if often else []
    return tuple(sorted(list(dict.fromkeys(ends + often))[:MOST_SIZES]))


class AnswerControl:
    """An `answer` to `prompt_ids`, read by the target as plain decoding does, a row in a pass, and several at a time.

    Each way fills a cache of its own, so that rounding adds up as it does in decoding. Nothing is drafted and every
    token is the same: what differs is rounding. (MEASUREMENT 2.1.) Both ways begin with the same prefill; for what was
    chosen there the other way is to read the prompt's last token as a row of its own.

    The result depends on nothing but its arguments, so a resumed run finds the same. To read n rows in a pass takes 1/n
    of the baseline's passes: four sizes come to about the time of the answer once more, and plain reading, which is
    done once for all sizes, to as much. Kept meanwhile: logits [tokens, vocabulary] in the target's dtype on the host.
    """

    def __init__(self, target: Target, prompt_ids: Sequence[int], answer: Sequence[int]) -> None:
        self._target = target
        self._prompt_ids = prompt_ids
        self._answer = list(answer)
        self._rows = self._answer[:-1]  # its last token is chosen, but never read
        self._differences: dict[int, Tensor] = {}

    def logits(self, place: int) -> Tensor:
        """What plain decoding would choose token `place` of the answer from, [vocabulary], on the host."""
        return self._alone[place]

    def gaps(self) -> list[float]:
        """How far each token of the answer lies below the one that plain decoding would say after the text before it;
        0 where it is that."""
        said = self._alone.gather(1, torch.tensor(self._answer)[:, None])[:, 0]
        return (self._alone.amax(-1).double() - said.double()).tolist()

    def noises(self, sizes: Sequence[int]) -> tuple[float, ...]:
        """For each token of the answer the largest difference of any logit it is chosen from, between passes of one row
        and those of any of these `sizes`."""
        found = torch.stack([self._prefill_difference, *(self._difference(size) for size in sizes)])
        return tuple(found.amax(0).tolist())

    @cached_property
    @torch.inference_mode()
    def _alone(self) -> Tensor:
        """[tokens, vocabulary]"""
        first = self._target.next_logits(self._prompt_ids).cpu()
        logits = first.new_empty(1 + len(self._rows), len(first))
        logits[0] = first
        for place, row in enumerate(self._read(1), 1):
            logits[place] = row.cpu()[0]
        return logits

    @cached_property
    def _prefill_difference(self) -> Tensor:
        """[tokens], 0 but for the first."""
        split = self._target.next_logits(self._prompt_ids, one_by_one=True).cpu()
        found = torch.zeros(len(self._alone), dtype=torch.float64)
        found[0] = (self._alone[0].double() - split.double()).abs().max()
        return found

    @torch.inference_mode()
    def _difference(self, size: int) -> Tensor:
        """[tokens], 0 for the first, which is prefill's."""
        if size not in self._differences:
            found, done = torch.zeros(len(self._alone), dtype=torch.float64), 1
            for logits in self._read(size):
                alone = self._alone[done : done + len(logits)]
                found[done : done + len(logits)] = (alone.double() - logits.cpu().double()).abs().amax(-1)
                done += len(logits)
            self._differences[size] = found
        return self._differences[size]

    def _read(self, size: int) -> Iterator[Tensor]:
        """Logits [at most `size`, vocabulary] of the rows behind the prompt, so many in a pass.

        A way is read to its end before the next one begins: one cache at a time is what decoding itself needs.
        """
        text = self._target.read(self._prompt_ids)
        stream = Stream(self._target, len(text) + len(self._rows))
        stream.push(text)
        stream.advance()
        stream.keep(range(len(text)))
        for start in range(0, len(self._rows), size):
            rows = self._rows[start : start + size]
            stream.push(rows)
            stream.advance()
            yield stream.logits()
            stream.keep(range(len(rows)))
