"""Modules that others have published: a folder, or a hub id, with a config.json and one file of weights."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from benchctl.decoding.model.tokenizer import downloaded_file
from benchctl.errors import UserError

CONFIG = "config.json"
# Of each kind, the first that a folder holds is read.
MEDUSA_WEIGHTS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
EAGLE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def modules_folder(place: str) -> Path:
    """``place`` itself, or where the hub's cache has the files of a hub id, whose config.json is downloaded."""
    config = downloaded_file(place, CONFIG) if place.count("/") == 1 and not Path(place).exists() else None
    return Path(place) if config is None else config.parent


def weights_file(place: str, names: Sequence[str]) -> Path | None:
    """The first of the files ``names`` in a folder, or of a hub id, which is then downloaded."""
    folder = modules_folder(place)
    if folder != Path(place):
        return next((file for name in names if (file := downloaded_file(place, name)) is not None), None)
    return next((file for name in names if (file := folder / name).is_file()), None)


def read_config(file: Path, kind: str) -> Mapping[str, Any]:
    """A config.json. Raises UserError, which says what ``kind`` of modules it should be of, where it is none."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it must hold an object")
        return config
    except (OSError, ValueError) as error:
        message = f"{file}: cannot be read as that of {kind} ({error!r}); get the folder again"
        raise UserError("file_not_readable", message) from error


def read_weights(file: Path) -> dict[str, Tensor]:
    """Of a pickle only tensors are read: strangers' files run nothing; torch's error advises to unpickle the rest."""
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        weights = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        if not all(isinstance(weight, Tensor) for weight in weights.values()):
            raise ValueError("there is more in it than tensors")
        return dict(weights)
    except pickle.UnpicklingError as error:
        message = f"{file}: was not read, because it is damaged or holds more than tensors; get one of tensors only"
        raise UserError("unsafe_file", message) from error
    except (OSError, ValueError, RuntimeError, AttributeError, SafetensorError) as error:
        raise UserError("file_not_readable", f"{file}: cannot be read ({error}); get it again") from error
