"""`python -m reference`: how the embedded models, their draft models and their modules were made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import click
from click.core import ParameterSource

from benchctl.cli.options import options_from
from benchctl.cli.train import READ_CORPUS, REFERENCE, Parts, data_options, draft, model_option, run_job
from benchctl.errors import UserError
from benchctl.options import setting
from benchctl.training.data.reading import read_corpus
from benchctl.training.train_options import ModelShape, TrainOptions
from reference.mixture import MoeShape
from reference.model_jobs import train_moe, train_target
from reference.pack import PackEntry, add_modules_to_pack, add_to_pack
from reference.recipe import reference_corpus


@dataclass(frozen=True)
class TargetStart:
    """What a target is before training."""

    vocabulary: int = setting(4096, "Size of a new tokenizer.", least=300)
    init_from: str = setting("", "Train this model further, with its sizes and tokenizer.", metavar="MODEL")


class _Refusal(click.ClickException):
    exit_code = 2


class _Group(Parts):
    """Ends with exit code 2 and a message where the user can correct the cause."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except UserError as error:
            raise _Refusal(str(error)) from error


@click.group(cls=_Group, name=REFERENCE, subcommand_metavar="PART [OPTIONS]...")
@click.option(
    "--mix/--no-mix", default=True, show_default=True, help="Add rule-made tasks, requests and chats; weigh sources."
)
@click.pass_context
def main(context: click.Context, mix: bool) -> None:
    """Train a model as the embedded ones were trained, or modules of a method on their data, and put it into the pack.

    `draft` and the methods are those of `benchctl train`, with the data of the recipe.
    """
    context.meta[READ_CORPUS] = reference_corpus if mix else read_corpus


main.add_command(draft)


@main.command()
@data_options
@options_from(TrainOptions, "options")
@options_from(ModelShape, "shape")
@options_from(TargetStart, "start")
def target(options: TrainOptions, shape: ModelShape, start: TargetStart) -> None:
    """Train a target: a small Llama with its own tokenizer, or a given model further.

    Records are {"instruction", "input", "output"}, {"messages"} or {"text"}, with an optional "source". Those in files
    named *val* are held out, else one in a hundred.

    \b
    Examples:
      python -m reference target --data data/train --out models/ref-dense --minutes 90 --threads 2
    """
    if start.init_from:
        _refuse_sizes(start.init_from)
    run_job(lambda around: train_target(options, shape, start.vocabulary, start.init_from, around), options)


@main.command()
@data_options
@model_option("The model whose tokenizer it shares.")
@options_from(TrainOptions, "options")
@options_from(MoeShape, "shape")
@click.option(
    "--init-from",
    type=click.Choice(["model", "scratch"]),
    help="Begin with the embedding and attention of --model, or with random weights.  "
    "[default: model, or scratch with other sizes]",
)
def moe(options: TrainOptions, shape: MoeShape, model: str, init_from: Literal["model", "scratch"] | None) -> None:
    """Train a mixture of experts (OLMoE's layout) on the tokenizer of another model.

    \b
    Examples:
      python -m reference moe --model ref-dense --data data/train --out models/ref-moe --minutes 60
    """
    run_job(lambda around: train_moe(options, shape, model, init_from or "", around), options)


@main.command()
@click.option("--model", type=click.Path(path_type=Path), required=True, help="Folder of a finished model or modules.")
@click.option("--role", type=click.Choice(["target", "draft", "moe", "modules"]), required=True, help="What it is.")
@click.option("--description", default="", help="One line about the model; every model needs one.")
@click.option("--data", default="", help="Its training data in a few words; every model needs this.")
@click.option("--licence", default="Apache-2.0", show_default=True, help="Of the weights.")
@click.option("--draft", default="", help="Name of the model that drafts for it.  [default: none]")
@click.option("--shares", default="", help="Fetched target whose embedding and tokenizer this draft model has.")
@click.option("--name", default="", help="Its name in the pack.  [default: the folder's; of modules, their method's]")
@click.option("--pack", type=click.Path(path_type=Path), required=True, help="The folder that holds index.json.")
def pack(
    model: Path, role: str, description: str, data: str, licence: str, draft: str, shares: str, name: str, pack: Path
) -> None:
    """Put a finished model into the pack under its folder's name, or modules next to their target.

    \b
    Examples:
      python -m reference pack --model models/ref-draft --role draft --description "2 layers" \\
        --data "own answers" --pack benchctl/assets/models
      python -m reference pack --model models/m2r2 --role modules --pack benchctl/assets/models
    """
    if role == "modules":
        packed = add_modules_to_pack(model, pack, name)
        click.echo(f"Packed modules of {packed.name}: {', '.join(packed.modules)}")
        return
    if not description or not data:
        raise click.UsageError("a model needs --description and --data.")
    packed = add_to_pack(
        model, PackEntry(name or model.resolve().name, role, licence, description, data, draft, shares), pack
    )
    click.echo(f"Packed {packed.name}: {packed.parameters:,} parameters, {packed.bytes:,} bytes")


def _refuse_sizes(init_from: str) -> None:
    """Raises UserError for sizes given next to a model that has its own."""
    context = click.get_current_context()
    names = [*(field.name for field in fields(ModelShape)), "vocabulary"]
    given = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise UserError("shape_is_given", f"{init_from} has sizes of its own; leave out --{given[0].replace('_', '-')}")


if __name__ == "__main__":
    main(prog_name=REFERENCE)
