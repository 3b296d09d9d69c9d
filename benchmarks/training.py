"""The trainer and a bare PyTorch loop take turns, step by step, on the same rows; the ratio has a paired interval."""

from __future__ import annotations

import copy
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchctl import bundled as packs
from benchctl.training.data.chat import ChatFormat
from benchctl.training.data.packing import Batch, PackedCorpus
from benchctl.training.models import TokenIds, build_model, parameter_count
from benchctl.training.modules.objective import LanguageModel, loss_weights
from benchctl.training.optim import OptimizerSettings
from benchctl.training.recipe import lesson_rows
from benchctl.training.schedule import Budget, Stage
from benchctl.training.settings import Data, TrainSettings
from benchctl.training.shapes import TARGET
from benchctl.training.synthetic import synthetic_records
from benchctl.training.tokenizer import read_tokenizer
from benchctl.training.trainer import Progress, Trainer
from benchmarks.speed import paired_interval

STAGE = Stage(1.0, 256, 8)
BATCH_TOKENS = 4096
RECORDS = 500  # about five steps a pass, so that packing a pass anew is in the trainer's time as often as in a real run
WARM_UP_STEPS = 2
SAME_LOSS = 0.01  # relative; more means that the two loops do not do the same work
OPTIMIZER = OptimizerSettings("adamw", rate=1e-3)
CLIP = 1.0


@dataclass(frozen=True)
class TrainerRatio:
    """Our trainer against the bare loop.

    ratio            bare loop's seconds / trainer's seconds, sums over the same steps: its share of the throughput
    low, high        95% interval over steps
    loss_difference  largest relative difference of the loss of a step: both do the same work
    """

    layers: int
    parameters: int
    threads: int
    steps: int
    ratio: float
    low: float
    high: float
    trainer_tokens_per_s: float
    bare_tokens_per_s: float
    loss_difference: float


@dataclass(frozen=True)
class Inputs:
    """A micro-batch as a data loader would hand it over: what the model takes, labels and the weight of each."""

    model: dict[str, Tensor]
    labels: Tensor
    weights: Tensor

    @classmethod
    def of(cls, batch: Batch) -> Inputs:
        model = {"input_ids": batch.tokens, "attention_mask": batch.mask, "position_ids": batch.positions}
        return cls(model, batch.tokens[:, 1:].flatten(), loss_weights(batch).flatten())


class BareLoop:
    """What one writes without a trainer: autocast, fused AdamW, clipping, a cosine; batches are ready in memory."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        self._model = model
        settings = OPTIMIZER
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.rate, betas=(0.9, 0.95), weight_decay=settings.decay, fused=True
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))
        )

    def step(self, micro_batches: Sequence[Inputs]) -> float:
        """One optimiser step; its mean loss."""
        total_weight = sum(inputs.weights.sum() for inputs in micro_batches)
        total = 0.0
        for inputs in micro_batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self._model(**inputs.model, use_cache=False).logits[:, :-1]
                losses = functional.cross_entropy(logits.float().flatten(0, 1), inputs.labels, reduction="none")
                loss = (losses * inputs.weights).sum() / total_weight
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total


@dataclass
class Turns:
    """The trainer's report: after each of its steps the bare loop does the same one, and both times are kept."""

    bare: BareLoop
    batches: Sequence[Sequence[Inputs]]
    trainer_s: list[float] = field(default_factory=list)
    bare_s: list[float] = field(default_factory=list)
    loss_differences: list[float] = field(default_factory=list)
    mark: float = field(default_factory=time.perf_counter)

    def __call__(self, progress: Progress) -> None:
        begin = time.perf_counter()
        loss = self.bare.step(self.batches[progress.step - 1])
        end = time.perf_counter()
        self.trainer_s.append(begin - self.mark)
        self.bare_s.append(end - begin)
        self.loss_differences.append(abs(loss / progress.loss - 1))
        self.mark = time.perf_counter()


def measure(threads: int, steps: int, layers: int) -> dict[str, object]:
    """`steps` steps of both on a fresh model of the reference shape with so many layers, after a warm-up."""
    torch.set_num_threads(threads)
    folder = Path(packs.resolve(packs.default_target().name))
    model: Any = build_model(replace(TARGET, layers=layers), TokenIds.of(read_tokenizer(folder)), seed=0)
    chat = ChatFormat.load(folder)
    rows, again = _rows(chat), _rows(chat)
    all_steps = WARM_UP_STEPS + steps
    turns = Turns(BareLoop(copy.deepcopy(model), all_steps), [_step_inputs(again, step) for step in range(all_steps)])
    settings = TrainSettings(
        Budget(steps=all_steps), (STAGE,), BATCH_TOKENS, OPTIMIZER, warmup=0.0, clip=CLIP, held_out_steps=10**9
    )
    data = Data([rows], {}, chat.token_bytes())
    with tempfile.TemporaryDirectory() as out:
        trainer = Trainer(model, LanguageModel(data.token_bytes), data, settings, Path(out), time.perf_counter, turns)
        turns.mark = time.perf_counter()
        trainer.train()
    return asdict(_compare(turns, threads, layers, parameter_count(model)))


def _rows(chat: ChatFormat) -> PackedCorpus:
    documents = chat.tokenize(synthetic_records(RECORDS, 0))
    return lesson_rows(documents, chat, STAGE.row_tokens, seed=0, prompt_weight=1.0)


def _step_inputs(rows: PackedCorpus, step: int) -> list[Inputs]:
    """What the trainer reads in its step number `step`, from 0."""
    count = STAGE.micro_batches(BATCH_TOKENS)
    starts = range(step * count * STAGE.micro_rows, (step + 1) * count * STAGE.micro_rows, STAGE.micro_rows)
    return [Inputs.of(rows.rows(start, STAGE.micro_rows)) for start in starts]


def _compare(turns: Turns, threads: int, layers: int, parameters: int) -> TrainerRatio:
    ours, bare = turns.trainer_s[WARM_UP_STEPS:], turns.bare_s[WARM_UP_STEPS:]
    difference = max(turns.loss_differences)
    if difference > SAME_LOSS:
        raise SystemExit(
            f"the losses of trainer and bare loop differ by {difference:.1%}: they do not do the same work"
        )
    interval = paired_interval(bare, ours)
    tokens = BATCH_TOKENS * len(ours)
    return TrainerRatio(
        layers=layers,
        parameters=parameters,
        threads=threads,
        steps=len(ours),
        ratio=sum(bare) / sum(ours),
        low=interval.low,
        high=interval.high,
        trainer_tokens_per_s=tokens / sum(ours),
        bare_tokens_per_s=tokens / sum(bare),
        loss_difference=difference,
    )


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
