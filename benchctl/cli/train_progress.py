"""Shows a training run: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from benchctl.measuring.clock import Clock

if TYPE_CHECKING:
    from benchctl.training.trainer import Progress

LINE_EVERY_S = 30.0


class TrainingDisplay:
    """Called with every Progress of the loop; quiet outside a terminal but for a line every half minute."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self.clock = Clock()
        self._console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=self._console, transient=True
        )
        self._task = self._bars.add_task("training", total=1.0)
        self._last_line = float("-inf")

    def __enter__(self) -> TrainingDisplay:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def __call__(self, progress: Progress) -> None:
        text = describe(progress)
        self._bars.update(self._task, completed=progress.progress, description=text)
        due = self.clock() - self._last_line >= LINE_EVERY_S
        if progress.held_out or (due and not self._console.is_terminal):
            click.echo(text, err=True)
            self._last_line = self.clock()


def describe(progress: Progress) -> str:
    """One line: step, loss, speed, time left, held-out losses."""
    left_s = progress.elapsed_s * (1 - progress.progress) / max(progress.progress, 1e-9)
    parts = [
        f"step {progress.step}",
        f"{progress.progress:.1%}",
        f"loss {progress.loss:.3f}",
        f"{progress.tokens_per_s:.0f} tokens/s",
        f"{left_s / 60:.0f} min left",
    ]
    parts += [f"{name} {held.nats_per_token:.3f}" for name, held in progress.held_out.items()]
    return "  ".join(parts)
