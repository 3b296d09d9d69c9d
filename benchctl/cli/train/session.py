"""Runs a training job for the command line: its surroundings, its progress and its last lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from benchctl.registry import parse_label

if TYPE_CHECKING:
    from benchctl.measuring.clock import Clock
    from benchctl.training.jobs import Surroundings
    from benchctl.training.modules.objective import HeldOut
    from benchctl.training.modules.own_text import Answered
    from benchctl.training.progress import Progress
    from benchctl.training.record import Result
    from benchctl.training.train_options import TrainOptions

LINE_EVERY_S = 30.0
SHOWN_MEASURES = 13
REFERENCE = "python -m reference"


def run_job(job: Callable[[Surroundings], Result | None], options: TrainOptions, model: str = "") -> None:
    """Runs `job` in the processes that torchrun has started, or in this one; only the first one shows anything."""
    with surroundings(options) as around:
        result = job(around)
    if result is not None:
        click.echo(_end(result, options.out, model))


@contextmanager
def surroundings(options: TrainOptions) -> Iterator[Surroundings]:
    """What a job needs besides its options. Its progress is shown while this is open.

    An `obj` of the click context is what reads the data in place of `read_corpus`: reference/ sets one.
    """
    # A thread that waits for its sibling must leave the core to others; read by OpenMP when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from benchctl.measuring.clock import Clock
    from benchctl.measuring.machine.host import commit, versions
    from benchctl.training.distributed import joined
    from benchctl.training.jobs import Surroundings, check_device
    from benchctl.training.train_options import Provenance
    from benchctl.training.trainer import use_threads

    use_threads(options.threads)
    check_device(options.device)
    context = click.get_current_context()
    provenance = Provenance(command_line(context), commit(), versions())
    with (
        joined(options.device.partition(":")[0]) as world,
        TrainingDisplay(Clock(options.device), world.leads) as shown,
        ExitStack() as held,
    ):
        around = Surroundings(shown.clock, provenance, shown.progress, shown.answered, shown.notify, world, held)
        yield replace(around, read_corpus=context.obj) if context.obj else around


def command_line(context: click.Context) -> str:
    """The command as it was typed, with the names of files and folders in place of their paths."""
    root = context.find_root()
    words = [root.command.name if root.command.name == REFERENCE else "benchctl"]
    contexts = [context]
    while contexts[0].parent is not None:
        contexts.insert(0, contexts[0].parent)
    for each in contexts:
        words += [] if each is root else [_label(str(each.info_name))]
        for parameter in each.command.params:
            if each.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE:
                words += _typed(parameter, each.params[str(parameter.name)])
    return " ".join(map(str, words))


def _typed(parameter: click.Parameter, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [] if parameter.name == "resume" else [(parameter.opts if value else parameter.secondary_opts)[0]]
    values = value if isinstance(value, tuple) else (value,)
    return [f"{parameter.opts[0]} {_name(each)}" for each in values]


def _label(word: str) -> str:
    """A label with the name of its modules in place of their path; any other word as it is."""
    return parse_label(word).without_places.text if "[" in word else word


def _name(value: Any) -> str:
    """Nothing of where things lie on this machine."""
    return Path(value).resolve().name if isinstance(value, Path) or Path(str(value)).exists() else str(value)


def _end(result: Result, out: Path, model: str) -> str:
    lines = [f"Wrote {out}: {result.parameters:,} parameters."]
    for name, held in result.held_out.items():
        measures = ", ".join(f"{key} {tally.share:.3f}" for key, tally in held.items())
        lines.append(fill(f"{name}: {measures}", 80, initial_indent="  ", subsequent_indent="    "))
    return "\n".join([*lines, "Use it with:", f"  {result.use.format(folder=out, model=model)}"])


class TrainingDisplay:
    """Shows a training run: a bar in a terminal, elsewhere a line every half minute.

    It prints nothing unless `shown`: only the first of several processes prints.
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
