"""Folders that are there whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` when it has been filled, and goes when that fails."""
    partial, earlier = (folder.with_name(f".{what}-{folder.name}") for what in ("partial", "earlier"))
    for left_over in (partial, earlier):
        shutil.rmtree(left_over, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if folder.exists():
            folder.rename(earlier)
        partial.rename(folder)
    finally:
        for done in (partial, earlier):
            shutil.rmtree(done, ignore_errors=True)
