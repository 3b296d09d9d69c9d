"""Shows a training run: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from benchctl.measuring.clock import Clock
    from benchctl.training.modules.objective import HeldOut
    from benchctl.training.modules.own_text import Answered
    from benchctl.training.progress import Progress

LINE_EVERY_S = 30.0
SHOWN_MEASURES = 13


class TrainingDisplay:
    """Told of every step and every batch of answers; outside a terminal quiet but for a line every half minute.

    One that is not `shown` says nothing: only the first of several processes speaks.
    """

    def __init__(self, clock: Clock, shown: bool = True) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self.clock = clock
        self._shown = shown
        self._console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=self._console, transient=True
        )
        self._task = self._bars.add_task("reading", total=None)
        self._last_line = float("-inf")

    def __enter__(self) -> TrainingDisplay:
        if self._shown and self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars.live.is_started:
            self._bars.stop()

    def progress(self, progress: Progress) -> None:
        """After a step."""
        self._show(describe(progress), progress.progress)
        for name, held in progress.held_out.items():
            self.notify(f"  {describe_held_out(name, held)}")

    def answered(self, answered: Answered) -> None:
        """After a batch of answers."""
        self._show(describe_answered(answered), answered.done / max(answered.of, 1))

    def notify(self, notice: str) -> None:
        """A line that stays."""
        if self._shown:
            self._console.print(notice, markup=False, highlight=False, soft_wrap=True)

    def _show(self, text: str, share: float) -> None:
        self._bars.update(self._task, total=1.0, completed=share, description=text)
        if self.clock() - self._last_line >= LINE_EVERY_S and self._shown and not self._console.is_terminal:
            click.echo(text, err=True)
            self._last_line = self.clock()


def describe(progress: Progress) -> str:
    """One line: step, loss, speed, time left."""
    left_s = progress.elapsed_s * (1 - progress.progress) / max(progress.progress, 1e-9)
    parts = [
        f"step {progress.step}",
        f"{progress.progress:.1%}",
        f"loss {progress.loss:.3f}",
        f"{progress.tokens_per_s:.0f} tokens/s",
        f"{left_s / 60:.0f} min left",
    ]
    return "  ".join(parts)


def describe_held_out(name: str, held: HeldOut) -> str:
    """One line: the measures of a held-out set, the first dozen where there are many."""
    shown = [f"{key} {tally.share:.3f}" for key, tally in list(held.items())[:SHOWN_MEASURES]]
    more = [f"and {len(held) - SHOWN_MEASURES} more in log.jsonl"] if len(held) > SHOWN_MEASURES else []
    return f"{name}: " + "  ".join([*shown, *more])


def describe_answered(answered: Answered) -> str:
    """One line: prompts answered, speed."""
    return f"{answered.done} of {answered.of} prompts answered  {answered.tokens_per_s:.0f} tokens/s"
