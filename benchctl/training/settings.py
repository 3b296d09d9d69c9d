"""What a training run is told: its settings and its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from benchctl.training.data.packing import Batch
from benchctl.training.optim import OptimizerSettings
from benchctl.training.schedule import Budget, ScheduleName, Stage


@dataclass(frozen=True)
class TrainSettings:
    """Everything that decides the result of a run besides the module, the objective and the data.

    `warmup` is a share of the run, `clip` the largest norm of the gradient, `device` cpu or cuda. bf16 is autocast: the
    weights keep their own precision, and a float64 module is trained in float64.
    """

    budget: Budget
    stages: tuple[Stage, ...]
    batch_tokens: int = 8192
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleName = "cosine"
    warmup: float = 0.02
    clip: float = 1.0
    seed: int = 0
    device: str = "cpu"
    bf16: bool = True
    compiled: bool = False
    checkpoint_s: float = 240.0
    held_out_steps: int = 100
    log_steps: int = 10

    def fingerprint(self) -> dict[str, str]:
        """What a resumed run must have in common with the one it continues.

        Not the rates, which may be lowered after a loss that was not finite, and nothing that leaves the result alone.
        """
        entries = {
            "budget_steps": self.budget.steps,
            "budget_s": self.budget.seconds,
            "batch_tokens": self.batch_tokens,
            "optimizer": self.optimizer.name,
            "decay": self.optimizer.decay,
            "matrix_decay": self.optimizer.matrix_decay,
            "schedule": self.schedule,
            "warmup": self.warmup,
            "clip": self.clip,
            "seed": self.seed,
            "bf16": self.bf16,
            "compiled": self.compiled,
            **{f"stage {number}": stage for number, stage in enumerate(self.stages, start=1)},
        }
        return {name: str(value) for name, value in entries.items()}


class Rows(Protocol):
    """Training rows by their number since the beginning of a stage; PackedCorpus is one."""

    def rows(self, start: int, count: int) -> Batch: ...


@dataclass(frozen=True)
class Data:
    """Training rows per stage, held-out batches per name, and the bytes of every token [vocabulary].

    `long_held_out` counts the held-out chats that are not measured because they are longer than a row. `longest_row` is
    how many tokens a row may have, None where the model is not there yet.
    """

    stages: Sequence[Rows]
    held_out: Mapping[str, Sequence[Batch]]
    token_bytes: Tensor
    long_held_out: int = 0
    longest_row: int | None = None
