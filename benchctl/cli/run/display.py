"""Shows a run on stderr: in a terminal a bar, elsewhere a line now and then; both with the speed-up and time left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from benchctl.measuring.clock import Clock
from benchctl.measuring.session import Notice, Progress

if TYPE_CHECKING:
    from benchctl.measuring.check import CheckedRun
    from benchctl.measuring.run import RunSummary

REFRESH_S = 0.2  # of the bar
LINE_S = 30.0  # between two lines away from a terminal
_MOST_LINES = 20  # of a run: one for every 5%
_ENOUGH = 3  # generations of this process before the time left is estimated


class RunDisplay:
    """Called with every event of a run.

    It draws only when called, between two generations: a thread would take its time out of the measured steps.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock or Clock()
        self._shown_s = float("-inf")
        self._shown_done = 0
        self._start: tuple[float, int] | None = None  # seconds, and generations that earlier processes measured
        self._bars = Bars(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),  # the brackets of a label are no markup
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
            self._show(event)

    def notice(self, text: str) -> None:
        """A line of its own above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, checked: CheckedRun) -> None:
        self.notice(describe(checked))

    def end(self, summary: RunSummary) -> None:
        self._bars.stop()
        self.notice(describe_end(summary))

    def _show(self, progress: Progress) -> None:
        now_s = self._clock()
        if not progress.warm_up and self._start is None:
            self._start = now_s, progress.done
        if self._console.is_terminal:
            self._draw(progress, now_s)
        elif not progress.warm_up:
            self._print_line(progress, now_s)

    def _draw(self, progress: Progress, now_s: float) -> None:
        label = f"warm-up {progress.label}" if progress.warm_up else progress.label
        parts = filter(None, (label, self._left(progress, now_s), describe_speedups(progress.speedups)))
        self._bars.update(self._task, description="; ".join(parts), completed=progress.done, total=progress.total)
        if now_s - self._shown_s >= REFRESH_S:
            self._shown_s = now_s
            self._bars.refresh()

    def _print_line(self, progress: Progress, now_s: float) -> None:
        """At most every 30 s, or 5% of the run, whichever comes later; nothing in a run that is over before."""
        if self._shown_s == float("-inf"):
            self._shown_s, self._shown_done = now_s, progress.done
        done = progress.done - self._shown_done
        if now_s - self._shown_s < LINE_S or done * _MOST_LINES < progress.total:
            return
        self._shown_s, self._shown_done = now_s, progress.done
        parts = filter(None, (self._left(progress, now_s), describe_speedups(progress.speedups)))
        share = f"{progress.done / progress.total:.0%}"
        self.notice("; ".join((f"{share} ({progress.done} of {progress.total} generations)", *parts)))

    def _left(self, progress: Progress, now_s: float) -> str:
        """The time left by the pace of this process, or nothing before there is one."""
        if self._start is None or progress.done - self._start[1] < _ENOUGH:
            return ""
        pace_s = (now_s - self._start[0]) / (progress.done - self._start[1])
        return f"about {describe_duration(pace_s * (progress.total - progress.done))} left"


def describe_speedups(speedups: Mapping[str, float]) -> str:
    """`speed-up so far: two_model 1.31x, prompt_lookup 1.05x`, the fastest first; empty without any."""
    fastest_first = sorted(speedups.items(), key=lambda each: -each[1])
    return "speed-up so far: " * bool(speedups) + ", ".join(f"{label} {ratio:.2f}x" for label, ratio in fastest_first)


def describe_duration(seconds: float) -> str:
    """59 s, 12 min, 3 h 05 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def describe(checked: CheckedRun) -> str:
    """One line: what will be measured, on which machine, and the results file."""
    suites = ", ".join(f"{len(suite.prompts)} of {suite.name} ({suite.source})" for suite in checked.suites)
    labels = ", ".join(choice.label for choice in checked.choices if not choice.unsupported)
    threads = checked.settings.models.threads
    where = checked.device if checked.device != "cpu" else f"cpu, {threads} thread{'s' if threads > 1 else ''}"
    batches = f", in batches of up to {size}" if (size := checked.settings.batch_size) > 1 else ""
    target = f"{checked.models.target}, {checked.dtype}, {where}{batches}"
    modes = ", ".join(checked.settings.repeat.modes[1:])
    extra = f" Also measured: {modes}." if modes else ""
    filled = f", after {size} tokens of filler" if (size := len(checked.filler.ids)) else ""
    return f"Prompts: {suites}{filled}. Target: {target}. Methods: {labels}.{extra} -> {checked.out}"


def describe_end(summary: RunSummary) -> str:
    """One line: how much was measured, how long it took, and which share of the time was the harness."""
    parts = [f"{summary.measured} generations measured in {summary.wall_s:.0f} s"]
    parts += [f"{summary.recalled} were in the file before"] if summary.recalled else []
    parts += [f"{summary.failed} FAILED: see `error` in their rows"] if summary.failed else []
    parts += [f"{summary.marked} rounds disturbed: see `invalid` in their rows"] if summary.marked else []
    parts += [f"{summary.lost} rounds stayed disturbed in every retry"] if summary.lost else []
    if summary.measured:
        parts += [f"{summary.warm_up_rounds} warm-up rounds", f"{summary.harness_share:.1%} of the time outside steps"]
    return "; ".join(parts) + "."
