"""The one training loop: any module, any objective, one process or several, checkpoints that resume exactly.

`Progress` shows a run, and `TrainingLog` keeps it in log.jsonl.
"""

from __future__ import annotations

import json
import math
import os
import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from benchctl.decoding.modules.trainable import Tally
from benchctl.errors import UserError
from benchctl.training.checkpoint import (
    PARAMETER,
    Checkpoint,
    Notify,
    Position,
    check_fingerprint,
    checkpoints,
    load_checkpoint,
    remove_partial,
    save_checkpoint,
    set_newer_aside,
    trained_parameters,
    writing,
)
from benchctl.training.data.packing import Batch
from benchctl.training.distributed import World
from benchctl.training.modules.objective import HeldOut, Objective, Paced, loss_weights, measure_held_out
from benchctl.training.optim import Budget, Optimizers, OptimizerSettings, Stage, learning_rate, stage_index
from benchctl.training.train_options import ScheduleName


@dataclass(frozen=True)
class Progress:
    """What the loop reports after a step; `held_out` by the name of the set, only when it was measured.

    `loss` is the mean over the step's tokens in nats, `rate` the factor on the peak learning rate, `tokens` (padding
    included) and `elapsed_s` count from the beginning of the run, `tokens_per_s` is the speed of this step without its
    measuring.
    """

    step: int
    progress: float
    loss: float
    rate: float
    tokens: int
    elapsed_s: float
    tokens_per_s: float
    held_out: Mapping[str, HeldOut] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingLog:
    """log.jsonl: a line of JSON per measured step, held-out measures as means."""

    path: Path

    def add(self, progress: Progress) -> None:
        """Raises UserError when the disk is full."""
        means = {name: {key: tally.share for key, tally in held.items()} for name, held in progress.held_out.items()}
        line = json.dumps({**asdict(progress), "held_out": means})
        with writing(self.path.parent, self.path.name), self.path.open("a") as log:
            log.write(line + "\n")

    def losses(self) -> list[dict[str, float]]:
        """Of every step that was measured: its number, its own loss, and that of each held-out set by its name."""
        lines = map(json.loads, self.path.read_text().splitlines()) if self.path.is_file() else []
        return [
            {"step": line["step"], "loss": line["loss"]} | {name: of["loss"] for name, of in line["held_out"].items()}
            for line in lines
            if line["held_out"]
        ]

    def forget_after(self, step: int) -> None:
        """Cuts off later steps, which a resumed run does again, and a line torn by a kill."""
        if self.path.is_file():
            lines = self.path.read_bytes().splitlines(keepends=True)
            kept = takewhile(lambda line: line.endswith(b"\n") and json.loads(line)["step"] <= step, lines)
            os.truncate(self.path, sum(map(len, kept)))


@dataclass(frozen=True)
class TrainSettings:
    """Everything that decides the result of a run except the module, the objective and the data.

    `warmup` is a share of the run, `clip` the largest norm of the gradient, `device` cpu or cuda. bf16 is autocast: the
    weights keep their own precision, and a float64 module is trained in float64.
    """

    budget: Budget
    stages: tuple[Stage, ...]
    batch_tokens: int = 8192
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleName = "cosine"
    warmup: float = 0.02
    clip: float = 1.0
    seed: int = 0
    device: str = "cpu"
    bf16: bool = True
    compiled: bool = False
    checkpoint_s: float = 240.0
    held_out_steps: int = 100
    log_steps: int = 10

    def fingerprint(self) -> dict[str, str]:
        """What a resumed run must have in common with the one it continues.

        Not the rates, which may be lowered after a loss that was not finite, and nothing that leaves the result alone.
        """
        names = ("batch_tokens", "schedule", "warmup", "clip", "seed", "bf16", "compiled")
        entries = {
            "budget_steps": self.budget.steps,
            "budget_s": self.budget.seconds,
            "optimizer": self.optimizer.name,
            "decay": self.optimizer.decay,
            "matrix_decay": self.optimizer.matrix_decay,
            **{name: getattr(self, name) for name in names},
            **{f"stage {number}": stage for number, stage in enumerate(self.stages, start=1)},
        }
        return {name: str(value) for name, value in entries.items()}


class Rows(Protocol):
    """Training rows by their number since the beginning of a stage; PackedCorpus is one."""

    def rows(self, start: int, count: int) -> Batch: ...


@dataclass(frozen=True)
class Data:
    """Training rows per stage, held-out batches per name, and the bytes of every token [vocabulary].

    `long_held_out` counts the held-out chats that are not measured because they are longer than a row. `longest_row` is
    how many tokens a row may have, None where the model is not there yet.
    """

    stages: Sequence[Rows]
    held_out: Mapping[str, Sequence[Batch]]
    token_bytes: Tensor
    long_held_out: int = 0
    longest_row: int | None = None


def use_threads(count: int | None) -> None:
    """Gives torch that many CPU threads; None leaves its choice."""
    if count is not None:
        torch.set_num_threads(count)


@dataclass(eq=False)
class Trainer:
    """Trains `module` in place, moved to the device of the settings. `folder` takes checkpoints and log.jsonl.

    `clock` gives seconds; `notify` takes warnings; `facts` are what else a resumed run must share with its beginning,
    by name: hashes of the data, the label of a method. `finish` changes the trained weights before they are measured
    for the last time; the checkpoint keeps them as they were. Raises UserError when `world` cannot share a step evenly.
    """

    module: nn.Module
    objective: Objective
    data: Data
    settings: TrainSettings
    folder: Path
    clock: Callable[[], float]
    report: Callable[[Progress], None] = lambda progress: None
    world: World = World()  # noqa: RUF009 - frozen
    notify: Notify = lambda notice: None
    facts: Mapping[str, str] = field(default_factory=dict)
    finish: Callable[[], None] = lambda: None
    measured: dict[str, dict[str, Tally]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        check_shares(settings.stages, settings.batch_tokens, self.world)
        self.device = self.world.device(settings.device)
        self.module.to(self.device)
        self.position = Position(rows=[0] * len(settings.stages))
        self.log = TrainingLog(self.folder / "log.jsonl")
        self._loss = torch.compile(self.objective.__call__, dynamic=False) if settings.compiled else self.objective
        shapes = {
            f"{PARAMETER}{name}": f"{str(parameter.dtype).removeprefix('torch.')} {list(parameter.shape)}"
            for name, parameter in trained_parameters(self.module).items()
        }
        self._fingerprint = {**settings.fingerprint(), **shapes, **self.facts}
        self._optimizers = Optimizers(self.module, settings.optimizer)
        self._saved_step = 0
        self._bf16 = settings.bf16 and all(p.dtype != torch.float64 for p in self.module.parameters())

    def resume(self) -> bool:
        """Continues from the newest checkpoint in the folder; False if there is none.

        Raises UserError when that run was another one, or when no checkpoint can be read.
        """
        found = load_checkpoint(self.folder, self.notify if self.world.leads else lambda notice: None)
        if found is None:
            self._forget_after(0)
            return False
        check_fingerprint(self.folder, found.fingerprint, self._fingerprint)
        assert found.weights.keys() == trained_parameters(self.module).keys()  # as the fingerprint says
        self.module.load_state_dict(found.weights, strict=False)  # the others stand still
        self._optimizers.load_state_dict(found.optimizer)
        torch.set_rng_state(found.random["cpu"])
        if self.device.type == "cuda" and "cuda" in found.random:
            torch.cuda.set_rng_state(found.random["cuda"], self.device)
        if not self.world.leads:  # the saved state is that of the first process
            torch.manual_seed(int(torch.randint(2**62, ())) + self.world.rank)
        self.position = found.position
        self._saved_step = found.position.step
        self._forget_after(found.position.step)
        return True

    def train(self) -> dict[str, dict[str, Tally]]:
        """Runs until the budget is spent; the first process keeps and returns the held-out measures of the result.

        Raises UserError when the loss is not finite, when the disk is full, and when the folder holds another run.
        """
        with warnings.catch_warnings():
            # On a GPU, torch reports that its thread for backward passes had to set itself up; it did.
            warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
            return self._train()

    def _train(self) -> dict[str, dict[str, Tally]]:
        self._begin()
        self.module.train()
        saved_at = mark = self.clock()
        while (progress := self._progress()) < 1:
            began = self.clock()
            loss, tokens = self._step(progress)
            now = self.clock()
            self.position.elapsed_s += now - mark
            mark = now
            if self.settings.budget.seconds is not None:  # all end at the same step: that of the first one's clock
                self.position.elapsed_s = self.world.from_first(self.position.elapsed_s, self.device)
            if self._progress() == 1:
                self._save()
                self.finish()
            rate = learning_rate(progress, self.settings.warmup, self.settings.schedule)
            self.measured = self._report_step(rate, loss, tokens / max(now - began, 1e-9))
            if now - saved_at >= self.settings.checkpoint_s:
                self._save()
                saved_at = now
        if self.world.leads and not self.measured:  # a run that was resumed at its end
            self.finish()
            self.measured = self.held_out()
        return self.measured

    def held_out(self) -> dict[str, dict[str, Tally]]:
        """The objective's measures on every held-out set, by the name of the set."""
        measure = self.objective.measure
        with self._precision():
            return {
                name: measure_held_out(self.module, (batch.to(self.device) for batch in batches), measure)
                for name, batches in self.data.held_out.items()
            }

    def _forget_after(self, step: int) -> None:
        """What the run did after that step, it does again."""
        if self.world.leads:
            set_newer_aside(self.folder, step, self.notify)
            self.log.forget_after(step)

    def _begin(self) -> None:
        if self._saved_step == 0 and checkpoints(self.folder):
            raise UserError(
                "out_not_empty",
                f"{self.folder}: there are checkpoints of an earlier run here; "
                "continue it with --resume or train into a fresh --out folder",
            )
        first = int(self.world.from_first(self.position.step, self.device))
        if first != self.position.step:
            raise UserError(
                "processes_disagree",
                f"{self.folder}: one process goes on from step {first}, another from step {self.position.step}; give "
                "all of them the same folder and start them again with --resume",
            )
        if self.position.step == 0:
            torch.manual_seed(self.settings.seed + self.world.rank)
        if self.world.leads:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_partial(self.folder)
        self.world.same_weights(self._optimizers.parameters)

    def _progress(self) -> float:
        return self.settings.budget.progress(self.position.step, self.position.elapsed_s)

    def _step(self, progress: float) -> tuple[float, int]:
        """One optimiser step: its mean loss and the tokens read by all processes.

        Nothing waits for the GPU before the whole step is under way.
        """
        if isinstance(self.objective, Paced):
            self.objective.pace(self.module, progress)
        stage = stage_index(self.settings.stages, progress)
        micro_batches = self._next_batches(stage)
        own = sum(float(loss_weights(batch).sum(dtype=torch.float64)) for batch in micro_batches)
        weight = self.world.sum(torch.tensor(own, dtype=torch.float64).to(self.device))
        weight.clamp_(min=1e-9)  # tiny rather than 0 where nothing is to be learned
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in micro_batches:
            with self._precision():
                loss = self._loss(self.module, batch.to(self.device)) / weight
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self.world.sum(total)
        self.world.sum_gradients(self._optimizers.parameters)
        norm = self._optimizers.clip(self.settings.clip)
        self._optimizers.step(learning_rate(progress, self.settings.warmup, self.settings.schedule))
        self.position.step += 1
        tokens = sum(batch.tokens.numel() for batch in micro_batches) * self.world.size
        self.position.tokens += tokens
        mean_loss, gradient = torch.stack([total, norm.to(total.dtype)]).tolist()
        self._check_finite(mean_loss, gradient)
        return mean_loss, tokens

    def _next_batches(self, index: int) -> list[Batch]:
        """This process's share of the step's micro-batches, every size-th of them."""
        stage = self.settings.stages[index]
        first = self.position.rows[index]
        after = first + stage.micro_batches(self.settings.batch_tokens) * stage.micro_rows
        self.position.rows[index] = after
        starts = range(first, after, stage.micro_rows)[self.world.rank :: self.world.size]
        return [self.data.stages[index].rows(start, stage.micro_rows) for start in starts]

    def _check_finite(self, loss: float, gradient: float) -> None:
        """Raises UserError when one of them is not finite: the weights are then lost."""
        if math.isfinite(loss) and math.isfinite(gradient):
            return
        what = f"the gradient is {gradient}" if math.isfinite(loss) else f"the loss is {loss}"
        kept = checkpoints(self.folder)[-1:]
        after = f"continue from {kept[0]} with --resume and" if kept else "no checkpoint is saved yet; start again with"
        raise UserError(
            "training_diverged", f"training stopped at step {self.position.step}: {what}; {after} a lower --rate"
        )

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self._bf16 else nullcontext()

    def _report_step(self, rate: float, loss: float, tokens_per_s: float) -> dict[str, dict[str, Tally]]:
        """Reports and logs the step; returns the held-out measures where they were due."""
        if not self.world.leads:
            return {}
        step, settings, progress = self.position.step, self.settings, self._progress()
        measured = self.held_out() if step % settings.held_out_steps == 0 or progress == 1 else {}
        event = Progress(
            step=step,
            progress=progress,
            loss=loss,
            rate=rate,
            tokens=self.position.tokens,
            elapsed_s=self.position.elapsed_s,
            tokens_per_s=tokens_per_s,
            held_out=measured,
        )
        self.report(event)
        if measured or step % settings.log_steps == 0:
            self.log.add(event)
        return measured

    def _save(self) -> None:
        if not self.world.leads or self._saved_step == self.position.step:
            return
        weights, random = trained_parameters(self.module), {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        state = Checkpoint(self.position, weights, self._optimizers.state_dict(), random, self._fingerprint)
        save_checkpoint(self.folder, state)
        self._saved_step = self.position.step


def check_shares(stages: Sequence[Stage], batch_tokens: int, world: World) -> None:
    """Raises UserError for a step that the processes cannot share evenly."""
    for number, stage in enumerate(stages, start=1):
        count = stage.micro_batches(batch_tokens)
        if count % world.size:
            tokens = stage.row_tokens * stage.micro_rows
            raise UserError(
                "uneven_batches",
                f"stage {number} reads {count} micro-batches of {stage.micro_rows} x {stage.row_tokens} tokens a step, "
                f"which {world.size} processes cannot share evenly; "
                f"set --batch-tokens to a multiple of {tokens * world.size}",
            )


def bf16_helps(device: str) -> bool:
    """Whether bfloat16 products are much faster than float32 ones on the processor `device` (cpu, cuda, cuda:1) names.

    Of x86 processors only on those with AMX.
    """
    if device.startswith("cuda"):
        with torch.cuda.device(torch.device(device)):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if platform.machine().lower() in ("x86_64", "amd64"):
        return bool(torch.cpu._is_amx_tile_supported())
    mkldnn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())
