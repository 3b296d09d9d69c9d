"""Checkpoints that are there entirely or not at all: written to a temporary folder, flushed, then renamed.

A checkpoint is a folder `step-<n>` of model.safetensors, optimizer.pt, position.json and fingerprint.json.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchctl.errors import UserError
from benchctl.locks import try_lock, wait_for_lock

KEEP = 2
FINGERPRINT = "fingerprint.json"
PARAMETER = "parameter "  # begins the entries of a fingerprint that are shapes
NAMED_DIFFERENCES = 8
DATA_ORDER = "data order"  # the same files in another order are other rows

CANNOT_WRITE = (OSError, SafetensorError, RuntimeError)  # torch.save gives RuntimeError when the disk is full
CANNOT_READ = (*CANNOT_WRITE, EOFError, pickle.UnpicklingError, ValueError, KeyError, TypeError)

Notify = Callable[[str], None]


@dataclass
class Position:
    """Where a run stands; with weights and optimiser state this is all that a resumed run needs."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    rows: list[int] = field(default_factory=list)  # rows read so far, per stage


@dataclass(frozen=True)
class Checkpoint:
    """What one checkpoint folder holds.

    `random` is the state of the random generators by device type. `fingerprint` says by name what else decides the
    result: settings, data, the shapes of the module. A run may only go on with the same one.
    """

    position: Position
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]
    random: Mapping[str, Tensor]
    fingerprint: Mapping[str, str]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Writes `folder`/step-<n> and removes all but the last `KEEP`.

    Raises UserError when it cannot be written; the earlier checkpoints are then as they were and nothing is left over.
    """
    step = checkpoint.position.step
    partial, final = folder / f".partial-{step:07d}", _folder_of(folder, step)
    with writing(folder, f"checkpoint {final.name}"):
        remove_partial(folder)
        try:
            partial.mkdir(parents=True)
            _write(partial, checkpoint)
            partial.rename(final)
            _flush(folder)
            for old in checkpoints(folder)[:-KEEP]:
                gone = old.with_name(f".partial-{old.name}")  # what is half removed must not look like a checkpoint
                old.rename(gone)
                shutil.rmtree(gone)
        finally:
            remove_partial(folder)
    return final


def load_checkpoint(folder: Path, notify: Notify = lambda notice: None) -> Checkpoint | None:
    """The newest checkpoint under `folder` that can be read, or None if there is none yet.

    A notice names each damaged one that is skipped. Raises UserError when all are damaged.
    """
    found = checkpoints(folder)
    for path in reversed(found):
        try:
            return _read(path)
        except CANNOT_READ as error:
            notify(f"{path}: this checkpoint is damaged ({_said(error)}); falling back to the one before")
    if found:
        raise UserError(
            "damaged_checkpoints",
            f"{folder}: every checkpoint is damaged; start again without --resume in a fresh --out folder",
        )
    return None


def newest_fingerprint(folder: Path) -> dict[str, str] | None:
    """What a run that continues from `folder` must share with its beginning; None without a readable checkpoint."""
    for path in reversed(checkpoints(folder)):
        with suppress(*CANNOT_READ):
            return dict(json.loads((path / FINGERPRINT).read_text()))
    return None


def check_fingerprint(path: Path, saved: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raises UserError that names each entry in which the run under `path` differs from the current one.

    Shapes of parameters come last: they follow from something else.
    """
    ordered = sorted(saved.keys() | current.keys(), key=lambda name: (name.startswith(PARAMETER), name))
    names = [name for name in ordered if saved.get(name) != current.get(name)]
    names = [name for name in names if name != DATA_ORDER or name in saved]  # earlier checkpoints lack it
    if not names:
        return
    lines = [f"  {name}: {saved.get(name, 'none')} there, {current.get(name, 'none')} now" for name in names]
    more = [f"  and {len(lines) - NAMED_DIFFERENCES} more"] if len(lines) > NAMED_DIFFERENCES else []
    differences = "\n".join(lines[:NAMED_DIFFERENCES] + more)
    raise UserError(
        "other_training",
        f"{path}: this run cannot be resumed, it was started with other settings:\n{differences}\n"
        "Use the settings of its start, or train into a fresh --out folder.",
    )


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, tied ones once."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoint folders, oldest first."""
    return sorted(folder.glob("step-*"))


def remove_partial(folder: Path) -> None:
    """Removes what a killed or failed save has left."""
    for path in folder.glob(".partial-*"):
        shutil.rmtree(path, ignore_errors=True)


def set_newer_aside(folder: Path, step: int, notify: Notify) -> None:
    """Takes their names from the checkpoints after `step`, which a resumed run has skipped, and reports the new names.

    None is deleted: what could not be read once, on a disk of the network perhaps, may be whole.
    """
    for path in checkpoints(folder):
        if path > _folder_of(folder, step):
            names = (folder / f"unread-{path.name}{'-again' * times}" for times in count())
            aside = next(name for name in names if not name.exists())
            with writing(folder, aside.name):
                path.rename(aside)
            notify(f"{aside}: the checkpoint that could not be read is kept here; delete it when the run is done")


@contextmanager
def kept(path: Path, what: str, room: str = "free some space") -> Iterator[None]:
    """Turns a failure to add to `path` into a UserError; `what` says in the plural what is there and stays."""
    try:
        yield
    except OSError as error:
        raise UserError(
            "cannot_write",
            f"{path}: cannot be written ({error.strerror}); {room}, then repeat the command with --resume: the {what} "
            "that are there are kept",
        ) from error


@contextmanager
def writing(folder: Path, what: str) -> Iterator[None]:
    """Turns a failure to write below `folder` into a UserError with the free space and what to do."""
    try:
        yield
    except CANNOT_WRITE as error:
        newest = checkpoints(folder)[-1:]
        kept = f"{newest[0]} is kept; then continue from it with --resume" if newest else "nothing is saved yet"
        at = next(path for path in (folder, *folder.parents) if path.exists())
        free = f"{shutil.disk_usage(at).free / 1e6:,.0f} MB are free there"
        raise UserError(
            "cannot_write",
            f"{folder}: cannot write {what} ({_said(error)}); {free}.\nFree some space; {kept}.",
        ) from error


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.weights.items()}
    save_file(weights, folder / "model.safetensors")
    torch.save({"optimizer": checkpoint.optimizer, "random": checkpoint.random}, folder / "optimizer.pt")
    (folder / "position.json").write_text(json.dumps(asdict(checkpoint.position)) + "\n")
    (folder / FINGERPRINT).write_text(json.dumps(dict(checkpoint.fingerprint), indent=2) + "\n")
    for entry in (*folder.iterdir(), folder):
        _flush(entry)


def _read(folder: Path) -> Checkpoint:
    extra = torch.load(folder / "optimizer.pt", weights_only=True, map_location="cpu")
    return Checkpoint(
        position=Position(**json.loads((folder / "position.json").read_text())),
        weights=load_file(folder / "model.safetensors"),
        optimizer=extra["optimizer"],
        random=extra["random"],
        fingerprint=json.loads((folder / FINGERPRINT).read_text()),
    )


def _folder_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:07d}"


def _flush(path: Path) -> None:
    """So that a file, or the names in a folder, outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"


def locked(path: Path, busy: Callable[[], None]) -> IO[str]:
    """The open file `path`; until it is closed no other process gets it from here. The system closes it for the killed.

    `busy` is called where another process has it; if that returns, this waits until the file is free.
    """
    with ExitStack() as closing:
        file = closing.enter_context(path.open("a"))
        if not try_lock(file.fileno()):
            busy()
            wait_for_lock(file.fileno())
        closing.pop_all()
    return file
