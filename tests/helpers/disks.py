"""Disks that are full."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager


def full_disk(*_: object, **__: object) -> None:
    """In place of what writes."""
    raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The operating system refuses to let any file grow beyond `size` bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
