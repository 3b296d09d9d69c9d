"""What all training jobs share: refusing early what cannot work, the length of the run, running it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from benchctl.bundled import MODULES, WEIGHTS
from benchctl.errors import UserError
from benchctl.training.checkpoint import (
    DATA_ORDER,
    Notify,
    check_fingerprint,
    checkpoints,
    locked,
    newest_fingerprint,
    writing,
)
from benchctl.training.data.chats import ChatFormat
from benchctl.training.data.packing import PackedCorpus
from benchctl.training.data.reading import Corpus, read_corpus
from benchctl.training.distributed import World
from benchctl.training.models import TOKENIZER_FILES
from benchctl.training.modules.objective import Objective
from benchctl.training.modules.own_text import Answered
from benchctl.training.optim import Budget, OptimizerSettings, Stage
from benchctl.training.train_options import Provenance, TrainOptions
from benchctl.training.trainer import Data, Progress, Trainer, TrainSettings, bf16_helps, check_shares

CHECKPOINTS = "checkpoints"
RECORD = "training.json"
WRITTEN = (  # into the output folder, by one part or another
    RECORD,
    CHECKPOINTS,
    MODULES,
    "modules.json",
    WEIGHTS,
    "config.json",
    "generation_config.json",
    "README.md",
    *TOKENIZER_FILES,
)


@dataclass(frozen=True)
class JobContext:
    """What a job needs in addition to its options: a clock in seconds, callbacks, the processes that share the work.

    `held` holds locks until the job is over. `read_corpus` reads the data.
    """

    clock: Callable[[], float]
    provenance: Provenance
    report: Callable[[Progress], None] = lambda progress: None
    answered: Callable[[Answered], None] = lambda answered: None
    notify: Notify = lambda notice: None
    world: World = World()
    held: ExitStack = field(default_factory=ExitStack)
    read_corpus: Callable[[Sequence[str]], Corpus] = read_corpus


def check(options: TrainOptions, job_context: JobContext, *models: str) -> None:
    """Takes the output folder for this run. `models` are the names of those that it reads, empty ones aside.

    Raises UserError for what can be seen to be wrong before anything is read.
    """
    check_device(options.device)
    if not job_context.world.leads:
        return
    _check_out(options, (*models, *options.data))

    def busy() -> None:
        raise UserError(
            "folder_in_use",
            f"{options.out}: another run is training into it; wait for it, or name another folder with --out",
        )

    job_context.held.enter_context(locked(options.out / ".lock", busy))


def check_run(
    options: TrainOptions, stages: Sequence[Stage], facts: Mapping[str, str], job_context: JobContext
) -> None:
    """Raises UserError for a step that cannot be shared, and for a resume of another run as far as `facts` show.

    This is before anything is loaded or answered; the trainer then compares all that the result depends on.
    """
    assert options.batch_tokens
    check_shares(stages, options.batch_tokens, job_context.world)
    folder = options.out / CHECKPOINTS
    saved = newest_fingerprint(folder) if options.resume else None
    if saved is not None:
        known = {**settings_of(options, tuple(stages), 1 if options.epochs else options.steps).fingerprint(), **facts}
        if options.epochs:  # the number of steps is known when the rows are packed
            del known["budget_steps"]
        check_fingerprint(folder, {name: saved[name] for name in known if name in saved}, known)


def check_device(device: str) -> None:
    """Raises UserError for a GPU that is not there."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise UserError("unknown_device", f"unknown device '{device}'; give cpu, cuda, or cuda:1 for the second GPU")
    there = torch.cuda.device_count() if device.startswith("cuda") else 1
    if there == 0:
        raise UserError("no_gpu", "there is no usable GPU here; train with --device cpu")
    if int(device.partition(":")[2] or 0) >= there:
        raise UserError("unknown_device", f"there is no {device}: this machine has {there}, counted from 0")


def target_dtype(options: TrainOptions) -> str:
    """What the weights of a frozen target are kept in: on a GPU that has it bfloat16, unless another is asked for."""
    if options.dtype != "auto":
        return options.dtype
    return "bfloat16" if options.device.startswith("cuda") and bf16_helps(options.device) else "float32"


def settings_of(options: TrainOptions, stages: tuple[Stage, ...], steps: int | None) -> TrainSettings:
    """The settings of a run in these stages, of so many steps if not of minutes; `options` are with their defaults."""
    assert options.optimizer and options.schedule and options.batch_tokens
    assert options.rate is not None and options.matrix_rate is not None and options.warmup is not None
    return TrainSettings(
        budget=Budget(steps=steps, seconds=None if options.minutes is None else options.minutes * 60),
        stages=stages,
        batch_tokens=options.batch_tokens,
        optimizer=OptimizerSettings(options.optimizer, options.rate, options.matrix_rate),
        schedule=options.schedule,
        warmup=options.warmup,
        clip=options.clip,
        seed=options.seed,
        device=options.device,
        bf16=options.dtype == "bfloat16" or (options.dtype == "auto" and bf16_helps(options.device)),
        compiled=options.compiled,
        held_out_steps=options.held_out_every,
    )


def steps_of(epochs: float, stages: Sequence[Stage], data: Data, batch_tokens: int) -> int:
    """Steps in which the data are read `epochs` times, all stages together; one at least."""
    passes = began = 0.0  # passes through the data that one step makes, on average over the stages
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
    job_context: JobContext,
    facts: Mapping[str, str],
    begin: Callable[[], None] = lambda: None,
    finish: Callable[[], None] = lambda: None,
) -> Trainer:
    """The trainer, done; `facts` are what else a resumed run must share with its beginning, by name.

    `begin` writes what goes into the output folder before the first step. A resumed run, and one that is refused, leave
    there what they find. `finish` is the Trainer's.
    """
    assert options.batch_tokens
    steps = options.steps
    if options.epochs is not None:
        steps = steps_of(options.epochs, stages, data, options.batch_tokens)
    settings = settings_of(options, stages, steps)
    folder, clock, report = options.out / CHECKPOINTS, job_context.clock, job_context.report
    world, notify = job_context.world, job_context.notify
    if world.leads:
        _tell_losses(data, settings, notify)
    trainer = Trainer(module, objective, data, settings, folder, clock, report, world, notify, facts, finish)
    resumed = options.resume and trainer.resume()
    if world.leads and not resumed:
        if options.resume:
            notify(f"{options.out}: nothing to resume yet; starting at the beginning")
        with writing(folder, "the configuration"):
            folder.mkdir(parents=True, exist_ok=True)
            begin()
    trainer.train()
    return trainer


def data_facts(corpus: Corpus, chat: ChatFormat) -> dict[str, str]:
    """The data, and how they become ids, as facts of a run."""
    mix = {} if corpus.recipe else {"reference mix": "left out"}  # the name is part of saved checkpoints
    files = {f"data {name}": digest[:16] for name, digest in corpus.hashes.items()}
    order = {DATA_ORDER: ", ".join(corpus.hashes)}
    return {**files, **order, **mix, "tokenizer": chat.sha256[:16]}


def _tell_losses(data: Data, settings: TrainSettings, notify: Notify) -> None:
    """Tells what is not read, and where a step reads another number of tokens than was asked for."""
    packed = [rows for rows in data.stages if isinstance(rows, PackedCorpus)]
    longest, keep = max(stage.row_tokens for stage in settings.stages), ""
    if data.longest_row is None or longest < data.longest_row:
        how = "--positions, up to 1024" if data.longest_row is None else "--row-tokens"
        keep = f"; rows of more than {longest:,} tokens keep them ({how})"
    if dropped := sum(rows.dropped_answers for rows in packed):
        notify(f"{dropped:,} answers begin too far into a row and are left out{keep}.")
    if long := sum(rows.long_prompts for rows in packed):
        notify(f"{long:,} answers have a prompt that does not fit into a row and are left out{keep}.")
    if data.long_held_out:
        notify(f"{data.long_held_out:,} held-out chats are longer than a row to measure with, and are left out.")
    for stage in settings.stages:
        in_a_pass = stage.row_tokens * stage.micro_rows
        read = stage.micro_batches(settings.batch_tokens) * in_a_pass
        if read != settings.batch_tokens:
            asked = f"--batch-tokens {settings.batch_tokens} is no multiple of a pass of {in_a_pass:,}"
            notify(f"A step reads {read:,} tokens: {asked} ({stage.micro_rows} rows of {stage.row_tokens:,}).")


def _check_out(options: TrainOptions, read: Sequence[str]) -> None:
    """Raises UserError where the run would overwrite an earlier result or what it reads, or cannot write.

    A run to be resumed has made its checkpoints' folder before all else, and a checkpoint before its weights.
    """
    out = options.out
    if out.exists() and not out.is_dir():
        raise UserError("out_not_usable", f"{out}: is a file; name a folder with --out")
    if any(name and Path(name).resolve() == out.resolve() for name in read):
        raise UserError("out_not_usable", f"{out}: this run reads what is there; name another folder with --out")
    there = [name for name in WRITTEN if (out / name).exists()]
    begun = (out / CHECKPOINTS).is_dir() and not {RECORD, MODULES, WEIGHTS}.intersection(there)
    if there and not options.resume:
        raise UserError(
            "out_not_empty",
            f"{out}: contains {there[0]} already; if that is of an earlier run, continue it with --resume, else name "
            "another folder with --out",
        )
    if there and not begun and not checkpoints(out / CHECKPOINTS):
        raise UserError(
            "out_not_empty",
            f"{out}: contains {there[0]} but no checkpoint, so nothing can be continued and it would be overwritten; "
            "name another folder with --out",
        )
    make_out(out)


def make_out(out: Path) -> None:
    """Makes the folder. Raises UserError where it cannot be made or written to."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            "out_not_usable", f"{out}: cannot be made ({error.strerror}); name another folder with --out"
        ) from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise UserError("out_not_usable", f"{out}: cannot be written to; name another folder with --out")
