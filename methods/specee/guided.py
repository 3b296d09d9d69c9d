"""The modules of SpecEE: a trained exit that drafts four tokens, and for each later exit a predictor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from benchctl.decoding.modules.exits import ExitModule, Exits, exits_loss, exits_yardsticks
from benchctl.decoding.modules.losses import agreement_loss, bare, exit_yardsticks
from benchctl.decoding.modules.trainable import ROWS_AT_ONCE, Numbered, Tally, TrainingBatch, tally

TOKENS = 4  # that are drafted
_HIDDEN = 64  # inner units of a predictor; 512 in the paper
_RANK, _SCALE = 64, 4.0  # of the drafting exit, as early_exit's defaults have them


def features(logits: Tensor, before: Tensor | None) -> Tensor:
    """[..., 12] of ``logits`` [..., 4]: these, their probabilities among themselves, and the changes of these.

    Changes are since the probabilities ``before`` [..., 4] at the exit below, 0 at the first.
    """
    probs = logits.softmax(-1)
    return torch.cat((logits, probs, probs - (probs if before is None else before)), -1)


def probs_of(features: Tensor) -> Tensor:
    """[..., 4] the probabilities among ``features`` [..., 12]."""
    return features[..., TOKENS : 2 * TOKENS]


class Looks(dict[int, Tensor]):
    """Of each exit the features [rows, n, 12] of a batch; ``agrees`` and ``named`` are [rows, n] of each.

    agrees  whether the likeliest token there is the last layer's
    named   whether it is one of the drafted tokens
    """

    def __init__(self) -> None:
        super().__init__()
        self.agrees, self.named = dict[int, Tensor](), dict[int, Tensor]()


class Guided(nn.Module):
    """A trained exit at layer ``guide``, and a predictor for each of ``exits``."""

    def __init__(self, width: int, guide: int, exits: Sequence[int], device: torch.device) -> None:
        super().__init__()
        self.guide = Exits({guide: ExitModule(width, _RANK, device, scale=_SCALE)}, {})
        self.predictor = Numbered({layer: _predictor(device) for layer in exits})

    @torch.no_grad()
    def drafted(self, batch: TrainingBatch) -> Tensor:
        """[rows, n, 4] tokens, the likeliest first."""
        (guide,) = self.guide.layers
        normed = self.guide.normed(batch, guide)
        with torch.autocast(normed.device.type, enabled=False):
            some = [batch.head(rows).topk(TOKENS).indices for rows in torch.split(normed.flatten(0, 1), ROWS_AT_ONCE)]
        return torch.cat(some).view(*normed.shape[:2], TOKENS)

    @torch.no_grad()
    def looks(self, batch: TrainingBatch) -> Looks:
        ids, looks, before = self.drafted(batch).flatten(0, 1), Looks(), None
        shape = batch.tokens.shape
        for layer in self.predictor.numbers:
            logits, likeliest = list[Tensor](), list[Tensor]()
            normed = bare(batch, layer).flatten(0, 1)
            with torch.autocast(normed.device.type, enabled=False):
                for rows, wanted in zip(*(torch.split(every, ROWS_AT_ONCE) for every in (normed, ids)), strict=True):
                    scores = batch.head(rows).float()
                    logits.append(scores.gather(-1, wanted))
                    likeliest.append(scores.argmax(-1))
            looks[layer] = features(torch.cat(logits).view(*shape, TOKENS), before)
            before = probs_of(looks[layer])
            top = torch.cat(likeliest)
            looks.agrees[layer] = top.view(shape) == batch.teacher.top_tokens
            looks.named[layer] = (ids == top[:, None]).any(-1).view(shape)
        return looks

    def scores(self, looks: Looks) -> dict[int, Tensor]:
        """[rows, n] of each exit: above 0 where agreement is likelier than not."""
        return {layer: self.predictor.of(layer)(seen)[..., 0] for layer, seen in looks.items()}

    def loss(self, batch: TrainingBatch) -> Tensor:
        """Of the predictors, where there are some; otherwise of the drafting exit."""
        if not self.predictor:
            return exits_loss(self.guide, batch)
        looks = self.looks(batch)
        return agreement_loss(self.scores(looks), looks.agrees, batch)

    @torch.no_grad()
    def yardsticks(self, batch: TrainingBatch) -> Mapping[str, Tally]:
        """Those of exits_yardsticks and guide_top4, or what leaves by predictors at 0.5 and the drafted tokens."""
        looks = self.looks(batch)
        if looks:
            leaves = {layer: score.where(looks.named[layer], -1.0) for layer, score in self.scores(looks).items()}
            return exit_yardsticks(leaves, batch, looks.agrees)
        found = (self.drafted(batch) == batch.teacher.top_tokens[..., None]).any(-1)
        return {**exits_yardsticks(self.guide, batch), "guide_top4": tally(found, batch.ahead(1).weights)}


def _predictor(device: torch.device) -> nn.Sequential:
    first = nn.Linear(3 * TOKENS, _HIDDEN, device=device)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(_HIDDEN, 1, device=device))
