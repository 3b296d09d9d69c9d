"""Blocks that only some tokens pass: who is chosen, what they become, and how that is learnt.

Raposo et al.: Mixture-of-Depths: Dynamically allocating compute in transformer-based language models, 2024, arXiv
2404.02258. A router weighs each token of a routed block; those of most weight in the sequence, a share given as the
capacity, become x + r f(x), f being the block's attention and MLP; the others stay x, and have no keys or values there.
A predictor that sees no later token decides when decoding. Ours: every start is the target itself, see BlockRouter;
capacity falls from 1 in the first half of training; router and linear predictor read states divided by their root mean
square.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchctl.decoding.model.target import TargetInfo
from benchctl.decoding.modules.adapters import AdaptedTexts, Adapters, agreements, distil_losses
from benchctl.decoding.modules.low_rank import AdapterSettings
from benchctl.decoding.modules.trainable import Numbered, Tally, TrainingBatch

EPS = torch.finfo(torch.float32).eps  # added to mean squares; half precision's own would drown small states
FALLING = 0.5  # share of the training in which capacity falls


def routed_blocks(layers: int) -> range:
    """Indices from 0 of the blocks that are routed: every other one, the first is not."""
    return range(1, layers, 2)


class BlockRouter(nn.Module):
    """For one block: the weight r of a token, w x + b, and the predictor's score, above 0 for tokens likely chosen.

    w starts as zero and b as 1: at capacity 1 the block starts as the target's own. The predictor reads r beside x and
    starts as r: all pass.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.weigh = nn.Linear(width, 1, device=device)
        self.foresee = nn.Linear(width + 1, 1, device=device)
        with torch.no_grad():
            for linear in (self.weigh, self.foresee):
                linear.weight.zero_()
                linear.bias.zero_()
            self.weigh.bias.fill_(1)
            self.foresee.weight[:, -1] = 1

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """r and the predictor's scores [rows, n] of states [rows, n, width]; the predictor teaches no state.

        Never in bfloat16, whose steps of 1/128 above 1 would make equals of tokens that are to be ranked.
        """
        with torch.autocast(state.device.type, enabled=False):
            normed = F.rms_norm(state, state.shape[-1:], eps=EPS)
            weights = self.weigh(normed)
            scores = self.foresee(torch.cat((normed, weights), -1).detach())
        return weights[..., 0], scores[..., 0]

    def products(self) -> tuple[Tensor, Tensor]:
        """Weights [2, width], biases [2] of predictor and router as products of x alone, in float32 at least."""
        kind = torch.promote_types(self.weigh.weight.dtype, torch.float32)
        share, weight, bias = (part.to(kind) for part in (self.foresee.weight, self.weigh.weight, self.weigh.bias))
        foresee, last = share[:, :-1] + share[:, -1:] * weight, self.foresee.bias.to(kind) + share[0, -1] * bias
        return torch.cat((foresee, weight)), torch.cat((last, bias))


class RoutedDepth(nn.Module):
    """Adapters of all layers, and for each routed block, by its number from 1 on, a BlockRouter.

    ``capacity`` is the share that routed blocks take; in training ``taken`` falls from 1 to it.
    """

    taken: Tensor

    def __init__(self, info: TargetInfo, settings: AdapterSettings, capacity: float, device: torch.device) -> None:
        super().__init__()
        self.capacity = capacity
        self.adapters = Adapters(info, settings, device)
        blocks = routed_blocks(info.layers)
        self.routers = Numbered({index + 1: BlockRouter(info.hidden_size, device) for index in blocks})
        self.register_buffer("taken", torch.tensor(capacity, device=device), persistent=False)

    def pace(self, progress: float) -> None:
        """Lower the share in a line from 1 at the beginning to the capacity at FALLING."""
        self.taken.fill_(1 - (1 - self.capacity) * min(progress / FALLING, 1))

    def share(self) -> Tensor:
        return self.taken if self.training else torch.full_like(self.taken, self.capacity)


@dataclass(frozen=True)
class RoutedTexts:
    """A pass over whole texts: final residuals [rows, n, width]; of each routed block, [rows, n], who is among the most
    weighty, the predictor's scores, and who passed."""

    state: Tensor
    among: Mapping[int, Tensor]
    scores: Mapping[int, Tensor]
    passed: Mapping[int, Tensor]


def routed_texts(module: RoutedDepth, batch: TrainingBatch, bound: float | None = None) -> RoutedTexts:
    """Who passes are the most weighty of a row, or, with a ``bound``, those whom the predictor scores above it."""
    texts, state = AdaptedTexts(module.adapters, batch), batch.states[0].float()
    among, scores, passed = {}, {}, {}
    for index in range(len(batch.states) - 1):
        if str(index + 1) not in module.routers:
            state = texts.through(index, state)
            continue
        weights, scores[index] = module.routers.of(index + 1)(state)
        among[index] = most_weighty(weights, batch.documents >= 0, module.share())
        passed[index] = among[index] if bound is None else scores[index] > bound
        state = blend(state, texts.through(index, state, passed[index]), weights.unsqueeze(-1))
    return RoutedTexts(state, among, scores, passed)


def blend(state: Tensor, after: Tensor, weights: Tensor) -> Tensor:
    return torch.lerp(state, after, weights.to(after.dtype))


def most_weighty(weights: Tensor, real: Tensor, share: Tensor) -> Tensor:
    """[rows, n] whether a token is among the most weighty ``share`` of the ``real`` ones in its row, one at least."""
    ranked = weights.detach().masked_fill(~real, -torch.inf).argsort(1, descending=True)
    order = torch.arange(weights.shape[1], device=weights.device).expand_as(ranked)
    rank = torch.empty_like(ranked).scatter_(1, ranked, order)
    return (rank < (share * real.sum(1, keepdim=True)).round().clamp(min=1)) & real


def routed_loss(module: RoutedDepth, batch: TrainingBatch) -> Tensor:
    """Divergence from the target, a token weighing what the one it must predict does, + the predictor's cross-entropy.

    That is the mean over routed blocks and tokens, all but padding weighing the same, for prompts are routed too; it is
    multiplied by the sum of the weights, by which the trainer divides.
    """
    texts, weights = routed_texts(module, batch), batch.ahead(1).weights
    real = (batch.documents >= 0).to(weights.dtype)
    errors = [
        F.binary_cross_entropy_with_logits(texts.scores[index].float(), among.float(), reduction="none")
        for index, among in texts.among.items()
    ]
    foreseen = (torch.stack(errors).mean(0) * real).sum() / real.sum().clamp_min(1)
    return (distil_losses(batch, texts.state) * weights).sum() + foreseen * weights.sum()


@torch.no_grad()
def routed_yardsticks(module: RoutedDepth, batch: TrainingBatch, bound: float) -> Mapping[str, Tally]:
    """What is decoded by the predictor, whom it lets pass above ``bound``.

    agreement, depth  share of tokens whose likeliest successor is the target's; layers run, as a share of all
    block_2_foreseen  share of tokens of which the predictor says rightly whether they are among the most weighty
    block_2_passed    share of tokens that it lets pass
    """
    texts, weights = routed_texts(module, batch, bound), batch.ahead(1).weights
    total, layers = float(weights.sum()), len(batch.states) - 1
    passed = torch.stack(list(texts.passed.values())).float().sum(0)
    tallies = {
        "agreement": Tally(float((agreements(batch, texts.state) * weights).sum()), total),
        "depth": Tally(float(((layers - len(texts.passed) + passed) * weights).sum()), layers * total),
    }
    real = batch.documents >= 0
    for index, among in texts.among.items():
        right = (texts.passed[index] == among) & real
        tallies[f"block_{index + 1}_foreseen"] = Tally(float(right.sum()), float(real.sum()))
        tallies[f"block_{index + 1}_passed"] = Tally(float((texts.passed[index] & real).sum()), float(real.sum()))
    return tallies
