"""Progress and summaries of `run`, `judge` and `train` on stderr: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich import progress as bars
from rich.console import Console

from benchctl.measuring.clock import Clock
from benchctl.measuring.session import Notice, Progress

if TYPE_CHECKING:
    from benchctl.judging.budget import Spent
    from benchctl.judging.scoring import Forecast, Summary
    from benchctl.judging.scoring import Progress as Judged
    from benchctl.measuring.check import CheckedRun
    from benchctl.measuring.run import RunSummary
    from benchctl.training.modules.own_text import Answered
    from benchctl.training.trainer import Progress as Trained

REFRESH_S = 0.2  # of the bar
LINE_S = 30.0  # between two lines away from a terminal
_ENOUGH = 3  # generations of this process before the time left is estimated
_SHOWN_MEASURES = 13  # of a held-out set


class _Display:
    """A bar on stderr while it is entered, in a terminal only, and lines above it."""

    def __init__(
        self,
        *columns: bars.ProgressColumn,
        task: str = "",
        console: Console | None = None,
        clock: Callable[[], float] | None = None,
        draws_itself: bool = True,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._terminal = self._console.is_terminal
        description = bars.TextColumn("{task.description}", markup=False)  # the brackets of a label are no markup
        self._bars = bars.Progress(
            *columns,
            description,
            console=self._console,
            auto_refresh=draws_itself,
            transient=True,
            disable=not self._terminal,
        )
        self._task = self._bars.add_task(task, total=None)
        self._clock = clock or Clock()
        self._line_s = self._clock()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def notice(self, text: str) -> None:
        """A line of its own above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _line(self, *parts: str) -> None:
        """Outside a terminal a line at most every 30 s."""
        if not self._terminal and self._clock() - self._line_s >= LINE_S:
            self._line_s = self._clock()
            self.notice("; ".join(filter(None, parts)))


class RunDisplay(_Display):
    """Called with every event of a run.

    It draws only when called, between two generations: a thread would take its time out of the measured steps.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] | None = None) -> None:
        columns = (bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeElapsedColumn())
        super().__init__(*columns, task="loading models", console=console, clock=clock, draws_itself=False)
        self._shown_s = float("-inf")
        self._start: tuple[float, int] | None = None  # seconds, and generations that earlier processes measured

    def __call__(self, event: Notice | Progress) -> None:
        if isinstance(event, Notice):
            self.notice(event.text)
            return
        now_s = self._clock()
        if not event.warm_up and self._start is None:
            self._start = now_s, event.done
        if self._terminal:
            self._draw(event, now_s)
        elif not event.warm_up:
            share = f"{event.done / event.total:.0%} ({event.done} of {event.total} generations)"
            self._line(share, self._left(event, now_s))

    def begin(self, checked: CheckedRun) -> None:
        """One line: what will be measured, on which machine, and the results file."""
        suites = ", ".join(f"{len(suite.prompts)} of {suite.name} ({suite.source})" for suite in checked.suites)
        labels = ", ".join(choice.label for choice in checked.choices if not choice.unsupported)
        threads = checked.settings.models.threads
        where = checked.device if checked.device != "cpu" else f"cpu, {threads} thread{'s' if threads > 1 else ''}"
        batches = f", in batches of up to {size}" if (size := checked.settings.batch_size) > 1 else ""
        target = f"{describe_target(checked)}, {where}{batches}"
        modes = ", ".join(checked.settings.repeat.modes[1:])
        extra = f" Also measured: {modes}." if modes else ""
        filled = f", after {size} tokens of filler" if (size := len(checked.filler.ids)) else ""
        self.notice(f"Prompts: {suites}{filled}. Target: {target}. Methods: {labels}.{extra} -> {checked.out}")

    def end(self, summary: RunSummary) -> None:
        """One line: how much was measured and how long it took."""
        self._bars.stop()
        parts = [f"{summary.measured} generations measured in {summary.wall_s:.0f} s"]
        parts += [f"{summary.recalled} already in the file"] if summary.recalled else []
        parts += [f"{summary.failed} FAILED (see `error` in the file)"] if summary.failed else []
        parts += [f"{summary.marked} rounds disturbed (see `invalid` in the file)"] if summary.marked else []
        parts += [f"{summary.lost} rounds have no undisturbed try"] if summary.lost else []
        parts += [f"{count} of {label} are missing for lack of memory" for label, count in summary.missing.items()]
        if summary.measured:
            parts.append(f"{summary.warm_up_rounds} warm-up round{'s' * (summary.warm_up_rounds != 1)}")
        self.notice("; ".join(parts) + ".")

    def _draw(self, progress: Progress, now_s: float) -> None:
        label = f"warm-up {progress.label}" if progress.warm_up else progress.label
        parts = filter(None, (label, self._left(progress, now_s)))
        self._bars.update(self._task, description="; ".join(parts), completed=progress.done, total=progress.total)
        if now_s - self._shown_s >= REFRESH_S:
            self._shown_s = now_s
            self._bars.refresh()

    def _left(self, progress: Progress, now_s: float) -> str:
        """The time left by the pace of this process, or nothing before there is one."""
        if self._start is None or progress.done - self._start[1] < _ENOUGH:
            return ""
        pace_s = (now_s - self._start[0]) / (progress.done - self._start[1])
        return f"about {describe_seconds(pace_s * (progress.total - progress.done))} left"


def describe_target(checked: CheckedRun) -> str:
    """`smollm2 with float16 weights, float32`."""
    weights = f" with {form} weights" if (form := checked.settings.models.weights) != "auto" else ""
    return f"{checked.models.target}{weights}, {checked.dtype}"


def describe_seconds(seconds: float) -> str:
    """`40 s`, `5 min` or `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def memory_table(parts: Mapping[str, int], free_bytes: int | None, device: str = "") -> str:
    """A line for each part, for their sum, and for what is free; of one ``device`` where there are several."""
    sizes = {**parts, "sum": sum(parts.values())} | ({} if free_bytes is None else {"free": free_bytes})
    return "\n".join(f"{name:<12}{size / 1e9:>9.3f} GB  {device}".rstrip() for name, size in sizes.items())


class JudgeDisplay(_Display):
    """Called with every judgement."""

    def __init__(self) -> None:
        columns = (
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(),
        )
        super().__init__(bars.BarColumn(), *columns)
        self._begun = False

    def __call__(self, done: Judged) -> None:
        if not self._begun:
            # Judgements already in the file took no time: they must not enter the estimate of the time left.
            self._bars.reset(self._task, total=done.total, completed=done.done)
            self._begun = True
        self._bars.update(self._task, completed=done.done, description=money(done.spent))
        self._line(f"{done.done} of {done.total} judgements", money(done.spent))


def money(spent: Spent) -> str:
    """The cost: `$0.0123 spent`, or tokens if the price is unknown."""
    if not spent.prompt_tokens or spent.usd == 0:
        return "nothing spent"
    if spent.usd is None:
        return f"{spent.prompt_tokens + spent.reply_tokens:,} tokens at an unknown price"
    doubt = f", of which ${spent.doubtful_usd:.4f} is an upper bound" if spent.doubtful_usd else ""
    return f"${spent.usd:.4f} spent{doubt}"


def describe_forecast(forecast: Forecast, judge: str, price_source: str) -> str:
    """What a judging would do and cost; `price_source` is "" for a judge without cost."""
    usage = forecast.usage
    cost = "the price is unknown: give --price-in and --price-out" if forecast.usd is None else ""
    cost = cost if price_source and forecast.questions else "nothing"
    lines = [
        f"{judge}: {forecast.judgements} judgements{_parts(forecast.stored, forecast.ties, forecast.recalled)}.",
        f"To ask: {forecast.questions} questions, about {usage.prompt_tokens:,} prompt tokens and "
        f"{usage.reply_tokens:,} reply tokens.",
        f"Cost: {cost or f'about ${forecast.usd:.4f} ({price_source})'}.",
    ]
    if price_source and forecast.most_usd:
        lines.append(
            f"At most ${forecast.most_usd:.4f}, if every reply has the largest length and no request is repeated. "
            "Use this as --max-usd to ask all questions."
        )
    if forecast.too_long:
        lines.append(
            f"{forecast.too_long} questions are too long for the judge and are left out. Use one with more context."
        )
    return "\n".join(lines + _lacking(forecast.left_out))


def describe_summary(summary: Summary, judge: str) -> str:
    """What a judging did."""
    parts = _parts(summary.stored, summary.ties, summary.recalled)
    lines = [f"{judge}: {summary.written} of {summary.judgements} judgements written{parts}; {money(summary.spent)}."]
    if summary.unreadable:
        lines.append(
            f"{summary.unreadable} have no scores, because no reply could be read (`unreadable` in the file). Judge "
            "again with more --tries, or with another judge if this one always gives the same reply."
        )
    if summary.unasked:
        lines.append(f"{summary.unasked} were not judged, because of --max-usd. Judge again with a higher one.")
    if summary.too_long:
        lines.append(
            f"{summary.too_long} were not judged, because their questions are too long. Use a judge with more context."
        )
    return "\n".join(lines + _lacking(summary.left_out))


def _parts(stored: int, ties: int, recalled: int) -> str:
    """How many of these judgements cost nothing, and why."""
    parts = [f", {stored} already in the file"] if stored else []
    parts += [f", {ties} ties of equal answers"] if ties else []
    parts += [f", {recalled} from kept or shared replies"] if recalled else []
    return "".join(parts)


def _lacking(left_out: Mapping[str, int]) -> list[str]:
    return [f"{count} answers are left out, because they lack {what}." for what, count in left_out.items()]


class TrainingDisplay(_Display):
    """Progress of a training; nothing in a process that is not to be `shown`."""

    def __init__(self, clock: Callable[[], float], shown: bool = True, console: Console | None = None) -> None:
        super().__init__(bars.BarColumn(), bars.TimeElapsedColumn(), task="reading", console=console, clock=clock)
        self._line_s = float("-inf")  # the first line comes at once
        self._shown = shown
        self._bars.disable = not (shown and self._terminal)

    def notice(self, text: str) -> None:
        if self._shown:
            super().notice(text)

    def progress(self, progress: Trained) -> None:
        """After a step: loss, speed, time left, and a line for each held-out set with its first measures."""
        left_s = progress.elapsed_s * (1 - progress.progress) / max(progress.progress, 1e-9)
        self._show(
            f"step {progress.step}  {progress.progress:.1%}  loss {progress.loss:.3f}  "
            f"{progress.tokens_per_s:.0f} tokens/s  {left_s / 60:.0f} min left",
            progress.progress,
        )
        for name, held in progress.held_out.items():
            shown = [f"{key} {tally.share:.3f}" for key, tally in list(held.items())[:_SHOWN_MEASURES]]
            more = [f"and {len(held) - _SHOWN_MEASURES} more in log.jsonl"] if len(held) > _SHOWN_MEASURES else []
            self.notice(f"  {name}: " + "  ".join([*shown, *more]))

    def answered(self, answered: Answered) -> None:
        """After a batch of answers."""
        text = f"{answered.done} of {answered.of} prompts answered  {answered.tokens_per_s:.0f} tokens/s"
        self._show(text, answered.done / max(answered.of, 1))

    def _show(self, text: str, share: float) -> None:
        self._bars.update(self._task, total=1.0, completed=share, description=text)
        self._line(text)
