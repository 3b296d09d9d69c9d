"""The options of `benchctl train`, in the groups that its parts share, and the one value that they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from benchctl.cli import completion as completing
from benchctl.cli.options import FiniteRange
from benchctl.training.options import Learning, TrainOptions
from benchctl.training.shapes import DraftStart, ModelShape

Command = Callable[..., None]
Adder = Callable[[Command], Command]
_GATHERED: tuple[type[Any], ...] = (TrainOptions, ModelShape, DraftStart)
METHODS_OWN = "[default: the method's own]"
_SIZES = {
    "layers": "Decoder layers.",
    "hidden": "Width of the residual.",
    "heads": "Attention heads.",
    "kv_heads": "Heads of keys and values.",
    "mlp": "Inner width of the MLP, of each expert where there are some.",
    "positions": "Longest text, in tokens.",
    "experts": "Experts of a layer.",
    "experts_per_token": "Of these, run for a token.",
}


def gathered(command: Command) -> Command:
    """Calls `command` with one TrainOptions, ModelShape or DraftStart in place of the options that are its fields."""
    kinds = {kind.__name__: kind for kind in _GATHERED}
    wanted = {name: kinds[hint] for name, hint in command.__annotations__.items() if hint in kinds}

    @wraps(command)
    def gather(**values: Any) -> None:
        for name, kind in wanted.items():
            own = {field.name: values.pop(field.name) for field in fields(kind) if field.name in values}
            values[name] = kind(**own)
        command(**values)

    return gather


def options_of(*groups: Adder) -> Adder:
    """Several groups of options, in this order in the help."""

    def add(command: Command) -> Command:
        for group in reversed(groups):
            command = group(command)
        return command

    return add


def run_options(mix: bool) -> Adder:
    """What every part has; `mix`: whether the reference recipe's own tasks are added unless asked otherwise, as they
    are to models, of which none has a length of its own."""
    return options_of(
        click.option(
            "--data",
            multiple=True,
            required=True,
            metavar="PATH|ID",
            help="JSON lines or text file, folder, or data set of the hub; repeatable.",
        ),
        click.option(
            "--out", type=click.Path(path_type=Path), required=True, help="Folder for the result and its checkpoints."
        ),
        click.option("--minutes", type=FiniteRange(min=0.01), help="Length of the training by the clock,"),
        click.option("--steps", type=click.IntRange(min=1), help="or in optimiser steps,"),
        click.option(
            "--epochs",
            type=FiniteRange(min=0.01),
            help=f"or in passes through the data.  {'One of the three is needed.' if mix else METHODS_OWN}",
        ),
        click.option("--resume", is_flag=True, help="Continue from the newest checkpoint in --out."),
        click.option(
            "--reference-mix/--no-reference-mix",
            default=mix,
            show_default=True,
            help="Add the tasks, requests and small chats of the reference recipe.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Seed of fresh weights and of the data's order.",
        ),
        click.option(
            "--held-out-every",
            type=click.IntRange(min=1),
            default=100,
            show_default=True,
            metavar="STEPS",
            help="Measure on held-out text so often.",
        ),
    )


def learning_options(learning: Learning | None) -> Adder:
    """How to learn; `learning` is shown as the defaults, None for a method, which has its own."""

    def default(name: str) -> str:
        return METHODS_OWN if learning is None else f"[default: {getattr(learning, name)}]"

    optimizer = "[default: adamw]" if learning is None else default("optimizer")
    return options_of(
        click.option("--optimizer", type=click.Choice(["muon", "adamw"]), help=f"Muon is for matrices.  {optimizer}"),
        click.option("--rate", type=FiniteRange(min=0), help=f"Peak learning rate of AdamW.  {default('rate')}"),
        click.option("--matrix-rate", type=FiniteRange(min=0), help=f"That of Muon.  {default('matrix_rate')}"),
        click.option(
            "--schedule", type=click.Choice(["cosine", "linear"]), help=f"Way to zero.  {default('schedule')}"
        ),
        click.option("--warmup", type=FiniteRange(0, 1), help=f"Share of the run to warm up in.  {default('warmup')}"),
        click.option(
            "--clip",
            type=FiniteRange(min=0, min_open=True),
            default=1.0,
            show_default=True,
            help="Largest gradient norm.",
        ),
        click.option(
            "--batch-tokens",
            type=click.IntRange(min=1),
            help=f"Tokens per optimiser step.  [default: {learning.batch_tokens if learning else 8192}]",
        ),
    )


def device_options() -> Adder:
    """Where and how to compute."""
    return options_of(
        click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda[:N]", help="Where to train."),
        click.option(
            "--dtype",
            type=click.Choice(["auto", "float32", "bfloat16"]),
            default="auto",
            show_default=True,
            help="auto: bfloat16 products where the processor has them; a frozen target is kept in float32 on a CPU, "
            "in bfloat16 on such a GPU.",
        ),
        click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: what torch chooses]"),
        click.option(
            "--compile/--no-compile", "compiled", help="Compile the loss with torch.compile.  [default: no-compile]"
        ),
    )


def target_options(self_distil: int) -> Adder:
    """What learning from a target has besides; `self_distil` is the default."""
    return options_of(
        click.option(
            "--model",
            required=True,
            metavar="NAME|FOLDER|ID",
            shell_complete=completing.models,
            help="The target, which stands still.",
        ),
        click.option(
            "--self-distil",
            type=click.IntRange(min=0),
            default=self_distil,
            show_default=True,
            metavar="N",
            help="Learn from the target's own answers to N prompts of the data; 0: from the data as they are.",
        ),
        click.option(
            "--self-distil-temperature",
            type=FiniteRange(min=0),
            default=0.0,
            show_default=True,
            help="Temperature of these answers; 0 is greedy.",
        ),
        click.option(
            "--answer-tokens", type=click.IntRange(min=1), default=160, show_default=True, help="The longest of them."
        ),
        click.option(
            "--cache",
            type=click.Path(path_type=Path, file_okay=False),
            help="Folder of these answers.  [default: own_text in --out]",
        ),
        answers_only(),
        click.option(
            "--row-tokens", type=click.IntRange(min=8), default=512, show_default=True, help="Tokens in a row."
        ),
        click.option(
            "--micro-rows", type=click.IntRange(min=1), default=4, show_default=True, help="Rows computed at once."
        ),
    )


def answers_only() -> Adder:
    """What prompts teach."""
    return click.option("--answers-only", is_flag=True, help="Prompts teach nothing; otherwise they weigh 30 %.")


def shape_options(shape: ModelShape) -> Adder:
    """The sizes of a model built anew, with these defaults."""
    names = ["layers", "hidden", "heads", "kv_heads", "mlp", "positions"]
    names += ["experts", "experts_per_token"] if shape.experts else []
    return options_of(*(_size(name, getattr(shape, name)) for name in names))


def start_options() -> Adder:
    """What a draft model begins as."""
    return options_of(
        click.option(
            "--init-from",
            default="",
            metavar="target|scratch|MODEL",
            help="Begin with layers of the target, anew, or as a model of the same tokenizer.  "
            "[default: target, or scratch with other sizes]",
        ),
        *(
            click.option(_flag(name), type=click.IntRange(min=1), help=f"{_SIZES[name]}  [default: {default}]")
            for name, default in (
                ("layers", "2"),
                *((size, "the target's") for size in ("hidden", "heads", "kv_heads", "mlp")),
            )
        ),
    )


def _size(name: str, default: int) -> Adder:
    return click.option(_flag(name), type=click.IntRange(min=1), default=default, show_default=True, help=_SIZES[name])


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
