"""Untrained modules of benchctl.conformance in folders of their own, saved as training saves them."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TypeVar

from torch import nn

from benchctl.conformance.method_under_test import facts_of, untrained
from benchctl.decoding.method import Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folders import save_modules
from benchctl.decoding.modules.trainable import Trainable

__all__ = ["facts_of", "untrained"]

Kind = TypeVar("Kind", bound=nn.Module)

_folders: dict[tuple[str, str], Path] = {}


def untrained_as(kind: type[Kind], method: Trainable, target: Target) -> Kind:
    """Untrained modules that are of this class."""
    module = untrained(method, target)
    assert isinstance(module, kind)
    return module


def untrained_folder(label: str, method: Method, target: Target, seed: int = 0) -> Path:
    """A folder of modules for this label and target; the same weights for the same arguments."""
    assert isinstance(method, Trainable)
    key = f"{label} {seed}", target.weights_sha256
    if key not in _folders:
        _folders[key] = _place() / str(len(_folders))
        save_modules(_folders[key], untrained(method, target, seed), facts_of(label, method, target))
    return _folders[key]


@cache
def _place() -> Path:
    folder = tempfile.mkdtemp(prefix="untrained-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
