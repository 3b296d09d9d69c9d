"""`benchctl train`: a draft model, or the modules of a method, from the user's own data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from benchctl.cli import OUT
from benchctl.cli.options import Command, given, options_from, typed
from benchctl.registry import TRAINABLE, parse_label
from benchctl.training.train_options import DraftOptions, DraftStart, ModuleOptions

if TYPE_CHECKING:
    from benchctl.training.jobs import JobContext
    from benchctl.training.record import Result
    from benchctl.training.train_options import TrainOptions

CALIBRATE_OPTIONS = (
    *("calibrate", "calibrate_prompts", "model", "data", "out"),
    *("answer_tokens", "seed", "device", "dtype", "threads"),
)


class Parts(click.Group):
    """Models and tools are commands; any other name is the label of a method whose modules are to be trained."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *sorted(TRAINABLE)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if known := super().get_command(ctx, cmd_name):
            return known
        label = parse_label(cmd_name)
        if label.name not in TRAINABLE:
            from benchctl.training.modules.job import trainable

            trainable(label)
        return _modules_command(label.text)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in (("Models and tools", list(self.commands)), ("Methods", sorted(TRAINABLE))):
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(heading):
                formatter.write_dl([(name, known.get_short_help_str(70)) for name, known in commands if known])


class _Estimable(click.Command):
    """A command that needs neither data nor a folder where --estimate is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--estimate" in args:
            for parameter in self.params:
                parameter.required = parameter.required and parameter.name == "model"
        return super().parse_args(ctx, args)


def data_options(command: Command) -> Command:
    """The two required options of every training."""
    files = "JSON lines or text file, folder, or data set on the hub. May be repeated."
    folder = "Folder for the result and its checkpoints."
    data = click.option("--data", multiple=True, required=True, metavar="PATH|ID", help=files)
    out = click.option("--out", type=click.Path(path_type=Path), required=True, help=folder)
    return data(out(command))


def model_option(help_text: str) -> Callable[[Command], Command]:
    """The required --model."""
    return click.option("--model", required=True, metavar="NAME|FOLDER|ID", help=help_text)


@click.group(cls=Parts, subcommand_metavar="PART [OPTIONS]...")
def train() -> None:
    """Train a draft model, or the modules of a method, for your target.

    A method is given as a label, such as 'medusa[heads=3]'. To use several processes, start it with torchrun.

    \b
    Examples:
      benchctl train medusa --model ref-dense --data my.jsonl --out medusa-heads
      benchctl train draft --model ref-dense --data my.jsonl --out my-draft --minutes 15
    """


@train.command()
@data_options
@model_option("The target, which is not changed.")
@options_from(DraftOptions, "options")
@options_from(DraftStart, "start")
def draft(options: DraftOptions, start: DraftStart) -> None:
    """Train a draft model: a few layers that learn the target's next-token distribution.

    \b
    Examples:
      benchctl train draft --model ref-dense --data my.jsonl --out my-draft --minutes 15
    """

    def job(job_context: JobContext) -> Result | None:
        from benchctl.training.draft_model import train_draft

        return train_draft(options, start, job_context)

    run_job(job, options, options.model)


def _modules_command(label: str) -> click.Command:
    """The command that trains the modules of one method; the method itself is imported when it runs."""

    @click.command(name=label, cls=_Estimable, short_help=f"Train the modules of the method {label}.")
    @data_options
    @model_option("The target, which is not changed.")
    @options_from(ModuleOptions, "options")
    @click.option("--estimate", is_flag=True, help="Only print the expected memory; needs no --data.")
    @click.option(
        "--calibrate",
        default="",
        metavar="DELTA,EPSILON",
        help="Do not train. Find the lowest threshold at which, with probability 1 - EPSILON, on average at most a "
        "share DELTA of an answer comes after its first difference from the target's. For early_exit, deed, "
        "m2r2_dynamic and specee.",
    )
    @click.option(
        "--calibrate-prompts",
        type=click.IntRange(min=1),
        default=200,
        show_default=True,
        metavar="N",
        help="Held-out prompts that --calibrate decodes.",
    )
    def modules(options: ModuleOptions, estimate: bool, calibrate: str, calibrate_prompts: int) -> None:
        def job(job_context: JobContext) -> Result | None:
            from benchctl.training.modules.job import train_modules

            return train_modules(options, label, job_context)

        if not calibrate and any(each.name == "calibrate_prompts" for each in given(click.get_current_context())):
            raise click.UsageError("--calibrate-prompts has no effect without --calibrate. Leave it out.")
        if calibrate:
            _calibrate(options, label, calibrate, calibrate_prompts)
        elif estimate:
            _print_estimate(options, label)
        else:
            run_job(job, options, options.model)

    quoted = f"'{label}'" if "[" in label else label
    modules.help = (
        f"Train the modules of the method {label} on a frozen target.\n\n\b\nExamples:\n"
        f"  benchctl train {quoted} --model ref-dense --data my.jsonl --out {parse_label(label).name}-modules\n"
        f"  benchctl train {quoted} --model ref-dense --estimate"
    )
    return modules


def _print_estimate(options: ModuleOptions, label: str) -> None:
    from benchctl.cli.display import memory_table
    from benchctl.measuring.machine.host import free_memory_bytes
    from benchctl.training.jobs import check_device
    from benchctl.training.modules.job import estimate

    check_device(options.device)
    needed = estimate(options, label)
    click.echo(f"{label} on {options.model}: memory by formula, not measured.")
    click.echo(f"parameters: target {needed.target_parameters:,}, modules {needed.module_parameters:,}")
    click.echo(memory_table(needed.memory_bytes, free_memory_bytes(options.device)))
    steps = "" if options.steps is None else f", {options.steps * needed.step_tokens:,} in {options.steps:,} steps"
    click.echo(f"tokens: {needed.step_tokens:,} per step{steps}")
    click.echo("Time is not estimated. Training prints its speed after the first steps.")


def _calibrate(options: ModuleOptions, label: str, promised: str, prompts: int) -> None:
    """Calibrates a method's threshold. Raises UserError where no threshold was shown to be safe."""
    from benchctl.training.jobs import target_dtype
    from benchctl.training.modules.calibrate import Risk, calibrate

    context = click.get_current_context()
    training_only = [each.opts[0] for each in given(context) if each.name not in CALIBRATE_OPTIONS]
    if training_only:
        raise click.UsageError(f"--calibrate does not train. Leave out {training_only[0]}.")
    try:
        risk = Risk.read(promised)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--calibrate") from error
    with open_job(options) as job_context:
        calibrated = calibrate(options, label, risk, prompts, job_context)
    click.echo(
        f"Wrote {options.out}/calibration.json.\n"
        f"With probability {1 - risk.epsilon:g}, on similar prompts, on average at most a share {risk.delta:g} of an "
        "answer comes after its first difference from the target's.\n"
        f"Use it with:\n  benchctl run --model {options.model} --method '{calibrated}' --max-new-tokens "
        f"{options.answer_tokens} --device {options.device.partition(':')[0]} --dtype {target_dtype(options)}"
    )


REFERENCE = "python -m reference"
READ_CORPUS = "benchctl.read_corpus"


def run_job(job: Callable[[JobContext], Result | None], options: TrainOptions, model: str = "") -> None:
    """Runs `job` in the processes that torchrun has started, or in this one; only the first one shows anything."""
    click.get_current_context().meta[OUT] = options.out
    with open_job(options) as job_context:
        result = job(job_context)
    if result is None:
        return
    click.echo(f"Wrote {options.out}: {result.parameters:,} parameters.")
    for name, held in result.held_out.items():
        measures = ", ".join(f"{key} {tally.share:.3f}" for key, tally in held.items())
        click.echo(fill(f"{name}: {measures}", 80, initial_indent="  ", subsequent_indent="    "))
    click.echo(f"Use it with:\n  {result.use.format(folder=options.out, model=model)}")


@contextmanager
def open_job(options: TrainOptions) -> Iterator[JobContext]:
    """What a job needs in addition to its options. Its progress is shown while this is open.

    `meta[READ_CORPUS]` of the click context replaces `read_corpus`; reference/ sets it.
    """
    # A thread that waits for its sibling must leave the core to others; read by OpenMP when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from benchctl.cli.display import TrainingDisplay
    from benchctl.measuring.clock import Clock
    from benchctl.measuring.machine.host import commit, versions
    from benchctl.training.distributed import joined
    from benchctl.training.jobs import JobContext, check_device
    from benchctl.training.train_options import Provenance
    from benchctl.training.trainer import use_threads

    use_threads(options.threads)
    check_device(options.device)
    context, clock = click.get_current_context(), Clock(options.device)
    provenance = Provenance(command_line(context), commit(), versions())
    with (
        joined(options.device.partition(":")[0]) as world,
        TrainingDisplay(clock, world.leads) as shown,
        ExitStack() as held,
    ):
        job_context = JobContext(clock, provenance, shown.progress, shown.answered, shown.notice, world, held)
        yield replace(job_context, read_corpus=context.meta.get(READ_CORPUS, job_context.read_corpus))


def command_line(context: click.Context) -> str:
    """The command as it was typed, with the names of files and folders in place of their paths."""
    root = context.find_root()
    words = [root.command.name if root.command.name == REFERENCE else "benchctl"]
    contexts = [context]
    while contexts[0].parent is not None:
        contexts.insert(0, contexts[0].parent)
    for each in contexts:
        name = str(each.info_name)
        if each is not root:
            words.append(parse_label(name).without_places.text if "[" in name else name)
        for parameter in given(each):
            if parameter.name != "resume":
                value = each.params[str(parameter.name)]
                value = tuple(map(_without_place, value)) if isinstance(value, tuple) else _without_place(value)
                words += typed(parameter, value, " ")
    return " ".join(map(str, words))


def _without_place(value: Any) -> Any:
    """A file's or folder's name: nothing of where things lie on this machine. Any other value as it is."""
    is_path = isinstance(value, Path) or (isinstance(value, str) and Path(value).exists())
    return Path(value).resolve().name if is_path else value
