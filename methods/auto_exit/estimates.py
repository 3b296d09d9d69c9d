"""What each exit would have drafted on rows that were verified, and the exit and draft length that promise most."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Estimates:
    """What the likeliest token of each exit was worth on verified rows; of [exits, 2] first of right ones, then wrong.

    counts  how often it was the target's likeliest token, and how often not
    sums    of its probabilities there
    """

    def __init__(self) -> None:
        self.counts = self.sums = torch.zeros(1, 2, dtype=torch.float64)

    def learn(self, right: Tensor, likely: Tensor, decay: float) -> None:
        """``right`` and ``likely`` [exits, rows]: whether the likeliest token was the target's, and its probability."""
        new = torch.stack((right, ~right), -1).to(torch.float64)
        self.counts = decay * self.counts + new.sum(1)
        self.sums = decay * self.sums + (new * likely.unsqueeze(-1)).sum(1)

    def threshold(self, at: int) -> float:
        """The middle between the mean probabilities of right and of wrong tokens; nan without one of them."""
        return float((self.sums[at] / self.counts[at]).mean())

    def best(self, exits: Sequence[int], layers: int, most: int) -> tuple[int, int]:
        """The exit, by its place in ``exits``, and the number d of drafted tokens, with most tokens per layer.

        TPL = (1 + a + ... + a^d) / (layers + d exit), where a is the share of right tokens of the exit. With 12 layers
        and a = 0.5 at exit 2: 1/12, 1.5/14 (the most), 1.75/16, 1.875/18.
        """
        rates = (self.counts[:, 0] / self.counts.sum(-1)).unsqueeze(-1)
        lengths = torch.arange(most + 1, dtype=torch.float64)
        tokens = (rates**lengths).cumsum(-1)
        per_layer = tokens / (layers + torch.tensor(exits).unsqueeze(-1) * lengths)
        at, length = divmod(int(per_layer.argmax()), most + 1)
        return at, length
