"""Where the bytes of a suite come from: --data-dir, the local cache, the public address, or the embedded sample."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from benchctl.errors import UserError
from benchctl.measuring.prompts.download import Downloader, UnreachableError
from benchctl.measuring.prompts.suites import SuiteSpec

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


Source = Literal["published", "embedded", "file"]


@dataclass(frozen=True)
class Found:
    """The bytes of a suite: `file` names them in errors, `origin` in the record of a run."""

    content: bytes
    source: Source
    origin: str
    file: str


def find_suite(spec: SuiteSpec, *, data_dir: Path | None, source: str, downloader: Downloader, notify: Notify) -> Found:
    """The bytes of a known suite from the first place that has them; `source` is auto, published or embedded.

    A --data-dir that is given must have the file. benchctl's own suite has no other place than the package, and comes
    from there whatever is asked for. Raises UserError with what to do.
    """
    if source == "embedded" and data_dir:
        raise UserError("--source embedded reads no --data-dir; leave one of the two out")
    if spec.own:
        return _embedded(spec)
    if source == "embedded":
        notify(f"{spec.name}: embedded sample of {spec.embedded_prompts} prompts, not the published {spec.prompts}")
        return _embedded(spec)
    if data_dir:
        found = _in_folder(spec, data_dir, source, notify)
    elif content := read_kept(Path(spec.file).name, spec.sha256, notify):
        found = Found(content, "published", spec.address, spec.address)
    else:
        found = _at_address(spec, source, downloader, notify)
    if spec.terms and found.source != "embedded":
        notify(f"{spec.name}: {spec.terms}")
    return found


def read_file(path: Path) -> bytes:
    """The bytes of a user's file. Raises UserError when there are none to be had."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; check the path and its permissions") from None


def _embedded(spec: SuiteSpec) -> Found:
    place = f"assets/prompts/{spec.name}.jsonl"
    content = files("benchctl").joinpath(place).read_bytes()
    return Found(content, "embedded", f"benchctl/{place}", f"benchctl/{place}")


def _in_folder(spec: SuiteSpec, folder: Path, source: str, notify: Notify) -> Found:
    path = _place_in(spec, folder)
    content = read_file(path)
    if sha256(content) == spec.sha256:
        return Found(content, "published", spec.address, str(path))
    difference = f"{path} is not the published {spec.name} file (sha256 {sha256(content)}, expected {spec.sha256})"
    if source == "published":
        raise UserError(f"{difference}; fetch it anew from {spec.address}, or use --source auto to run it as it is")
    notify(f"{difference}; the run says source: file")
    return Found(content, "file", str(path), str(path))


def _place_in(spec: SuiteSpec, folder: Path) -> Path:
    if not os.path.isdir(folder):
        raise UserError(f"--data-dir {folder} is not a folder; give the folder that holds {spec.file}")
    for path in (folder / spec.file, folder / Path(spec.file).name):
        if os.path.isfile(path):
            return path
    name = Path(spec.file).name
    raise UserError(f"--data-dir {folder} has neither {spec.file} nor {name}; put there {spec.address}")


def _at_address(spec: SuiteSpec, source: str, downloader: Downloader, notify: Notify) -> Found:
    if not downloader.offline:
        notify(f"{spec.name}: fetching the published prompts from {spec.address}")
    try:
        content = downloader.fetch(spec.address)
    except UnreachableError as error:
        return _instead(spec, source, str(error), notify)
    if sha256(content) != spec.sha256:
        raise UserError(
            f"{spec.address} gave a file that is not the published {spec.name} "
            f"(sha256 {sha256(content)}, expected {spec.sha256}): the transfer broke off, a proxy replaced it, or the "
            "set was changed; try again, or use --data-dir FOLDER or --source embedded"
        )
    keep(Path(spec.file).name, content, notify)
    return Found(content, "published", spec.address, spec.address)


def _instead(spec: SuiteSpec, source: str, reason: str, notify: Notify) -> Found:
    if source == "published":
        raise UserError(
            f"the published {spec.name} prompts cannot be had: no copy in {cache_folder()}, and {spec.address} "
            f"is out of reach ({reason}); give --data-dir FOLDER, or allow the sample with --source embedded"
        )
    notify(
        f"{spec.name}: out of reach ({reason}); using the embedded sample of {spec.embedded_prompts} prompts instead "
        f"of the published {spec.prompts}; give --data-dir FOLDER for the published file"
    )
    return _embedded(spec)
