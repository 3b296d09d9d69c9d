"""`benchctl watch`: a run as it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from benchctl.analysis.following import MethodSoFar, SoFar
    from benchctl.analysis.stats.estimates import Estimate

BUSY = 0.02  # the share of one core that looking may take from the run
_ENOUGH = 1.0  # prompts measured while watching, after which their pace tells the time left


class Timing(Protocol):
    """Seconds, and waiting for them: measuring.clock.Timer, or a fake of it."""

    def now_s(self) -> float: ...
    def wait_until(self, moment_s: float) -> None: ...


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Show how it stands and end.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.2),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look; rarer where looking would take more than 2% of a core.",
)
def watch(file: Path, once: bool, every_s: float) -> None:
    """Watch a running results file: speed-up so far, acceptance, fidelity, time left and what went wrong.

    Ends when the run does, or with Ctrl-C, which does nothing to the run. Figures are those of `benchctl compare`, over
    the rounds that are whole so far; who looks until a figure pleases is misled by its interval. A run of several
    sessions writes a file for each.

    \b
    Examples:
      benchctl watch results/first.jsonl
      benchctl watch results/first.jsonl --once
    """
    from rich.console import Console
    from rich.live import Live

    from benchctl.analysis.following import Follower
    from benchctl.measuring.clock import Timer
    from benchctl.records.writer import being_written

    follower = Follower(file)
    console = Console()
    if once:
        ended = not being_written(file)
        standing = follower.look(ended=ended)
        console.print(view(standing, None if ended else left_s(standing, None), ended))
        return
    with Live(console=console, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        follow(
            follower.look,
            lambda: being_written(file),
            lambda standing, left, ended: live.update(view(standing, left, ended), refresh=True),
            Timer(),
            every_s,
        )


class Look(Protocol):
    def __call__(self, *, ended: bool) -> SoFar: ...


def follow(
    look: Look,
    goes_on: Callable[[], bool],
    show: Callable[[SoFar, float | None, bool], None],
    time: Timing,
    every_s: float,
) -> None:
    """Look and show until the run has ended, every `every_s` seconds, or as rarely as BUSY asks for."""
    first: _Moment | None = None
    while True:
        began_s = time.now_s()
        ended = not goes_on()  # before looking: what it wrote last is seen then
        standing = look(ended=ended)
        pace = first and _Moment(began_s - first.at_s, standing.done - first.done)
        first = first or _Moment(began_s, standing.done)
        show(standing, None if ended else left_s(standing, pace), ended)
        if ended:
            return
        took_s = time.now_s() - began_s
        time.wait_until(began_s + max(every_s, took_s / BUSY))


class _Moment:
    """Seconds, and the prompts that were done by then or in that time."""

    def __init__(self, at_s: float, done: float) -> None:
        self.at_s, self.done = at_s, done


def left_s(standing: SoFar, pace: _Moment | None) -> float | None:
    """Seconds until the run ends: by the pace seen while watching, or else by the times of its generations, which leave
    out what lies between them; None before there is any."""
    left = max(standing.prompts - standing.done, 0.0)
    if pace and pace.done >= _ENOUGH:
        return left * pace.at_s / pace.done
    return left * standing.measured_s / standing.done if standing.done else None


def view(standing: SoFar, left: float | None, ended: bool) -> RenderableType:
    """What is shown of it."""
    from rich.console import Group
    from rich.text import Text

    notes = [Text(f"Note: {found}", style="yellow") for found in _warnings(standing, ended)]
    return Group(Text(_progress(standing, left, ended)), _table(standing), *notes)


def _progress(standing: SoFar, left: float | None, ended: bool) -> str:
    run = standing.run
    share = f"{standing.done:.0f} of {standing.prompts} prompts, {standing.generations} generations"
    if ended:
        state = "the run has ended"
    else:
        state = "time left not known yet" if left is None else f"about {_duration(left)} left"
    return f"{run.name}: {run.target.name}, {run.dtype}, {run.device}; {share}; {state}."


def _table(standing: SoFar) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from benchctl.analysis.comparison import label_lines

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("method", overflow="fold")
    for title in ("speed-up so far\n[95%]", "acceptance\nrate", "token\nagreement", "lossy", "generations"):
        table.add_column(Text(title), justify="right", no_wrap=True)
    for method in standing.methods:
        table.add_row(Text("\n ".join(label_lines(method.label))), *map(Text, _cells(method)))
    return table


def _cells(method: MethodSoFar) -> tuple[str, ...]:
    if method.is_baseline:
        return "baseline", "–", "–", "–", str(method.generations)
    return (
        _ratio(method.speedup),
        _share(method.acceptance_rate),
        _share(method.token_agreement),
        str(method.fidelity.lossy),
        str(method.generations),
    )


def _ratio(found: Estimate) -> str:
    if found.value is None:
        return "–"
    spread = f"{found.interval.low:.2f}, {found.interval.high:.2f}" if found.interval else "n/a"
    return f"{found.value:.2f}x [{spread}]"


def _share(found: Estimate) -> str:
    return "–" if found.value is None else f"{found.value:.3f}"


def _warnings(standing: SoFar, ended: bool) -> Iterator[str]:
    for method in standing.methods:
        if method.broken_claim:
            yield (
                f"{method.label} claims to be exact, but {method.broken_claim} of its answers left the baseline's by "
                "more than rounding: a bug in the method. Stop the run, and look at these rows."
            )
    if standing.failed:
        yield f"{standing.failed} generations failed, the last one: {standing.last_error}"
    if standing.disturbed_rounds:
        yield f"{standing.disturbed_rounds} rounds were measured out of bounds and left out: free the machine."
    if ended and standing.done < standing.prompts - 1e-9:
        yield "it ended before it was done: continue it with --resume."


def _duration(seconds: float) -> str:
    """59 s, 12 min, 3 h 05 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
