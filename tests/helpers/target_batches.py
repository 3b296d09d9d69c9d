"""A target_batch made by hand: what a tiny target saw of literal texts, without a trainer or its batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from oracles import Naive, autoregressive
from runs import Pair, prompt_of
from torch import Tensor, nn
from untrained import facts_of

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.families import family_of
from benchctl.decoding.modules.folders import save_modules
from benchctl.decoding.modules.trainable import Tally, TrainingBatch


def batch_of(
    naive: Naive,
    texts: Sequence[Sequence[int]],
    weights: Sequence[Sequence[float]] | None = None,
    ids: Tensor | None = None,
) -> TrainingBatch:
    """A row per text, padded to the longest with id 0; by default every token weighs 1. ``ids``: a draft vocabulary."""
    length = max(map(len, texts))
    shape = (len(texts), length)
    tokens, documents = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -1)
    weight, states = torch.zeros(shape), torch.zeros(naive.layers + 1, *shape, naive.model.config.hidden_size)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
        documents[row, : len(text)] = 0
        weight[row, : len(text)] = 1.0 if weights is None else torch.tensor(weights[row])
        states[:, row, : len(text)] = naive.states(text).float()
    norm, head = naive.model.model.norm, naive.model.lm_head
    return TrainingBatch(
        tokens=tokens,
        weights=weight,
        documents=documents,
        positions=torch.arange(length).expand(shape),
        states=tuple(states),
        final=norm(states[-1].double()).float(),
        norm=lambda residual: norm(residual.double()).to(residual.dtype),
        head=lambda normed: head(normed.double()),
        layer=lambda index: family_of(naive.model.config).read_layer(_single(naive), index, "plain"),
        rotary=lambda positions: family_of(naive.model.config).rotary(_single(naive), length, torch.float32)[positions],
        draft_ids=ids,
        draft_rows=None if ids is None else lambda normed: normed.double() @ head.weight[ids].T,
    )


@cache
@torch.inference_mode(False)
def _single(naive: Naive) -> Any:
    """The model in float32, as modules are trained."""
    return copy.deepcopy(naive.model).float()


def kl_inside(wanted: Tensor, said: Tensor) -> Tensor:
    """mass * KL(wanted || said) of log-probabilities [.., k]; over a draft vocabulary ``wanted`` has a mass below 1."""
    mass = wanted.exp().sum(-1)
    divergence: Tensor = (wanted.exp() * (wanted - said)).sum(-1) - mass * mass.log()
    return divergence


def answered(naive: Naive, count: int, tokens: int = 40) -> list[list[int]]:
    """Short prompts with what the target says to them."""
    prompts = [prompt_of(6, seed) for seed in range(count)]
    return [[*prompt, *autoregressive(naive, prompt, tokens)] for prompt in prompts]


def learn(
    loss_of: Callable[[Any, TrainingBatch], Tensor],
    module: nn.Module,
    target_batch: TrainingBatch,
    steps: int,
    rate: float = 1e-2,
) -> list[float]:
    """The loss per token at each of so many steps of AdamW on this one target_batch."""
    optimizer = torch.optim.AdamW([weight for weight in module.parameters() if weight.requires_grad], lr=rate)
    losses = []
    for _ in range(steps):
        loss = loss_of(module, target_batch) / target_batch.weights.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@dataclass(frozen=True)
class Learnt:
    """Losses step by step, yardsticks before and after them, and the accepted tokens of answers before and after."""

    losses: Sequence[float]
    before: Mapping[str, Tally]
    after: Mapping[str, Tally]
    accepted: tuple[int, int]


def saved(name: str, method: Any, module: nn.Module, models: Pair, folder: Path, **trained: Any) -> Any:
    """The method with the modules in this folder, where they were saved; options ``trained`` differed in training."""
    save_modules(folder, module, facts_of(name, replace(method, **trained), models.target))
    return replace(method, modules=str(folder))


def learnt(name: str, method: Any, models: Pair, folder: Path, steps: int = 150, rate: float = 1e-2) -> Learnt:
    """Fresh modules of a drafting method learn twelve answers of the target, and then draft for six of them."""
    torch.manual_seed(0)
    module = method.build(models.target.info, models.target.lm_head.weight)
    batch = batch_of(models.naive, answered(models.naive, 12))

    def accepted(place: Path) -> int:
        trained = saved(name, method, module, models, place)
        trained.prepare(models.target)
        answers = [decode(trained, models.target, DecodeRequest(prompt_of(6, seed), 40)) for seed in range(6)]
        return sum(step.accepted for got in answers for step in got.steps)

    before, fresh = method.yardsticks(module, batch), accepted(folder / "fresh")
    losses = learn(method.loss, module, batch, steps, rate)
    return Learnt(losses, before, method.yardsticks(module, batch), (fresh, accepted(folder / "learnt")))


def assert_learnt(got: Learnt, yardstick: str, loss: float = 0.7, share: float = 0.2, times: float = 1.5) -> None:
    """The loss fell below this part of it, this yardstick rose by more, and so many times the tokens are accepted."""
    assert got.losses[-1] < loss * got.losses[0]
    assert got.after[yardstick].share > got.before[yardstick].share + share
    assert got.accepted[1] > times * got.accepted[0]
