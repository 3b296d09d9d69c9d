"""What the verbs that analyse results share: the files named on the command line, and notes about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchctl.errors import UserError

if TYPE_CHECKING:
    from benchctl.analysis.comparison import Group
    from benchctl.records.scores import Score
    from benchctl.records.writer import RunFile


def read_files(names: Sequence[str]) -> list[RunFile]:
    """The files of `names`, which may be patterns such as results/*.jsonl; what is left out of them is said on stderr.
    Files of scores, which such a pattern also matches, are skipped here.

    Raises UserError for a pattern without a match, for a file that cannot be read, and for a copy of another one.
    """
    from benchctl.records.scores import is_scores
    from benchctl.records.writer import scan

    paths = [path for path in paths_of(names) if not is_scores(path)]
    if names and not paths:
        raise UserError(
            "scores_not_results",
            f"{names[0]}: holds scores, not results. Name the results file next to it, or use --scores.",
        )
    files = [scan(path) for path in paths]
    for file in files:
        for notice in file.notices:
            click.echo(f"Note: {notice}", err=True)
        if not file.rows:
            click.echo(f"Note: {file.path}: holds no generations yet and is left out.", err=True)
    full = [file for file in files if file.rows]
    for number, file in enumerate(full):
        for earlier in full[:number]:
            # A run that is read twice would count as two sessions and narrow every interval.
            if earlier.run == file.run and earlier.rows[0] == file.rows[0]:
                raise UserError(
                    "same_run_twice", f"{file.path}: holds the same run as {earlier.path}. Name only one of the two."
                )
    return files


def read_scores(names: Sequence[str]) -> list[Score]:
    """The scores in files, patterns expanded; each judgement once. Raises as `read_files` does."""
    from benchctl.records.scores import once
    from benchctl.records.scores import read_scores as read

    files = [read(path) for path in paths_of(names)]
    for notice in (notice for file in files for notice in file.notices):
        click.echo(f"Note: {notice}", err=True)
    return list(once(score for file in files for score in file.scores))


def print_warnings(groups: Sequence[Group]) -> None:
    """Print the warnings about the figures on stderr, for outputs without room for them."""
    from benchctl.analysis.warnings import warnings

    for group in groups:
        for warning in warnings(group):
            click.echo(f"Warning: {warning.text}", err=True)


def paths_of(names: Sequence[str]) -> list[Path]:
    """The files that `names` mean, each once, patterns expanded. Raises UserError for a pattern without a match."""
    paths: dict[Path, Path] = {}
    for name in names:
        matches = sorted(glob(name)) if has_magic(name) and not Path(name).exists() else [name]
        if not matches:
            raise UserError(
                "no_file_matches", f"no file matches {name}. Measure with `benchctl run` first, or name results files."
            )
        for path in map(Path, matches):
            paths.setdefault(path.resolve(), path)
    return list(paths.values())


@cache
def decoder(target: str) -> Callable[[Sequence[int]], str] | None:
    """Token ids to text as this target does it; None where its files are not here."""
    from benchctl.bundled import resolve
    from benchctl.decoding.model.tokenizer import token_text

    try:
        folder = resolve(target)
    except UserError:
        return None
    return token_text(folder) if isinstance(folder, Path) else None
