"""The local cache of fetched prompt files; a file counts only while its checksum holds."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Notify = Callable[[str], None]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def cache_folder() -> Path:
    """$BENCHCTL_CACHE/prompts, else benchctl/prompts in the user's cache folder, made only when something is kept."""
    if chosen := os.environ.get("BENCHCTL_CACHE"):
        return Path(chosen).expanduser() / "prompts"
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "benchctl" / "prompts"
    try:
        return Path.home() / ".cache" / "benchctl" / "prompts"
    except RuntimeError:  # a container's user without a home; the checksum guards what others may put there
        return Path(tempfile.gettempdir()) / "benchctl" / "prompts"


def read_kept(name: str, pinned_sha256: str, notify: Notify) -> bytes | None:
    """The kept content, or None when there is none or it is not what it should be."""
    path = cache_folder() / name
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if sha256(content) == pinned_sha256:
        return content
    notify(f"{path} is damaged and is not used")
    return None


def keep(name: str, content: bytes, notify: Notify) -> None:
    """Writes the copy whole or not at all; a cache that cannot be written costs a notice, not the run."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_whole(folder / name, content)
    except OSError as error:
        notify(f"{name} is not kept in {folder}: {error.strerror or error}")


def _write_whole(path: Path, content: bytes) -> None:
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise
