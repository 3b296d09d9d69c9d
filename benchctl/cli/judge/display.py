"""Shows a judging on stderr: a bar with the money spent in a terminal, lines at the start and the end elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from benchctl.judging.budget import Spent
    from benchctl.judging.judge_settings import Forecast, Summary
    from benchctl.judging.judge_settings import Progress as Done


class JudgeDisplay:
    """Called with every judgement."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)
        self._begun = False

    def __enter__(self) -> JudgeDisplay:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, done: Done) -> None:
        if not self._begun:
            # What was there before took this judging no time, and must not enter the estimate of the time left.
            self._bar.reset(self._task, total=done.total, completed=done.done)
            self._begun = True
        self._bar.update(self._task, completed=done.done, description=money(done.spent))

    def notice(self, text: str) -> None:
        """A line of its own above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def money(spent: Spent) -> str:
    """What was spent, in words: `$0.0123`, or tokens where nobody knows the price."""
    if not spent.prompt_tokens or spent.usd == 0:
        return "nothing spent"
    if spent.usd is None:
        return f"{spent.prompt_tokens + spent.reply_tokens:,} tokens at an unknown price"
    doubt = f", ${spent.doubtful_usd:.4f} of it an upper bound" if spent.doubtful_usd else ""
    return f"${spent.usd:.4f} spent{doubt}"


def describe_forecast(forecast: Forecast, judge: str, price_source: str) -> str:
    """What a judging would do and cost; `price_source` is "" for a judge that sends no bills."""
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
            f"At most ${forecast.most_usd:.4f} if every reply is as long as it may be and none has to be retried."
        )
    if forecast.too_long:
        lines.append(f"{forecast.too_long} questions are too long for the judge and will be left out.")
    return "\n".join(lines + _lacking(forecast.left_out))


def describe_summary(summary: Summary, judge: str) -> str:
    """What a judging did."""
    parts = _parts(summary.stored, summary.ties, summary.recalled)
    lines = [f"{judge}: {summary.written} of {summary.judgements} judgements written{parts}; {money(summary.spent)}."]
    if summary.unreadable:
        lines.append(
            f"{summary.unreadable} have no scores, for no reply could be read: see `unreadable` in them. More --tries "
            "ask for them again."
        )
    if summary.unasked:
        lines.append(f"{summary.unasked} were left: --max-usd has no room for them. Judge again with more.")
    return "\n".join(lines + _lacking(summary.left_out))


def _parts(stored: int, ties: int, recalled: int) -> str:
    """Of these judgements, how many cost nothing, and why."""
    parts = [f", {stored} were there before"] if stored else []
    parts += [f", {ties} of equal answers, which tie"] if ties else []
    parts += [f", {recalled} of replies that were there or are shared"] if recalled else []
    return "".join(parts)


def _lacking(left_out: Mapping[str, int]) -> list[str]:
    return [f"{count} answers are left out: they lack {what}." for what, count in left_out.items()]
