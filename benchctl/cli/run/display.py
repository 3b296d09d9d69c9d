"""Shows a run on stderr: a bar with the time left in a terminal, a line at the start and at the end elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from benchctl.measuring.clock import Clock
from benchctl.measuring.session import Notice, Progress

if TYPE_CHECKING:
    from benchctl.measuring.check import CheckedRun
    from benchctl.measuring.run import RunSummary

REFRESH_S = 0.2


class RunDisplay:
    """Called with every event of a run.

    The bar is drawn only when called, between two generations: a thread that drew it by itself would take its time out
    of the steps that are being measured.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock or Clock()
        self._drawn_s = float("-inf")
        self._bars = Bars(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),  # a label's brackets are no markup
            console=self._console,
            auto_refresh=False,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bars.add_task("loading models", total=None)

    def __enter__(self) -> RunDisplay:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def __call__(self, event: Notice | Progress) -> None:
        if isinstance(event, Notice):
            self.notice(event.text)
        else:
            self._move(event)

    def notice(self, text: str) -> None:
        """A line of its own above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, checked: CheckedRun) -> None:
        self.notice(describe(checked))

    def end(self, summary: RunSummary) -> None:
        self._bars.stop()
        self.notice(describe_end(summary))

    def _move(self, progress: Progress) -> None:
        now_s = self._clock()
        label = f"warm-up {progress.label}" if progress.warm_up else progress.label
        if self._drawn_s == float("-inf"):
            # What an earlier process measured took this one no time, and must not enter the estimate of the time left.
            self._bars.reset(self._task, total=progress.total, completed=progress.done)
        self._bars.update(self._task, description=label, completed=progress.done, total=progress.total)
        if now_s - self._drawn_s >= REFRESH_S:
            self._drawn_s = now_s
            self._bars.refresh()


def describe(checked: CheckedRun) -> str:
    """What will be measured, on what, and where the results go."""
    suites = ", ".join(f"{len(suite.prompts)} of {suite.name} ({suite.source})" for suite in checked.suites)
    labels = ", ".join(choice.label for choice in checked.choices if not choice.unsupported)
    threads = checked.settings.models.threads
    where = checked.device if checked.device != "cpu" else f"cpu, {threads} thread{'s' if threads > 1 else ''}"
    batches = f", in batches of up to {size}" if (size := checked.settings.batch_size) > 1 else ""
    target = f"{checked.models.target}, {checked.dtype}, {where}{batches}"
    modes = ", ".join(checked.settings.repeat.modes[1:])
    extra = f" Beside running freely: {modes}." if modes else ""
    filled = f", behind {size} tokens of filler" if (size := len(checked.filler.ids)) else ""
    return f"Prompts: {suites}{filled}. Target: {target}. Methods: {labels}.{extra} -> {checked.out}"


def describe_end(summary: RunSummary) -> str:
    """How much was measured, how long it took, and what share of that was none of the methods' doing."""
    parts = [f"{summary.measured} generations measured in {summary.wall_s:.0f} s"]
    parts += [f"{summary.recalled} were there before"] if summary.recalled else []
    parts += [f"{summary.failed} FAILED: see `error` in their rows"] if summary.failed else []
    parts += [f"{summary.marked} rounds disturbed: see `invalid` in their rows"] if summary.marked else []
    parts += [f"{summary.lost} rounds NOT made good by measuring again"] if summary.lost else []
    if summary.measured:
        parts += [f"{summary.warm_up_rounds} warm-up rounds", f"{summary.harness_share:.1%} of the time outside steps"]
    return "; ".join(parts) + "."
