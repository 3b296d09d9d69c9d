"""A training run as small as can be, here or in a process of its own: `python tests/helpers/tiny_training.py -h`."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchctl.decoding.modules.trainable import Tally
from benchctl.training import checkpoint
from benchctl.training.checkpoint import Checkpoint, Notify, load_checkpoint
from benchctl.training.data.packing import Batch
from benchctl.training.distributed import World, joined
from benchctl.training.modules.objective import HeldOut, loss_weights
from benchctl.training.optim import Budget, OptimizerSettings, Stage
from benchctl.training.train_options import OptimizerName
from benchctl.training.trainer import Data, Progress, Trainer, TrainSettings

VOCABULARY, WIDTH = 13, 6
STAGES = (Stage(0.5, 8, 2), Stage(1.0, 16, 1))
BATCH_TOKENS = 64  # four micro-batches a step in both stages


class TinyModule(nn.Module):
    """An embedding, a matrix for Muon, a frozen matrix, a bias and a head: the next token from the present one."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH, dtype=dtype)
        self.middle = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.frozen = nn.Linear(WIDTH, WIDTH, dtype=dtype).requires_grad_(False)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.frozen(self.embed(tokens))
        return self.lm_head(hidden + torch.tanh(self.middle(hidden)))  # type: ignore[no-any-return]


class TinyObjective:
    """The weighted next-token loss; its measure is its own mean."""

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        logits = module(batch.tokens[:, :-1]).flatten(0, 1)
        losses = functional.cross_entropy(logits, batch.tokens[:, 1:].flatten(), reduction="none")
        return (losses * loss_weights(batch).flatten()).sum()

    def measure(self, module: nn.Module, batch: Batch) -> HeldOut:
        return {"loss": Tally(float(self(module, batch)), float(loss_weights(batch).sum()))}


@dataclass(frozen=True)
class CountingRows:
    """Rows that count upwards from their own number, in documents of five tokens with weights of their own."""

    row_tokens: int

    def rows(self, start: int, count: int) -> Batch:
        place = torch.arange(self.row_tokens).expand(count, -1)
        first = torch.arange(start, start + count)[:, None]
        return Batch(
            tokens=(first * 7 + place) % VOCABULARY,
            weights=1.0 - 0.1 * (first % 3) + 0.0 * place,
            documents=place // 5,
            positions=place % 5,
        )


def tiny_data() -> Data:
    """Both stages, and one held-out batch by the name of unit."""
    held_out = {"unit": [CountingRows(8).rows(999, 2)]}
    return Data([CountingRows(stage.row_tokens) for stage in STAGES], held_out, torch.ones(VOCABULARY))


def tiny_module(dtype: torch.dtype = torch.float32) -> TinyModule:
    """Always the same weights."""
    torch.manual_seed(0)
    return TinyModule(dtype)


def tiny_trainer(
    folder: Path,
    settings: TrainSettings,
    clock: Callable[[], float] = time.monotonic,
    report: Callable[[Progress], None] = lambda progress: None,
    world: World = World(),  # noqa: B008 - frozen
    dtype: torch.dtype = torch.float32,
    notify: Notify = lambda notice: None,
) -> Trainer:
    return Trainer(tiny_module(dtype), TinyObjective(), tiny_data(), settings, folder, clock, report, world, notify)


def tiny_settings(
    steps: int | None = 12, seconds: float | None = None, optimizer: OptimizerName = "muon", every_s: float = 1e9
) -> TrainSettings:
    """Both stages in float32, held-out measured every fourth step."""
    return TrainSettings(
        Budget(steps, seconds),
        STAGES,
        BATCH_TOKENS,
        OptimizerSettings(optimizer, rate=0.05),
        bf16=False,
        checkpoint_s=every_s,
        held_out_steps=4,
    )


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def loaded(folder: Path) -> Checkpoint:
    """The newest checkpoint."""
    found = load_checkpoint(folder)
    assert found is not None
    return found


def assert_same(whole: Path, resumed: Path) -> None:
    """Weights, optimiser state and position of the last checkpoints are the same, bit for bit."""
    one, other = loaded(whole), loaded(resumed)
    for part in ("step", "tokens", "rows"):
        assert getattr(one.position, part) == getattr(other.position, part)
    assert flat(one.weights) == flat(other.weights)
    assert flat(one.optimizer) == flat(other.optimizer)


def flat(value: object) -> object:
    """Nested state with tensors as lists, so that it compares by value."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: flat(inner) for key, inner in value.items()}
    return [flat(inner) for inner in value] if isinstance(value, list | tuple) else value


def die_after_weights(saves: int) -> None:
    """This process ends itself by SIGKILL in that save, when the weights are written and the rest is not."""
    parts: Any = checkpoint
    write, count = parts.save_file, 0

    def deadly(*arguments: object) -> None:
        nonlocal count
        write(*arguments)
        count += 1
        if count == saves:
            os.kill(os.getpid(), signal.SIGKILL)

    parts.save_file = deadly


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--optimizer", default="muon")
    parser.add_argument("--double", action="store_true", help="train in float64")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds to sleep after each step")
    parser.add_argument("--linger", type=float, default=0.0, help="seconds that the first process works on at the end")
    parser.add_argument("--die-in-save", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.die_in_save:
        die_after_weights(asked.die_in_save)
    settings = tiny_settings(asked.steps, asked.seconds, asked.optimizer, every_s=0.0)
    with joined("cpu") as world:
        dtype = torch.float64 if asked.double else torch.float32
        trainer = tiny_trainer(
            asked.folder,
            settings,
            clock=lambda: time.monotonic() * (1 + world.rank),
            report=lambda _: time.sleep(asked.slow),
            world=world,
            dtype=dtype,
        )
        if asked.resume:
            assert trainer.resume()
        trainer.train()
        time.sleep(asked.linger if world.leads else 0.0)
        (asked.folder / f"steps-of-rank-{world.rank}").write_text(str(trainer.position.step))
    assert (asked.folder / "steps-of-rank-0").is_file(), "nobody leaves before the first process is done"
    deadline_s = time.monotonic() + 10  # the system lists a thread that was joined for a moment longer
    while gloo_lives() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not gloo_lives(), "a thread that lives on may abort the process when Python ends"


def gloo_lives() -> bool:
    """Whether any thread of this process is one of gloo's."""
    for file in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it ended just now
            if "gloo" in file.read_text():
                return True
    return False


if __name__ == "__main__":
    main()
