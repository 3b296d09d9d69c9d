"""How far a training run is, and what follows from it: the learning rate and the stage of the data."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
    """A part of the run, up to the progress `until`, with rows of `row_tokens` and `rows` of them in one pass."""

    until: float
    row_tokens: int
    micro_rows: int


def learning_rate(progress: float, warmup: float = 0.02, floor: float = 0.0) -> float:
    """Factor on the peak rate: linear warm-up, then half a cosine down to `floor`.

    learning_rate(0.01, warmup=0.02) is 0.5, learning_rate(0.02, warmup=0.02) is 1, learning_rate(1) is `floor`.
    """
    if progress < warmup:
        return progress / warmup
    along = (progress - warmup) / (1 - warmup)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * along))


def stage_index(stages: tuple[Stage, ...], progress: float) -> int:
    """The stage that `progress` falls into; the last one from its beginning to the end of the run."""
    return next((index for index, stage in enumerate(stages) if progress < stage.until), len(stages) - 1)
