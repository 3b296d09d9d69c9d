"""`benchctl train`: a draft model, or the modules of a method, from the user's own data."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from benchctl.cli import completion
from benchctl.cli.options import Command, options_from
from benchctl.cli.train.session import run_job, surroundings
from benchctl.errors import UserError
from benchctl.registry import builtin_file, builtin_names, parse_label
from benchctl.training.train_options import DraftOptions, DraftStart, TeacherOptions

if TYPE_CHECKING:
    from benchctl.training.jobs import Surroundings
    from benchctl.training.modules.calibrate import Risk
    from benchctl.training.record import Result

CALIBRATE_PROMPTS = 200
CALIBRATE_OPTIONS = (
    *("calibrate", "calibrate_prompts", "model", "data", "out"),
    *("answer_tokens", "seed", "device", "dtype", "threads"),
)
_BASES = re.compile(r"^class \w+\(([^)]*)\)", re.MULTILINE)
_SIBLINGS = re.compile(r"^from \.([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)


class Parts(click.Group):
    """Models and tools are commands; any other name is the label of a method whose modules are to be trained."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *_methods_with_modules()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = super().get_command(ctx, cmd_name)
        if known is not None:
            return known
        label = parse_label(cmd_name)
        if label.name not in _methods_with_modules():
            from benchctl.training.modules.job import trainable

            trainable(label)
        return _modules_command(label.text)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in (("Models and tools", list(self.commands)), ("Methods", _methods_with_modules())):
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
    out = click.option(
        "--out", type=click.Path(path_type=Path), required=True, help="Folder for the result and its checkpoints."
    )
    data = click.option(
        "--data",
        multiple=True,
        required=True,
        metavar="PATH|ID",
        help="JSON lines or text file, folder, or data set of the hub; may be repeated.",
    )
    return data(out(command))


def model_option(help_text: str) -> Callable[[Command], Command]:
    """The required --model."""
    return click.option(
        "--model", required=True, metavar="NAME|FOLDER|ID", shell_complete=completion.models, help=help_text
    )


@click.group(cls=Parts, subcommand_metavar="PART [OPTIONS]...")
def train() -> None:
    """Train a draft model, or the modules of a method for a target of yours.

    A method is given as a label, such as 'medusa[heads=3]'. Several processes share the work when torchrun starts them.

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

    def job(around: Surroundings) -> Result | None:
        from benchctl.training.draft_model import train_draft

        return train_draft(options, start, around)

    run_job(job, options, options.model)


@train.command()
@click.option("--run", type=click.Path(path_type=Path), required=True, help="The --out folder of an unfinished run.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the model.")
def export(run: Path, out: Path) -> None:
    """Write the newest checkpoint of an unfinished model as a model folder.

    \b
    Examples:
      benchctl train export --run my-draft --out so-far
    """
    from benchctl.training.jobs import export_checkpoint

    export_checkpoint(run, out, lambda notice: click.echo(notice, err=True))
    click.echo(f"Wrote {out}")


def _modules_command(label: str) -> click.Command:
    """The command that trains the modules of one method; the method itself is imported when it runs."""

    @click.command(name=label, cls=_Estimable, short_help=f"Train the modules of the method {label}.")
    @data_options
    @model_option("The target, which is not changed.")
    @options_from(TeacherOptions, "options")
    @click.option("--estimate", is_flag=True, help="Only print the memory to expect; needs no --data.")
    @click.option(
        "--calibrate",
        default="",
        metavar="DELTA,EPSILON",
        help="Train nothing. Find the lowest threshold whose answers lose at most a share DELTA of the target's, with "
        "probability 1 - EPSILON. For early_exit, deed and m2r2_dynamic.",
    )
    @click.option(
        "--calibrate-prompts",
        type=click.IntRange(min=1),
        default=CALIBRATE_PROMPTS,
        show_default=True,
        metavar="N",
        help="Held-out prompts that --calibrate decodes.",
    )
    def modules(options: TeacherOptions, estimate: bool, calibrate: str, calibrate_prompts: int) -> None:
        if calibrate:
            _calibrate(options, label, calibrate, calibrate_prompts)
            return
        if estimate:
            _print_estimate(options, label)
            return

        def job(around: Surroundings) -> Result | None:
            from benchctl.training.modules.job import train_modules

            return train_modules(options, label, around)

        run_job(job, options, options.model)

    typed = f"'{label}'" if "[" in label else label
    modules.help = (
        f"Train the modules of the method {label} on a frozen target.\n\n\b\nExamples:\n"
        f"  benchctl train {typed} --model ref-dense --data my.jsonl --out {parse_label(label).name}-modules\n"
        f"  benchctl train {typed} --model TinyLlama/TinyLlama-1.1B-Chat-v1.0 --estimate"
    )
    return modules


def _print_estimate(options: TeacherOptions, label: str) -> None:
    from benchctl.training.estimate import estimate

    found = estimate(options, label)
    click.echo(f"{label} on {options.model}: by formula, not measured. Training prints its real speed.")
    click.echo(f"parameters: target {found.target_parameters:,}, modules {found.module_parameters:,}")
    for name, size in found.memory_bytes.items():
        click.echo(f"{name:<12}{size / 1e9:>9.3f} GB")
    click.echo(f"{'sum':<12}{sum(found.memory_bytes.values()) / 1e9:>9.3f} GB")
    steps = "" if options.steps is None else f", {options.steps * found.step_tokens:,} in {options.steps:,} steps"
    click.echo("Logits are those of one prediction per token: multiply them by the heads or exits that are trained.")
    click.echo(f"tokens: {found.step_tokens:,} per step{steps}")


def _calibrate(options: TeacherOptions, label: str, promised: str, prompts: int) -> None:
    """Calibrates a method's threshold and prints every threshold tested and the label to run.

    Raises UserError where no threshold was shown to be safe.
    """
    risk = _risk(promised)
    with surroundings(options) as around:
        from benchctl.training.modules.calibrate import calibrate

        result = calibrate(options, label, risk, prompts, around)
    click.echo(f"Wrote {options.out}/calibration.json.")
    if result.label is None:
        raise UserError(
            "no_safe_threshold",
            f"over {result.prompts} prompts not even threshold {result.calibration.tested[0].threshold:g} was shown to "
            f"keep the risk below {risk.delta:g}; train the exits, give more prompts, or allow a larger delta",
        )
    click.echo(
        f"With probability {1 - risk.epsilon:g}, answers lose at most a share {risk.delta:g} of the target's own.\n"
        f"Use it with:\n  benchctl run --model {options.model} --method '{result.label}' "
        f"--max-new-tokens {options.answer_tokens}"
    )


def _risk(text: str) -> Risk:
    """Raises click.UsageError for a malformed bound, and for options that only a training has."""
    from benchctl.training.modules.calibrate import Risk

    context = click.get_current_context()
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    training_only = [name for name in given if name not in CALIBRATE_OPTIONS]
    if training_only:
        raise click.UsageError(f"--calibrate trains nothing; leave out --{training_only[0].replace('_', '-')}.")
    try:
        return Risk.read(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--calibrate") from error


def _methods_with_modules() -> list[str]:
    """Built-in methods that are Trainable; read from their files, since importing one loads torch for a second."""
    return [name for name in builtin_names() if _is_trainable(builtin_file(name))]


def _is_trainable(file: Path) -> bool:
    """Whether a class in the file is derived from Trainable, perhaps through a base that a sibling file holds."""
    text = file.read_text(encoding="utf-8")
    bases = set(re.findall(r"\w+", " ".join(_BASES.findall(text))))
    return "Trainable" in bases or any(
        _is_trainable(file.parent / f"{module.replace('.', '/')}.py")
        for module, names in _SIBLINGS.findall(text)
        if bases.intersection(re.findall(r"\w+", names))
    )
