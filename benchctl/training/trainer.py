"""The one training loop: any module, any objective, checkpoints that resume exactly."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchctl.training.checkpoint import Position, load_checkpoint, load_weights, save_checkpoint
from benchctl.training.objective import HeldOut, Objective, measure_held_out
from benchctl.training.optim import Optimizers, OptimizerSettings
from benchctl.training.packing import Batch, PackedCorpus
from benchctl.training.schedule import Budget, Stage, learning_rate, stage_index


@dataclass(frozen=True)
class TrainSettings:
    """Everything that decides the result of a run besides the module, the objective and the data."""

    budget: Budget
    stages: tuple[Stage, ...]
    batch_tokens: int = 8192
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    warmup: float = 0.02
    seed: int = 0
    bf16: bool = True
    compiled: bool = False
    checkpoint_s: float = 240.0
    held_out_steps: int = 100
    log_steps: int = 10


@dataclass(frozen=True)
class Progress:
    """What the loop reports after a step; `held_out` only when it was measured."""

    step: int
    progress: float
    loss: float
    rate: float
    tokens: int
    elapsed_s: float
    tokens_per_s: float
    held_out: Mapping[str, HeldOut] = field(default_factory=dict)


@dataclass(frozen=True)
class Data:
    """Training rows per stage, held-out batches per name, and the bytes of every token [vocabulary]."""

    stages: Sequence[PackedCorpus]
    held_out: Mapping[str, Sequence[Batch]]
    token_bytes: torch.Tensor


def use_threads(count: int | None) -> None:
    """Gives torch that many CPU threads; None leaves its choice."""
    if count is not None:
        torch.set_num_threads(count)


class Trainer:
    """Trains `module` in place. `folder` takes checkpoints and log.jsonl; `clock` gives seconds."""

    def __init__(
        self,
        module: nn.Module,
        objective: Objective,
        data: Data,
        settings: TrainSettings,
        folder: Path,
        clock: Callable[[], float],
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.module = module
        self.position = Position(rows=[0] * len(settings.stages))
        self._objective = torch.compile(objective, dynamic=False) if settings.compiled else objective
        self._data = data
        self._settings = settings
        self._folder = folder
        self._clock = clock
        self._report = report
        self._optimizers = Optimizers(module, settings.optimizer)

    def resume(self) -> bool:
        """Continues from the newest checkpoint in the folder; False if there is none."""
        found = load_checkpoint(self._folder)
        if found is None:
            return False
        load_weights(self.module, found.weights)
        self._optimizers.load_state_dict(found.optimizer)
        torch.set_rng_state(found.random)
        self.position = found.position
        self._forget_log()
        return True

    def train(self) -> dict[str, HeldOut]:
        """Runs until the budget is spent; returns the held-out losses of the finished module."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.module.train()
        saved_at = mark = self._clock()
        while (progress := self._progress()) < 1:
            loss, tokens = self._step(progress)
            now = self._clock()
            seconds, mark = now - mark, now
            self.position.elapsed_s += seconds
            self._tell(loss, tokens / max(seconds, 1e-9))
            if now - saved_at >= self._settings.checkpoint_s:
                self._save()
                saved_at = now
        self._save()
        return self.held_out()

    def held_out(self) -> dict[str, HeldOut]:
        """The loss on every held-out set."""
        with self._precision():
            return {
                name: measure_held_out(self.module, batches, self._data.token_bytes)
                for name, batches in self._data.held_out.items()
            }

    def _progress(self) -> float:
        return self._settings.budget.progress(self.position.step, self.position.elapsed_s)

    def _step(self, progress: float) -> tuple[float, int]:
        """One optimiser step: its mean loss and the tokens read."""
        micro_batches = self._next_batches(stage_index(self._settings.stages, progress))
        weight = sum(float(batch.weights[:, 1:].sum()) for batch in micro_batches)
        total = 0.0
        for batch in micro_batches:
            with self._precision():
                loss = self._objective(self.module, batch) / weight
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        self._optimizers.step(learning_rate(progress, self._settings.warmup))
        tokens = sum(batch.tokens.numel() for batch in micro_batches)
        self.position.step += 1
        self.position.tokens += tokens
        return total, tokens

    def _next_batches(self, index: int) -> list[Batch]:
        stage = self._settings.stages[index]
        count = max(1, self._settings.batch_tokens // (stage.row_tokens * stage.micro_rows))
        first = self.position.rows[index]
        self.position.rows[index] = first + count * stage.micro_rows
        starts = range(first, first + count * stage.micro_rows, stage.micro_rows)
        return [self._data.stages[index].rows(start, stage.micro_rows) for start in starts]

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", dtype=torch.bfloat16) if self._settings.bf16 else nullcontext()

    def _tell(self, loss: float, tokens_per_s: float) -> None:
        step, settings = self.position.step, self._settings
        measured = self.held_out() if step % settings.held_out_steps == 0 else {}
        progress = self._progress()
        event = Progress(
            step=step,
            progress=progress,
            loss=loss,
            rate=learning_rate(progress, settings.warmup),
            tokens=self.position.tokens,
            elapsed_s=self.position.elapsed_s,
            tokens_per_s=tokens_per_s,
            held_out=measured,
        )
        self._report(event)
        if measured or step % settings.log_steps == 0:
            with (self._folder / "log.jsonl").open("a") as log:
                log.write(json.dumps(asdict(event)) + "\n")

    def _forget_log(self) -> None:
        """Drops what the log says of steps after the checkpoint: they are done again."""
        path = self._folder / "log.jsonl"
        if path.is_file():
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if json.loads(line)["step"] <= self.position.step))

    def _save(self) -> None:
        weights = {name: tensor.detach() for name, tensor in self.module.named_parameters()}
        save_checkpoint(self._folder, self.position, weights, self._optimizers.state_dict())
