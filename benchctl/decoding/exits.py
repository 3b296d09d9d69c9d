"""Learning where to leave: labels, loss and yardsticks of scores that say where an exit agrees with the last layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.trainable import Lesson, Tally, tally


def chance(score: Tensor) -> float:
    """The chance of agreement that a score of one element stands for.

    In float32 at least: half precision has steps of 1/256 below 1, too coarse for a threshold.
    """
    return float(score.to(torch.promote_types(score.dtype, torch.float32)).sigmoid())


def bare_logits(lesson: Lesson, layer: int) -> Tensor:
    """[rows, n, vocabulary] of the state after ``layer`` layers through the target's own norm and head."""
    return lesson.head(lesson.norm(lesson.states[layer]))


def balanced_loss(scores: Tensor, agrees: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of binary cross-entropies of ``scores`` [rows, n]: sigmoid(score) is the chance of agreement.

    Either class counts by the share of the other, as in CALM's code (t5x): with 3 of 4 in agreement, those 3 weigh 1/4
    and the fourth 3/4.
    """
    right = agrees.to(weights.dtype)
    share = (right * weights).sum() / weights.sum().clamp_min(1e-9)
    balance = torch.where(agrees, 1 - share, share)
    losses = F.binary_cross_entropy_with_logits(scores.float(), right.float(), reduction="none")
    return (losses * balance * weights).sum()


@torch.no_grad()
def exit_yardsticks(scores: Mapping[int, Tensor], lesson: Lesson, right: Mapping[int, Tensor]) -> dict[str, Tally]:
    """What the scores of exit layers, ascending, are good for at threshold 0.5.

    ``right`` says for each, [rows, n], where what leaves there agrees with the last layer.

    exit_4_found  of the tokens for which layer 4 agrees with the last, the share that may leave there
    exit_4_held   of the others, the share that may not; the mean of both is the balanced accuracy
    agreement     share of tokens that agree with the last layer when each leaves at the first exit that lets it
    depth         layers run for them, as a share of all
    """
    weights, layers = lesson.ahead(1).weights, len(lesson.states) - 1
    found: dict[str, Tally] = {}
    open_weights, lost, saved = weights, 0.0, 0.0
    for layer, agrees in right.items():
        leaves = scores[layer] >= 0
        found[f"exit_{layer}_found"] = tally(leaves, weights * agrees)
        found[f"exit_{layer}_held"] = tally(~leaves, weights * ~agrees)
        left = open_weights * leaves
        lost += float((left * ~agrees).sum())
        saved += float(left.sum()) * (layers - layer)
        open_weights = open_weights * ~leaves
    total = float(weights.sum())
    return {**found, "agreement": Tally(total - lost, total), "depth": Tally(total * layers - saved, total * layers)}
