"""`benchctl train`: models, and the modules of methods, from the user's own data."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from benchctl.cli import completion as completing
from benchctl.cli.train.calibrate import calibrate_options, run_calibration
from benchctl.cli.train.options import (
    answers_only,
    device_options,
    gathered,
    learning_options,
    options_of,
    run_options,
    shape_options,
    start_options,
    target_options,
)
from benchctl.cli.train.session import run_job
from benchctl.errors import UserError
from benchctl.registry import builtin_file, builtin_names, parse_label
from benchctl.training.options import DRAFT_LEARNING, MODEL_LEARNING, TrainOptions
from benchctl.training.shapes import MOE, TARGET, DraftStart, ModelShape

if TYPE_CHECKING:
    from benchctl.training.jobs import Surroundings
    from benchctl.training.record import Result

MODELS, TOOLS = ("target", "draft", "moe"), ("export", "pack")
DRAFT_PROMPTS = 12_000
_TRAINABLE = re.compile(r"^class \w+\([^)]*\bTrainable\b", re.MULTILINE)


class _Parts(click.Group):
    """Models and tools are commands; any other name is the label of a method whose modules are to be trained."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*MODELS, *_methods_with_modules(), *TOOLS]

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
        methods = _methods_with_modules()
        for heading, names in (("Models", MODELS), ("Modules of methods", methods), ("What was trained", TOOLS)):
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(heading):
                formatter.write_dl([(name, found.get_short_help_str(70)) for name, found in commands if found])


class _Estimable(click.Command):
    """A command that needs neither data nor a folder where --estimate is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--estimate" in args:
            for parameter in self.params:
                parameter.required = parameter.required and parameter.name == "model"
        return super().parse_args(ctx, args)


@click.group(cls=_Parts, subcommand_metavar="PART [OPTIONS]...")
def train() -> None:
    """Train a model, or the modules of a method for a target of yours.

    A method is given as a label, such as 'medusa[heads=3]'. Several processes share the work when torchrun starts them.

    \b
    Examples:
      benchctl train medusa --model ref-dense --data my.jsonl --out medusa-heads
      benchctl train draft --model ref-dense --data my.jsonl --out my-draft --minutes 15
    """


@train.command()
@options_of(run_options(mix=True), answers_only(), shape_options(TARGET), learning_options(MODEL_LEARNING))
@device_options()
@click.option("--vocabulary", type=click.IntRange(min=300), default=4096, show_default=True, help="Of a new tokenizer.")
@click.option(
    "--init-from",
    default="",
    metavar="MODEL",
    help="Go on from a model, with its sizes and tokenizer.  [default: anew]",
)
@click.option("--exits", default="", metavar="4+8", help="Layers that learn to speak too (LITE).  [default: none]")
@click.option("--depths", default="", metavar="LABEL", help="Learn under the depths of skip_decode.  [default: all]")
@gathered
def target(
    options: TrainOptions,
    shape: ModelShape,
    threads: int | None,
    vocabulary: int,
    init_from: str,
    exits: str,
    depths: str,
) -> None:
    """Train a target: a small Llama with a tokenizer of its own, or a model of yours further.

    Records are {"instruction", "input", "output"}, {"messages"} or {"text"}, with an optional "source". Those in files
    named *val* are held out, else one in a hundred.

    \b
    Examples:
      benchctl train target --data data/train --out models/ref-dense --minutes 90 --threads 2
    """
    if init_from:
        _refuse_sizes(init_from)

    def job(around: Surroundings) -> Result | None:
        from benchctl.training.model_jobs import train_target

        return train_target(options, shape, vocabulary, init_from, exits, depths, around)

    run_job(job, options, threads)


@train.command()
@options_of(run_options(mix=True), target_options(DRAFT_PROMPTS), start_options(), learning_options(DRAFT_LEARNING))
@device_options()
@gathered
def draft(options: TrainOptions, start: DraftStart, threads: int | None) -> None:
    """Train a draft model: a few layers that learn to say what the target says.

    \b
    Examples:
      benchctl train draft --model ref-dense --data data/train --out models/ref-draft --minutes 15
    """

    def job(around: Surroundings) -> Result | None:
        from benchctl.training.draft.job import train_draft

        return train_draft(options, start, around)

    run_job(job, options, threads, options.model)


@train.command()
@click.option(
    "--model",
    required=True,
    metavar="NAME|FOLDER|ID",
    shell_complete=completing.models,
    help="The model whose tokenizer it shares.",
)
@options_of(run_options(mix=True), answers_only(), shape_options(MOE), learning_options(MODEL_LEARNING))
@device_options()
@click.option(
    "--init-from",
    type=click.Choice(["model", "scratch"]),
    help="Begin with the embedding and attention of --model, or anew.  [default: model, or scratch with other sizes]",
)
@gathered
def moe(
    options: TrainOptions, shape: ModelShape, threads: int | None, init_from: Literal["model", "scratch"] | None
) -> None:
    """Train a mixture of experts (OLMoE's layout) on the tokenizer of another model.

    \b
    Examples:
      benchctl train moe --model ref-dense --data data/train --out models/ref-moe --minutes 60
    """

    def job(around: Surroundings) -> Result | None:
        from benchctl.training.model_jobs import train_moe

        return train_moe(options, shape, init_from or "", around)

    run_job(job, options, threads)


@train.command()
@click.option("--run", type=click.Path(path_type=Path), required=True, help="The --out folder of an unfinished run.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the model.")
def export(run: Path, out: Path) -> None:
    """Write the newest checkpoint of an unfinished model as a model folder.

    \b
    Examples:
      benchctl train export --run models/ref-dense --out models/so-far
    """
    from benchctl.training.export import export_checkpoint

    export_checkpoint(run, out, lambda notice: click.echo(notice, err=True))
    click.echo(f"Wrote {out}")


@train.command()
@click.option("--model", type=click.Path(path_type=Path), required=True, help="Folder of a finished model or modules.")
@click.option("--role", type=click.Choice(["target", "draft", "moe", "modules"]), required=True, help="What it is.")
@click.option("--description", default="", help="One line about the model; every model needs one.")
@click.option("--data", default="", help="What it has read, in a few words, for the list of models; likewise.")
@click.option("--licence", default="Apache-2.0", show_default=True, help="Of the weights.")
@click.option("--draft", default="", help="Name of the model that drafts for it.  [default: none]")
@click.option("--pack", type=click.Path(path_type=Path), required=True, help="The folder that holds index.json.")
def pack(model: Path, role: str, description: str, data: str, licence: str, draft: str, pack: Path) -> None:
    """Put a finished model into the reference pack, under its folder's name; or modules, beside their target.

    \b
    Examples:
      benchctl train pack --model models/ref-draft --role draft --description "2 layers" \\
        --data "own answers" --pack benchctl/assets/models
      benchctl train pack --model models/m2r2 --role modules --pack benchctl/assets/models
    """
    from benchctl.training.pack import PackEntry, add_modules_to_pack, add_to_pack

    if role == "modules":
        packed = add_modules_to_pack(model, pack)
        click.echo(f"Packed modules of {packed.name}: {', '.join(packed.modules)}")
        return
    if not description or not data:
        raise click.UsageError("a model needs --description and --data.")
    packed = add_to_pack(model, PackEntry(model.resolve().name, role, licence, description, data, draft), pack)
    click.echo(f"Packed {packed.name}: {packed.parameters:,} parameters, {packed.bytes:,} bytes")


def _refuse_sizes(init_from: str) -> None:
    """Raises UserError for sizes asked for beside a model that has its own."""
    context = click.get_current_context()
    names = [*(field.name for field in fields(ModelShape)), "vocabulary"]
    given = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise UserError(f"{init_from} has sizes of its own; leave out --{given[0].replace('_', '-')}")


def _refuse_lengths() -> None:
    """Raises click.UsageError for a length that an estimate, which reads no data, cannot turn into tokens."""
    context = click.get_current_context()
    for name in ("minutes", "epochs"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--estimate cannot tell how many tokens --{name} are; give --steps, or no length.")


def _modules_command(label: str) -> click.Command:
    """The command that trains the modules of one method; the method itself is imported when it runs."""

    @click.command(name=label, cls=_Estimable, short_help=f"Train the modules of the method {label}.")
    @options_of(run_options(mix=False), target_options(0), learning_options(None), device_options())
    @click.option("--estimate", is_flag=True, help="Only print memory and time to expect on a GPU, without --data.")
    @calibrate_options()
    @gathered
    def modules(
        options: TrainOptions, threads: int | None, estimate: bool, calibrate: str, calibrate_prompts: int
    ) -> None:
        if calibrate:
            run_calibration(options, label, calibrate, calibrate_prompts, threads)
            return
        if estimate:
            _refuse_lengths()
            from benchctl.training.estimate import estimate as expected
            from benchctl.training.estimate import render

            click.echo(render(expected(options, label)))
            return

        def job(around: Surroundings) -> Result | None:
            from benchctl.training.modules.job import train_modules

            return train_modules(options, label, around)

        run_job(job, options, threads, options.model)

    typed = f"'{label}'" if "[" in label else label
    modules.help = (
        f"Train the modules of the method {label} on a frozen target.\n\n\b\nExamples:\n"
        f"  benchctl train {typed} --model ref-dense --data my.jsonl --out {parse_label(label).name}-modules\n"
        f"  benchctl train {typed} --model TinyLlama/TinyLlama-1.1B-Chat-v1.0 --estimate"
    )
    return modules


def _methods_with_modules() -> list[str]:
    """Built-in methods that are Trainable; read from their files, since importing one loads torch for a second."""
    return [name for name in builtin_names() if _TRAINABLE.search(builtin_file(name).read_text(encoding="utf-8"))]


if __name__ == "__main__":
    train()
