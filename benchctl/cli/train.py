"""`benchctl train`: trains the reference target and its draft model from JSON lines files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click


@click.group()
def train() -> None:
    """Train the reference models.

    \b
    Example:
      benchctl train target --data data/train --out models/ref-dense --minutes 90
      benchctl train draft --model models/ref-dense --data data/train --out models/ref-draft --minutes 15
    """
    # A thread that waits for its sibling must leave the core to others; read by OpenMP when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that every training job has."""
    path = click.Path(path_type=Path)
    added = (
        click.option("--data", type=path, multiple=True, required=True, help="JSON lines file or folder; repeatable."),
        click.option("--out", type=path, required=True, help="Folder for the model and its checkpoints."),
        click.option("--minutes", type=click.FloatRange(min=0.01), help="Train this long; the rate is 0 by then."),
        click.option("--steps", type=click.IntRange(min=1), help="Train this many steps instead."),
        click.option("--threads", type=click.IntRange(min=1), help="CPU threads [default: what torch chooses]."),
        click.option("--resume", is_flag=True, help="Continue from the newest checkpoint in --out."),
        click.option("--compile/--no-compile", "compiled", help="Compile the loss with torch.compile."),
        click.option("--seed", default=0, show_default=True, help="Seed of weights and data order."),
        click.option("--batch-tokens", default=4096, show_default=True, help="Tokens per optimiser step."),
        click.option("--optimizer", type=click.Choice(["muon", "adamw"]), default="muon", show_default=True),
        click.option("--rate", default=4e-3, show_default=True, help="Peak learning rate of AdamW."),
        click.option("--matrix-rate", default=0.02, show_default=True, help="Peak learning rate of Muon."),
    )
    for option in reversed(added):
        command = option(command)
    return command


def shape_options(layers: int, hidden: int, heads: int, kv_heads: int, mlp: int) -> Callable[..., Callable[..., None]]:
    """The sizes of the model, with these defaults."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv-heads": kv_heads, "mlp": mlp, "positions": 1024}

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for name, default in reversed(sizes.items()):
            command = click.option(f"--{name}", default=default, show_default=True)(command)
        return command

    return add


@train.command()
@run_options
@shape_options(layers=16, hidden=192, heads=6, kv_heads=3, mlp=640)
@click.option("--vocabulary", default=4096, show_default=True, help="Tokens of the new tokenizer.")
def target(
    data: tuple[Path, ...],
    out: Path,
    minutes: float | None,
    steps: int | None,
    threads: int | None,
    resume: bool,
    compiled: bool,
    seed: int,
    batch_tokens: int,
    optimizer: str,
    rate: float,
    matrix_rate: float,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    mlp: int,
    positions: int,
    vocabulary: int,
) -> None:
    """Train a target: a small Llama with a tokenizer of its own.

    Records are {"instruction", "input", "output"} or {"text"}, with an optional "source". Chats in files named *val*
    and one text in a hundred are held out; simple synthetic chats are added.

    \b
    Example:
      benchctl train target --data data/train --out models/ref-dense --minutes 90 --threads 2
    """
    from benchctl.cli.train_progress import TrainingDisplay
    from benchctl.training.jobs import RunOptions, train_target
    from benchctl.training.models import ModelShape
    from benchctl.training.optim import OptimizerSettings, optimizer_name
    from benchctl.training.trainer import use_threads

    use_threads(threads)
    learning = OptimizerSettings(optimizer_name(optimizer), rate, matrix_rate)
    options = RunOptions(data, out, minutes, steps, resume, compiled, seed, batch_tokens, learning)
    shape = ModelShape(layers, hidden, heads, kv_heads, mlp, positions)
    with TrainingDisplay() as display:
        train_target(options, shape, vocabulary, display.clock, display)
    click.echo(f"Wrote {out}")


@train.command()
@run_options
@shape_options(layers=2, hidden=128, heads=4, kv_heads=2, mlp=352)
@click.option("--model", type=click.Path(path_type=Path), required=True, help="Folder of the target to draft for.")
@click.option("--prompts", default=3072, show_default=True, help="Prompts that the target answers as lessons.")
def draft(
    data: tuple[Path, ...],
    out: Path,
    minutes: float | None,
    steps: int | None,
    threads: int | None,
    resume: bool,
    compiled: bool,
    seed: int,
    batch_tokens: int,
    optimizer: str,
    rate: float,
    matrix_rate: float,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    mlp: int,
    positions: int,
    model: Path,
    prompts: int,
) -> None:
    """Distil a draft model from a target: first on the corpus, then on the target's own answers.

    \b
    Example:
      benchctl train draft --model models/ref-dense --data data/train --out models/ref-draft --minutes 15
    """
    from benchctl.cli.train_progress import TrainingDisplay
    from benchctl.training.jobs import RunOptions, train_draft
    from benchctl.training.models import ModelShape
    from benchctl.training.optim import OptimizerSettings, optimizer_name
    from benchctl.training.trainer import use_threads

    use_threads(threads)
    learning = OptimizerSettings(optimizer_name(optimizer), rate, matrix_rate)
    options = RunOptions(data, out, minutes, steps, resume, compiled, seed, batch_tokens, learning)
    shape = ModelShape(layers, hidden, heads, kv_heads, mlp, positions)
    with TrainingDisplay() as display:
        accepted = train_draft(options, model, prompts, shape, display.clock, display)
    click.echo(f"Wrote {out}; it drafts {accepted:.1%} of the target's greedy tokens right")


@train.command()
@click.option("--run", type=click.Path(path_type=Path), required=True, help="The --out folder of an unfinished run.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the model.")
def export(run: Path, out: Path) -> None:
    """Write the newest checkpoint of an unfinished run as a model folder.

    \b
    Example:
      benchctl train export --run models/ref-dense --out models/so-far
    """
    from benchctl.training.jobs import export_checkpoint

    export_checkpoint(run, out)
    click.echo(f"Wrote {out}")


@train.command()
@click.option("--model", type=click.Path(path_type=Path), required=True, help="Folder of a finished model.")
@click.option("--role", type=click.Choice(["target", "draft"]), required=True)
@click.option("--description", required=True, help="One line for the list of models.")
@click.option("--licence", default="Apache-2.0", show_default=True)
@click.option("--draft", default="", help="Name of the model that drafts for it.")
@click.option("--pack", type=click.Path(path_type=Path), required=True, help="The folder that holds index.json.")
def pack(model: Path, role: str, description: str, licence: str, draft: str, pack: Path) -> None:
    """Put a finished model into the reference pack, under its folder's name.

    \b
    Example:
      benchctl train pack --model models/ref-draft --role draft --description "2 layers" --pack benchctl/assets/models
    """
    from benchctl.training.pack import PackEntry, add_to_pack

    packed = add_to_pack(model, PackEntry(model.name, role, licence, description, draft), pack)
    click.echo(f"Packed {packed.name}: {packed.parameters:,} parameters, {packed.bytes:,} bytes")


if __name__ == "__main__":
    train()
