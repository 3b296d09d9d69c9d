"""Checkpoints that are there entirely or not at all: written beside, flushed, then renamed."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from benchctl.errors import UserError

KEEP = 2


@dataclass
class Position:
    """Where a run stands; with weights and optimiser state this is all that a resumed run needs."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    rows: list[int] = field(default_factory=list)  # rows read so far, per stage


@dataclass(frozen=True)
class Checkpoint:
    """What was read back from one checkpoint folder."""

    position: Position
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    random: torch.Tensor


def save_checkpoint(
    folder: Path, position: Position, weights: dict[str, torch.Tensor], optimizer: dict[str, Any]
) -> Path:
    """Writes `folder`/step-<n> and removes all but the last `KEEP`. A failure leaves the earlier ones as they were."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{position.step:07d}"
    partial = folder / f".partial-{position.step:07d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, partial / "model.safetensors")
    torch.save({"optimizer": optimizer, "random": torch.get_rng_state()}, partial / "optimizer.pt")
    (partial / "position.json").write_text(json.dumps(asdict(position)) + "\n")
    for entry in partial.iterdir():
        _flush(entry)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    for old in checkpoints(folder)[:-KEEP]:
        shutil.rmtree(old)
    return final


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint under `folder`, or None if there is none yet."""
    found = checkpoints(folder)
    if not found:
        return None
    newest = found[-1]
    extra = torch.load(newest / "optimizer.pt", weights_only=True)
    position = Position(**json.loads((newest / "position.json").read_text()))
    return Checkpoint(position, load_file(newest / "model.safetensors"), extra["optimizer"], extra["random"])


def load_weights(module: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Puts saved weights into a module. Raises UserError unless they are those of this module."""
    own = {name: parameter for name, parameter in module.named_parameters()}
    if own.keys() != weights.keys() or any(own[name].shape != weights[name].shape for name in own):
        raise UserError("the checkpoint belongs to a model of another shape; train into a fresh --out folder")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoint folders, oldest first."""
    return sorted(folder.glob("step-*"))


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
