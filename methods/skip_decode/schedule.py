"""Depths fixed in advance, by how far an answer has come, and how training meets them on whole texts.

Del Corro et al.: SkipDecode, 2023, arXiv 2307.02628. A depth belongs to a position, whatever the text; it never grows
along the sequence, so that no later token wants keys or values that an earlier one did not compute; lower to middle
layers are left out. The line from most to least is recalled from the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from benchctl.decoding.modules.adapters import AdaptedTexts, Adapters, agreements, distil_losses
from benchctl.decoding.modules.trainable import Tally, TrainingBatch, tally

_GOLDEN = 0.6180339887498949  # fractions of its multiples are spread evenly: draws that are the same every time
Whole = TypeVar("Whole", int, Tensor)


@dataclass(frozen=True)
class DepthSchedule:
    """From ``most`` layers down to ``least``, in a line over ``fall_tokens`` new tokens, of a target with ``layers``.

    ``warmup`` layers at the bottom always run, then those at the top. DepthSchedule(16, 16, 8, 2, 4) gives new tokens
    0, 1, 2, 3 and all from 4 on 16, 14, 12, 10 and 8 layers: the last of these run layers 1, 2 and 11 to 16.
    """

    layers: int
    most: int
    least: int
    warmup: int
    fall_tokens: int

    def depth(self, new_token: int) -> int:
        """Of new token ``new_token``, and 0 of the prompt: round(most - (most - least) * new_token / fall_tokens)."""
        return self._rounded(min(new_token, self.fall_tokens), self.fall_tokens)

    def depths(self, new_tokens: Tensor, fall_tokens: Tensor) -> Tensor:
        """Of many at once, each with a fall of its own; new tokens below 0 are the prompt's."""
        return self._rounded(torch.minimum(new_tokens.clamp(min=0), fall_tokens), fall_tokens)

    def _rounded(self, along: Whole, fall_tokens: Whole) -> Whole:
        """In whole numbers, halves rounded up: what a float makes of a half would be left to chance."""
        twice = 2 * (self.most * fall_tokens - (self.most - self.least) * along)
        return (twice + fall_tokens) // (2 * fall_tokens)

    def running(self, depth: int) -> tuple[range, range]:
        """Indices from 0 of the layers of that depth, at the bottom and at the top."""
        return range(self.warmup), range(self.layers - (depth - self.warmup), self.layers)

    def runs(self, index: int, depths: Tensor) -> Tensor:
        return depths >= (0 if index < self.warmup else self.warmup + self.layers - index)


class TextDepths(NamedTuple):
    """For each token of some texts, [rows, n]: its depth, and whether it is one of the answer that is being decoded."""

    depths: Tensor
    new: Tensor


def text_depths(schedule: DepthSchedule, texts: TrainingBatch, chance: bool) -> TextDepths:
    """Depths in ``texts`` as if each document were a prompt and its answer.

    The prompt ends where one of the answers in the document begins, its tokens weighing more than what was before; in a
    text without answers, anywhere. With ``chance``, for training, that is drawn, and so is where the least depth is
    reached: between the end of the document, if that comes first, and ``fall_tokens``, so that short documents teach
    low depths too (ours). Without, for measuring, all is the same each time, and the fall the schedule's own.
    """
    positions, documents = texts.positions, texts.documents
    first = positions == 0
    like = texts.weights.float()
    even = (torch.arange(1, like.numel() + 1, device=like.device).view_as(like) * _GOLDEN).frac().to(like.dtype)
    prompt_draw, fall_draw = (torch.rand_like(like), torch.rand_like(like)) if chance else (even, even)
    # Tokens that weigh more than the one before them in their document begin an answer.
    begins = (texts.weights > texts.weights.roll(1, 1)) & ~first
    score = torch.where(begins, 1 + prompt_draw, prompt_draw).masked_fill(first, 0)
    chosen = score == _greatest(score, documents)
    prompt = _greatest(positions.masked_fill(~chosen, 0), documents)
    fall = torch.full_like(positions, schedule.fall_tokens)
    if chance:
        left = torch.minimum(fall, _greatest(positions + 1, documents) - prompt).clamp(min=1)
        share = _greatest(fall_draw.masked_fill(~first, 0), documents)
        fall = left + ((fall - left) * share).round().to(fall.dtype)
    return TextDepths(schedule.depths(positions - prompt, fall), positions >= prompt)


def _greatest(values: Tensor, documents: Tensor) -> Tensor:
    """[rows, n] for each token the greatest of its document's ``values``, none of which is negative."""
    place = documents + 1  # padding is -1
    rows, n = values.shape
    return values.new_zeros(rows, n + 1).scatter_reduce(1, place, values, "amax").gather(1, place)


def scheduled_states(schedule: DepthSchedule, adapters: Adapters, batch: TrainingBatch, depths: Tensor) -> Tensor:
    """[rows, n, width] final residuals of tokens that run the adapted layers of their depths [rows, n].

    Depths fall along a document, so no token that runs a layer sees one that does not.
    """
    texts, state = AdaptedTexts(adapters, batch), batch.states[0].float()
    for index in range(schedule.layers):
        state = texts.through(index, state, schedule.runs(index, depths))
    return state


def schedule_loss(schedule: DepthSchedule, adapters: Adapters, batch: TrainingBatch) -> Tensor:
    """Weighted sum over tokens: each learns at its depth what the target says after all layers."""
    depths = text_depths(schedule, batch, chance=adapters.training).depths
    state = scheduled_states(schedule, adapters, batch, depths)
    return (distil_losses(batch, state) * batch.ahead(1).weights).sum()


@torch.no_grad()
def schedule_yardsticks(schedule: DepthSchedule, adapters: Adapters, batch: TrainingBatch) -> Mapping[str, Tally]:
    """Of the answers' tokens, each weighing what the one it must predict does.

    agreement, depth   share whose likeliest successor is the target's; layers run for them, as a share of all
    depth_8_agreement  agreement among tokens that run 8 layers
    """
    depths, new = text_depths(schedule, batch, chance=False)
    agree = agreements(batch, scheduled_states(schedule, adapters, batch, depths))
    weights = batch.ahead(1).weights * new
    tallies = {
        "agreement": tally(agree, weights),
        "depth": Tally(float((depths * weights).sum()), schedule.layers * float(weights.sum())),
    }
    for depth in range(schedule.least, schedule.most + 1):
        tallies[f"depth_{depth}_agreement"] = tally(agree, weights * (depths == depth))
    return tallies
