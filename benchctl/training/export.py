"""Makes a model folder of the newest checkpoint of an unfinished run."""

from __future__ import annotations

from pathlib import Path

from benchctl.errors import UserError
from benchctl.training.checkpoint import Notify, load_checkpoint, load_weights, replacing, writing
from benchctl.training.jobs import CHECKPOINTS
from benchctl.training.models import copy_tokenizer, empty_model, save_model


def export_checkpoint(run: Path, out: Path, notify: Notify) -> None:
    """Writes the newest checkpoint of the run of a model into the fresh folder `out`.

    `notify` is told of damaged checkpoints, which are passed over. Raises UserError where none can be read, where the
    run is one of modules, where `out` holds something, and when the disk is full: nothing of `out` is then left.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UserError(f"{out}: is a file, or holds something already; name a fresh folder with --out")
    found = load_checkpoint(run / CHECKPOINTS, notify)
    if found is None:
        raise UserError(f"{run}: no checkpoint in its folder '{CHECKPOINTS}' yet")
    if not (run / "config.json").is_file():
        raise UserError(f"{run}: trains modules of a method, not a model; finish it with --resume instead")
    model = empty_model(run)
    load_weights(model, found.weights)
    with writing(out, "the model"), replacing(out.resolve()) as partial:
        save_model(model, partial)
        copy_tokenizer(run, partial)
