"""Folders that are there whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(folder: Path, last: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` when it has been filled, and goes when that fails.

    `last` is done with the new one in its place: where it fails, the earlier one comes back. So it does after a kill
    in between, when this is called again.
    """
    partial, earlier = (folder.with_name(f".{what}-{folder.name}") for what in ("partial", "earlier"))
    if earlier.exists() and not folder.exists():
        earlier.rename(folder)
    for left_over in (partial, earlier):
        shutil.rmtree(left_over, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        _take_place(partial, folder, earlier, last)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(earlier, ignore_errors=True)


def _take_place(partial: Path, folder: Path, earlier: Path, last: Callable[[], None]) -> None:
    if folder.exists():
        folder.rename(earlier)
    try:
        partial.rename(folder)
        last()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if earlier.exists():
            earlier.rename(folder)
        raise
