"""Suites of prompts, known by name or a file of the user's own, read and checked before any model is loaded."""

import difflib
import json
import os
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from benchctl.errors import UserError
from benchctl.measuring.prompts.download import Downloader
from benchctl.measuring.prompts.files import Prompt, Reader, read_prompts, read_user_line
from benchctl.measuring.prompts.sources import Found, Notify, Source, find_suite, read_file, sha256
from benchctl.measuring.prompts.suites import SUITES, SuiteSpec

__all__ = ["SOURCES", "Prompt", "Suite", "describe", "load_suite", "suite_names"]

SOURCES = ("auto", "published", "embedded")


@dataclass(frozen=True)
class Suite:
    """The prompts of one suite. `sha256` is that of the whole file's bytes, whatever the limit."""

    name: str
    prompts: tuple[Prompt, ...]
    source: Source
    origin: str
    sha256: str
    own: bool = False

    @property
    def prompts_sha256(self) -> str:
        """sha256 of the prompts in use, as JSON with sorted keys: equal when the same prompts run in the same order."""
        text = json.dumps([_hashed(prompt) for prompt in self.prompts], sort_keys=True, separators=(",", ":"))
        return sha256(text.encode())


def _hashed(prompt: Prompt) -> dict[str, object]:
    """Its fields; exact answers only where it has some, so that other prompts keep the hash that older files hold."""
    return {name: value for name, value in asdict(prompt).items() if value or name != "exact_answers"}


def suite_names() -> tuple[str, ...]:
    return tuple(spec.name for spec in SUITES)


def describe() -> tuple[SuiteSpec, ...]:
    """The known suites with their size, turns, licence and public address, for `benchctl list benches`."""
    return SUITES


def load_suite(
    name_or_path: str,
    *,
    data_dir: Path | None,
    source: str,
    limit: int | None,
    notify: Notify,
    downloader: Downloader | None = None,
) -> Suite:
    """A known suite by its name, or any file of `prompt` or `turns` records by its path.

    `source` ("auto", "published" or "embedded") and `data_dir` choose where a known suite comes from; they leave a file
    alone. `limit` keeps the first N prompts in file order, though the whole file is checked. What is fetched, and what
    stands in for something else, is told through `notify`. Raises UserError for anything a user can put right.
    """
    if source not in SOURCES:
        raise UserError(f'unknown source "{source}"; use one of: {", ".join(SOURCES)}')
    if limit is not None and limit < 1:
        raise UserError(f"the limit of prompts is {limit}; it must be 1 or more")
    spec = next((spec for spec in SUITES if spec.name == name_or_path), None)
    if spec is None:
        return _suite(*_own_file(name_or_path), read_user_line, limit)
    network = downloader or _process_downloader()
    found = find_suite(spec, data_dir=data_dir, source=source, downloader=network, notify=notify)
    return replace(_suite(spec.name, found, spec.read, limit), own=spec.own)


@cache
def _process_downloader() -> Downloader:
    """One for all suites of a process, so that without a network only the first of them waits."""
    return Downloader()


def _suite(name: str, found: Found, reader: Reader, limit: int | None) -> Suite:
    prompts = read_prompts(name, found.file, found.content, reader)
    return Suite(name, prompts[:limit], found.source, found.origin, sha256(found.content))


def _own_file(text: str) -> tuple[str, Found]:
    path = Path(text)
    if not (os.path.exists(path) or path.suffix or len(path.parts) > 1):
        raise UserError(_unknown(text))
    # A file named like a known suite keeps its suffix, so that no table shows it as that suite.
    name = path.name if path.stem in suite_names() else path.stem
    return name, Found(read_file(path), "file", text, text)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower().replace("_", "-"), suite_names(), n=1)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    return f'unknown bench "{name}"; known: {", ".join(suite_names())}, or the path of a .jsonl file.{hint}'
