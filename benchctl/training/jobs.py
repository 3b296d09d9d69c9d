"""What all training jobs share: refusing early what cannot work, the length of the run, running it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from benchctl.errors import UserError
from benchctl.training.checkpoint import Notify
from benchctl.training.distributed import World
from benchctl.training.objective import HeldOut, Objective
from benchctl.training.optim import OptimizerSettings, optimizer_name
from benchctl.training.options import Provenance, TrainOptions
from benchctl.training.own_text import Answered
from benchctl.training.packing import PackedCorpus
from benchctl.training.progress import Progress
from benchctl.training.recipe import Corpus, read_corpus, reference_corpus
from benchctl.training.schedule import Budget, Stage
from benchctl.training.settings import Data, TrainSettings
from benchctl.training.trainer import Trainer

CHECKPOINTS = "checkpoints"
RESULTS = ("training.json", "modules.json", "config.json", CHECKPOINTS)


@dataclass(frozen=True)
class Surroundings:
    """What a job is given besides its options: a clock in seconds, whom to tell, the processes that share the work."""

    clock: Callable[[], float]
    provenance: Provenance
    report: Callable[[Progress], None] = lambda progress: None
    answered: Callable[[Answered], None] = lambda answered: None
    notify: Notify = lambda notice: None
    world: World = field(default_factory=World.single)


@dataclass(frozen=True)
class Finished:
    """A trained module's run, and what it measured at its end by the name of the held-out set."""

    trainer: Trainer
    settings: TrainSettings
    held_out: Mapping[str, HeldOut]


def check(options: TrainOptions, world: World) -> None:
    """Raises UserError for what can be seen to be wrong before anything is read."""
    check_device(options.device)
    if world.leads:
        _check_out(options)


def check_device(device: str) -> None:
    """Raises UserError for a GPU that is not there."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise UserError(f"unknown device '{device}'; there are cpu, cuda and cuda:1")
    if not device.startswith("cuda"):
        return
    there = torch.cuda.device_count()
    if there == 0:
        raise UserError("there is no usable GPU here; train with --device cpu")
    if int(device.partition(":")[2] or 0) >= there:
        raise UserError(f"there is no {device}: this machine has {there}, counted from 0")


def target_dtype(options: TrainOptions) -> str:
    """What the weights of a frozen target are kept in: on a GPU bfloat16 unless something else is asked for."""
    if options.dtype != "auto":
        return options.dtype
    return "bfloat16" if options.device.startswith("cuda") else "float32"


def corpus_of(options: TrainOptions) -> Corpus:
    """The data asked for. Raises UserError where it is missing or broken."""
    return reference_corpus(options.data) if options.reference_mix else read_corpus(options.data)


def settings_of(options: TrainOptions, stages: tuple[Stage, ...], data: Data) -> TrainSettings:
    """The settings of a run in these stages; `options` are with their defaults."""
    assert options.optimizer and options.schedule and options.batch_tokens
    assert options.rate is not None and options.matrix_rate is not None and options.warmup is not None
    steps = options.steps
    if options.epochs is not None:
        steps = steps_of(options.epochs, stages, data, options.batch_tokens)
    return TrainSettings(
        budget=Budget(steps=steps, seconds=None if options.minutes is None else options.minutes * 60),
        stages=stages,
        batch_tokens=options.batch_tokens,
        optimizer=OptimizerSettings(optimizer_name(options.optimizer), options.rate, options.matrix_rate),
        schedule=options.schedule,
        warmup=options.warmup,
        clip=options.clip,
        seed=options.seed,
        device=options.device,
        bf16=options.dtype != "float32",
        compiled=options.compiled,
        held_out_steps=options.held_out_every,
    )


def steps_of(epochs: float, stages: Sequence[Stage], data: Data, batch_tokens: int) -> int:
    """Steps in which the data are read `epochs` times, all stages together; one at least."""
    passes, began = 0.0, 0.0  # passes through the data that one step makes, on average over the stages
    for stage, rows in zip(stages, data.stages, strict=True):
        assert isinstance(rows, PackedCorpus)
        step_rows = stage.micro_batches(batch_tokens) * stage.micro_rows
        passes += (stage.until - began) * step_rows / rows.rows_per_pass()
        began = stage.until
    return max(1, math.ceil(epochs / passes))


def train(
    module: nn.Module,
    objective: Objective,
    data: Data,
    stages: tuple[Stage, ...],
    options: TrainOptions,
    around: Surroundings,
    facts: Mapping[str, str],
) -> Finished:
    """Runs the training; `facts` are what else a resumed run must share with its beginning, by name."""
    settings = settings_of(options, stages, data)
    if around.world.leads:
        _tell_losses(data, settings, around.notify)
    trainer = Trainer(
        module,
        objective,
        data,
        settings,
        options.out / CHECKPOINTS,
        around.clock,
        around.report,
        around.world,
        around.notify,
        facts,
    )
    if options.resume and not trainer.resume():
        around.notify(f"{options.out}: nothing to resume yet; starting at the beginning")
    return Finished(trainer, settings, trainer.train())


def wait_for_first(world: World, device: torch.device) -> None:
    """Returns once the first process has called this too."""
    world.sum(torch.zeros((), device=device))


def data_facts(corpus: Corpus, options: TrainOptions) -> dict[str, str]:
    """The data as facts of a run."""
    mix = {} if options.reference_mix else {"reference mix": "left out"}
    return {**{f"data {name}": digest[:16] for name, digest in corpus.hashes.items()}, **mix}


def _tell_losses(data: Data, settings: TrainSettings, notify: Notify) -> None:
    """Tells what is not read, and where a step reads another number of tokens than was asked for."""
    dropped = sum(rows.dropped_answers for rows in data.stages if isinstance(rows, PackedCorpus))
    if dropped:
        notify(f"{dropped:,} answers begin beyond the end of a row and are left out; longer --row-tokens keep them.")
    for stage in settings.stages:
        in_a_pass = stage.row_tokens * stage.micro_rows
        read = stage.micro_batches(settings.batch_tokens) * in_a_pass
        if read != settings.batch_tokens:
            asked = f"--batch-tokens {settings.batch_tokens} is no multiple of a pass of {in_a_pass:,}"
            notify(f"A step reads {read:,} tokens: {asked} ({stage.micro_rows} rows of {stage.row_tokens:,}).")


def _check_out(options: TrainOptions) -> None:
    """An earlier result is never overwritten, and a folder that cannot be written is told before hours of training."""
    out = options.out
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; name a folder with --out")
    there = [name for name in RESULTS if (out / name).exists()]
    if there and not options.resume:
        raise UserError(
            f"{out}: holds {there[0]} of an earlier run; continue it with --resume or name another folder with --out"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made ({error.strerror}); name another folder with --out") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise UserError(f"{out}: cannot be written to; name another folder with --out")
