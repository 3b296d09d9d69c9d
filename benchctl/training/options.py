"""What a training job is told, in plain values: the command line makes it without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchctl.errors import UserError
from benchctl.training.schedule import ScheduleName


@dataclass(frozen=True)
class Learning:
    """How a part is trained: rates are peaks, `warmup` is a share of the run, `epochs` its length if none is given."""

    optimizer: str
    rate: float
    matrix_rate: float
    schedule: ScheduleName
    warmup: float
    batch_tokens: int
    epochs: float | None = None


MODEL_LEARNING = Learning("muon", 3e-3, 0.015, "cosine", 0.02, 4096)
DRAFT_LEARNING = Learning("adamw", 1e-3, 0.01, "cosine", 0.05, 4096)


@dataclass(frozen=True)
class TrainOptions:
    """What the user asked for; None is the part's own default.

    One of `minutes`, `steps` and `epochs` is the length of the run. `self_distil` prompts are answered by the target
    itself, with `answer_tokens` tokens at most, and are what is learned from. `cache` keeps the answers, below `out` if
    it is None. `reference_mix` adds the tasks and story requests of the reference recipe to the data.
    """

    data: tuple[str, ...]
    out: Path
    model: str = ""
    minutes: float | None = None
    steps: int | None = None
    epochs: float | None = None
    optimizer: str | None = None
    rate: float | None = None
    matrix_rate: float | None = None
    schedule: ScheduleName | None = None
    warmup: float | None = None
    batch_tokens: int | None = None
    clip: float = 1.0
    row_tokens: int = 512
    micro_rows: int = 4
    answers_only: bool = False
    reference_mix: bool = True
    self_distil: int = 0
    self_distil_temperature: float = 0.0
    answer_tokens: int = 160
    cache: Path | None = None
    held_out_every: int = 100
    device: str = "cpu"
    dtype: str = "auto"
    compiled: bool = False
    resume: bool = False
    seed: int = 0

    def with_defaults(self, learning: Learning) -> TrainOptions:
        """These options, what was left open filled in. Raises UserError unless the length is given in one way."""
        given = [length for length in (self.minutes, self.steps, self.epochs) if length is not None]
        if len(given) > 1 or (not given and learning.epochs is None):
            raise UserError("Give the length of the training with one of --minutes, --steps and --epochs.")
        return replace(
            self,
            epochs=self.epochs if given else learning.epochs,
            optimizer=self.optimizer or learning.optimizer,
            rate=learning.rate if self.rate is None else self.rate,
            matrix_rate=learning.matrix_rate if self.matrix_rate is None else self.matrix_rate,
            schedule=self.schedule or learning.schedule,
            warmup=learning.warmup if self.warmup is None else self.warmup,
            batch_tokens=learning.batch_tokens if self.batch_tokens is None else self.batch_tokens,
        )


@dataclass(frozen=True)
class Provenance:
    """What makes the result again: the command line (names of folders instead of paths), the code and its libraries."""

    command: str
    commit: str
    versions: Mapping[str, str]
