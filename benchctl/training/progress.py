"""The progress of a training run, and the log.jsonl that keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchctl.training.checkpoint import writing
from benchctl.training.modules.objective import HeldOut


@dataclass(frozen=True)
class Progress:
    """What the loop reports after a step; `held_out` by the name of the set, only when it was measured.

    `loss` is the mean over the step's tokens in nats, `rate` the factor on the peak learning rate, `tokens` (padding
    included) and `elapsed_s` count from the beginning of the run, `tokens_per_s` is the speed of this step without its
    measuring.
    """

    step: int
    progress: float
    loss: float
    rate: float
    tokens: int
    elapsed_s: float
    tokens_per_s: float
    held_out: Mapping[str, HeldOut] = field(default_factory=dict)


class TrainingLog:
    """log.jsonl in `folder`: a line of JSON per measured step, held-out measures as means."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log.jsonl"

    def add(self, progress: Progress) -> None:
        """Raises UserError when the disk is full."""
        means = {name: {key: tally.share for key, tally in held.items()} for name, held in progress.held_out.items()}
        line = json.dumps({**asdict(progress), "held_out": means})
        with writing(self._path.parent, self._path.name), self._path.open("a") as log:
            log.write(line + "\n")

    def losses(self) -> list[dict[str, float]]:
        """Of every step that was measured: its number, its own loss, and that of each held-out set by its name."""
        lines = self._path.read_text().splitlines() if self._path.is_file() else []
        measured = [line for line in map(json.loads, lines) if line["held_out"]]
        return [
            {"step": line["step"], "loss": line["loss"]} | {name: of["loss"] for name, of in line["held_out"].items()}
            for line in measured
        ]

    def forget_after(self, step: int) -> None:
        """Drops what it says of later steps, which a resumed run does again, and a line torn by a kill.

        Raises UserError when the disk is full; the log is then as it was.
        """
        if self._path.is_file():
            lines = self._path.read_text().splitlines()
            kept = [line + "\n" for line in lines if _step(line) <= step]
            partial = self._path.with_name(f".partial-{self._path.name}")
            with writing(self._path.parent, self._path.name):
                try:
                    partial.write_text("".join(kept))
                    partial.rename(self._path)
                finally:
                    partial.unlink(missing_ok=True)


def _step(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except json.JSONDecodeError:
        return float("inf")
