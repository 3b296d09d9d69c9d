"""Where the bytes of a suite come from: the folder of BENCHCTL_DATA, the cache, the public address, or the package."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from typing import IO, Literal
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from benchctl.bundled import cache_folder
from benchctl.errors import UserError
from benchctl.measuring.prompts.files import Reader
from benchctl.records.reader import read_file

TIMEOUT_S = 10.0
SIZE_LIMIT_BYTES = 4 * 1024 * 1024

Opener = Callable[[str, float], IO[bytes]]


class UnreachableError(Exception):
    """The address could not be read; the message says why."""


def open_address(address: str, timeout_s: float) -> IO[bytes]:
    """The open answer. Raises OSError, HTTPException and ValueError."""
    answer: IO[bytes] = urlopen(address, timeout=timeout_s)
    return answer


class Downloader:
    """Fetches small files. After the first failure of the network, `offline` says why and every fetch fails at once."""

    def __init__(self, opener: Opener = open_address, timeout_s: float = TIMEOUT_S) -> None:
        self._opener, self._timeout_s = opener, timeout_s
        self.offline = ""

    def fetch(self, address: str) -> bytes:
        """The content, cut at SIZE_LIMIT_BYTES (then the checksum differs). Raises UnreachableError."""
        if self.offline:
            raise UnreachableError(self.offline)
        answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
        # A thread, because a socket's timeout limits neither the name look-up nor the sum of all attempts;
        # a daemon, so that a stuck thread does not delay the end of the program.
        threading.Thread(target=self._read, args=(address, answers), daemon=True).start()
        try:
            answer = answers.get(timeout=self._timeout_s)
        except queue.Empty:
            answer = TimeoutError(f"no answer within {self._timeout_s:g} s")
        if isinstance(answer, bytes):
            return answer
        if isinstance(answer, HTTPError):
            answer.close()
            raise UnreachableError(f"HTTP {answer.code} {answer.reason}")
        cause = answer.reason if isinstance(answer, URLError) else answer
        reason = cause.strerror if isinstance(cause, OSError) else None
        self.offline = reason or str(cause) or type(answer).__name__
        raise UnreachableError(self.offline)

    def _read(self, address: str, answers: queue.SimpleQueue[bytes | Exception]) -> None:
        try:
            with self._opener(address, self._timeout_s) as answer:
                answers.put(answer.read(SIZE_LIMIT_BYTES))
        except (OSError, HTTPException, ValueError) as error:
            answers.put(error)


@dataclass(frozen=True)
class SuiteSpec:
    """A known suite. `sha256` is that of the file at `address`; `file` is its path below the folder of BENCHCTL_DATA
    and below that of the cache. `turns` is the most that a prompt has.

    A suite without an address is benchctl's own: the embedded file is the whole suite, not a sample of a published one.
    A suite with 0 `embedded_prompts` has no sample in the package.
    """

    name: str
    prompts: int
    licence: str
    read: Reader
    turns: int = 1
    embedded_prompts: int = 30
    address: str = ""
    sha256: str = ""
    file: str = ""
    terms: str = ""

    @property
    def own(self) -> bool:
        return not self.address


Notify = Callable[[str], None]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def prompts_folder() -> Path:
    return cache_folder() / "prompts"


def keep(path: Path, content: bytes, notify: Notify) -> None:
    """Writes the copy whole or not at all. A cache that cannot be written gives a notice, not an error."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        notify(f"{path.name} is not kept in {path.parent}: {error.strerror or error}")


def unpacked(content: bytes, file: str) -> bytes:
    """The content of a gzip file; any other content as it is. Raises UserError for a broken or too large file."""
    if not content.startswith(b"\x1f\x8b"):
        return content
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: with the header and the checksum of gzip
    try:
        text = unpacker.decompress(content, SIZE_LIMIT_BYTES + 1)
    except zlib.error as error:
        raise UserError("broken_gzip", f"{file} is a broken gzip file ({error}); get the file again") from None
    if len(text) > SIZE_LIMIT_BYTES:
        raise UserError(
            "file_too_large", f"{file} has more than {SIZE_LIMIT_BYTES >> 20} MiB of text; unpack it and give a part"
        )
    if not unpacker.eof or unpacker.unused_data:
        raise UserError("broken_gzip", f"{file} is not one whole gzip file; get the file again, or unpack it")
    return text


Source = Literal["published", "embedded", "file"]


@dataclass(frozen=True)
class SuiteBytes:
    """The bytes of a suite: `file` names them in errors, `origin` in the record of a run."""

    content: bytes
    source: Source
    origin: str
    file: str


def find_suite(spec: SuiteSpec, *, source: str, downloader: Downloader, notify: Notify) -> SuiteBytes:
    """The bytes of a known suite from the first place that has them; `source` is auto, published or embedded.

    A folder of BENCHCTL_DATA must have the file. benchctl's own suite always comes from the package. Raises UserError.
    """
    if spec.own:
        return _embedded(spec)
    if source == "embedded":
        if not spec.embedded_prompts:
            raise UserError("no_sample", f"{spec.name} has no embedded sample; leave out --source embedded")
        notify(f"{spec.name}: {spec.embedded_prompts} embedded sample prompts, not the {spec.prompts} published ones")
        return _embedded(spec)
    if folder := os.environ.get("BENCHCTL_DATA"):
        suite = _in_folder(spec, Path(folder).expanduser(), source, notify)
    else:
        suite = _kept(spec, notify) or _at_address(spec, source, downloader, notify)
    if spec.terms and suite.source != "embedded":
        notify(f"{spec.name}: {spec.terms}")
    return suite


def _embedded(spec: SuiteSpec) -> SuiteBytes:
    path = f"assets/prompts/{spec.name}.jsonl"
    content = files("benchctl").joinpath(path).read_bytes()
    return SuiteBytes(content, "embedded", f"benchctl/{path}", f"benchctl/{path}")


def _kept(spec: SuiteSpec, notify: Notify) -> SuiteBytes | None:
    # Earlier versions kept all files in one folder, where two suites with files of one name had no room.
    for path in (prompts_folder() / spec.file, prompts_folder() / Path(spec.file).name):
        content = b""
        with suppress(OSError):
            content = path.read_bytes()
        if sha256(content) == spec.sha256:
            return SuiteBytes(content, "published", spec.address, spec.address)
        if content and path == prompts_folder() / spec.file:
            notify(f"{path} is damaged and is not used")
    return None


def _in_folder(spec: SuiteSpec, folder: Path, source: str, notify: Notify) -> SuiteBytes:
    name = Path(spec.file).name
    if not os.path.isdir(folder):
        raise UserError("data_folder", f"BENCHCTL_DATA={folder} is not a folder; set it to the folder with {spec.file}")
    contents = {path: read_file(path) for path in (folder / spec.file, folder / name) if os.path.isfile(path)}
    if not contents:
        raise UserError(
            "data_folder", f"BENCHCTL_DATA={folder} has neither {spec.file} nor {name}; put {spec.address} there"
        )
    # The published file goes first: several suites have a question.jsonl.
    path, content = min(contents.items(), key=lambda found: sha256(found[1]) != spec.sha256)
    if sha256(content) == spec.sha256:
        return SuiteBytes(content, "published", spec.address, str(path))
    difference = f"{path} is not the published {spec.name} file (sha256 {sha256(content)}, expected {spec.sha256})"
    if source == "published":
        raise UserError(
            "not_published_file", f"{difference}; fetch it from {spec.address}, or use --source auto to run it"
        )
    notify(f"{difference}; the results record source: file")
    return SuiteBytes(content, "file", str(path), str(path))


def _at_address(spec: SuiteSpec, source: str, downloader: Downloader, notify: Notify) -> SuiteBytes:
    try:
        content = downloader.fetch(spec.address)
    except UnreachableError as error:
        if source == "published" or not spec.embedded_prompts:
            sample = ", or allow the sample with --source embedded" if spec.embedded_prompts else ""
            raise UserError(
                "suite_unreachable",
                f"the published {spec.name} prompts are not available: {spec.address} is out of reach ({error}). Get "
                f"the file on another machine and put it at {prompts_folder() / spec.file}, or below the folder of "
                f"BENCHCTL_DATA{sample}",
            ) from None
        notify(
            f"{spec.name}: {spec.embedded_prompts} embedded sample prompts (the {spec.prompts} published ones need "
            f"network access or BENCHCTL_DATA: {error})"
        )
        return _embedded(spec)
    if sha256(content) != spec.sha256:
        sample = " or use --source embedded" if spec.embedded_prompts else ""
        raise UserError(
            "not_published_file",
            f"{spec.address} gave a file that is not the published {spec.name} "
            f"(sha256 {sha256(content)}, expected {spec.sha256}): the transfer broke off, a proxy replaced it, or the "
            f"set was changed; try again, or set BENCHCTL_DATA{sample}",
        )
    notify(f"{spec.name}: fetched the {spec.prompts} published prompts from {spec.address}")
    keep(prompts_folder() / spec.file, content, notify)
    return SuiteBytes(content, "published", spec.address, spec.address)
