"""`benchctl report`: everything about results files on one page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchctl import __version__
from benchctl.cli import completion as completing
from benchctl.errors import UserError

if TYPE_CHECKING:
    from benchctl.records.schema import Run


@click.command()
@click.argument("files", nargs=-1, metavar="[FILES]...", shell_complete=completing.files)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    default=Path("results/report.html"),
    show_default=True,
    help="Page to write: .html.",
)
@click.option(
    "--scores",
    "scores",
    multiple=True,
    metavar="FILE",
    shell_complete=completing.files,
    help="Scores of these answers beside those in the file next to each of FILES. May be repeated.",
)
def report(files: tuple[str, ...], out: Path, scores: tuple[str, ...]) -> None:
    """Write one HTML page about results files (by default results/*.jsonl), which needs no network to be read.

    It has what `benchctl compare` says of them, in words and in tables that sort, the Pareto plot, acceptance, latency,
    answers beside the baseline's, with what judges said of them, all settings and all warnings. Of the answers those
    that leave the baseline's come first; the page stays below 2 MB and says how many it left out. What was accepted of
    drafts is coloured in the text where the target's tokenizer is at hand: that of an embedded model, or of a folder
    under the name that the run used.

    \b
    Examples:
      benchctl report
      benchctl report results/first.jsonl -o first.html
      benchctl report 'results/three-*.jsonl' -o three.html
    """
    from benchctl.analysis.comparison import compare
    from benchctl.analysis.html.report import report as page_of
    from benchctl.cli.inputs import read_files, read_scores
    from benchctl.measuring.clock import utc_now

    _check_page(out)
    found = read_files(files or ("results/*.jsonl",))
    groups = compare(found, read_scores(scores))
    named = f"{len(found)} file{'s' if len(found) > 1 else ''}"
    made = f"Of {named}, made by benchctl {__version__} on {utc_now():%Y-%m-%d at %H:%M} UTC."
    page = page_of(groups, decoder, made=made)
    _write(out, page.html)
    size = out.stat().st_size / 1e6
    click.echo(f"Report: {out} ({size:.1f} MB, {page.shown_answers} of {page.answers} answers)")


def _check_page(path: Path) -> None:
    """Raises UserError where `path` is not named like a page, or cannot be written."""
    from benchctl.records.writer import check_writable

    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{path}: is not named like a page. End --out in .html.")
    check_writable(path)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}. Give another --out.") from error


def decoder(run: Run) -> Callable[[Sequence[int]], str] | None:
    """Ids to text as the run's target does it; None where its files are not here."""
    return _decoder_of(run.target.name)


@cache
def _decoder_of(target: str) -> Callable[[Sequence[int]], str] | None:
    from benchctl.bundled import resolve
    from benchctl.decoding.model.tokenizer import token_text

    try:
        place = resolve(target)
    except UserError:
        return None
    return token_text(place) if isinstance(place, Path) else None
