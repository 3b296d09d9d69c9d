"""How far a training run is, and what follows from it: the learning rate and the stage of the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ScheduleName = Literal["cosine", "linear"]


@dataclass(frozen=True)
class Budget:
    """The length of a run: a number of steps, or seconds of training time. Exactly one is given."""

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.seconds is None):
            raise ValueError("give either a number of steps or a time, not both and not neither")

    def progress(self, step: int, elapsed_s: float) -> float:
        """0 at the beginning, 1 when the budget is spent."""
        if self.steps is not None:
            return min(1.0, step / self.steps)
        assert self.seconds is not None
        return min(1.0, elapsed_s / self.seconds)


@dataclass(frozen=True)
class Stage:
    """Part of a run, up to the progress `until`: rows of `row_tokens` tokens, `micro_rows` of them a micro-batch."""

    until: float
    row_tokens: int
    micro_rows: int

    def micro_batches(self, batch_tokens: int) -> int:
        """How many micro-batches make up a step of `batch_tokens` tokens; one at least."""
        return max(1, batch_tokens // (self.row_tokens * self.micro_rows))


def fitting(stages: tuple[Stage, ...], longest: int) -> tuple[Stage, ...]:
    """The same stages with rows of `longest` tokens at most, and so many more of them.

    fitting((Stage(1.0, 1024, 2),), 256) is (Stage(1.0, 256, 8),).
    """
    lengths = [min(stage.row_tokens, longest) for stage in stages]
    return tuple(
        Stage(stage.until, length, stage.row_tokens * stage.micro_rows // length)
        for stage, length in zip(stages, lengths, strict=True)
    )


def learning_rate(progress: float, warmup: float = 0.02, schedule: ScheduleName = "cosine") -> float:
    """Factor on the peak rate: linear warm-up over that share of the run, then half a cosine or a line down to 0.

    learning_rate(0.01, warmup=0.02) is 0.5, learning_rate(0.02, warmup=0.02) is 1, learning_rate(1) is 0.
    """
    if progress < warmup or warmup == 1:
        return progress / warmup
    along = (progress - warmup) / (1 - warmup)
    return 1 - along if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * along))


def stage_index(stages: tuple[Stage, ...], progress: float) -> int:
    """The stage that `progress` falls into; the last one from its beginning to the end of the run."""
    return next((index for index, stage in enumerate(stages) if progress < stage.until), len(stages) - 1)
