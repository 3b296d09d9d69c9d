"""`benchctl report`: everything about results files on one page."""

from __future__ import annotations

from pathlib import Path

import click

from benchctl import __version__
from benchctl.errors import UserError


@click.command()
@click.argument("files", nargs=-1, metavar="[FILES]...")
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
    help="More scores of these answers. Scores next to FILES are always read. May be repeated.",
)
def report(files: tuple[str, ...], out: Path, scores: tuple[str, ...]) -> None:
    """Write one HTML page about results files (by default results/*.jsonl). It needs no network.

    The page starts with a recommendation and its reason. Then come the Pareto plot, a table, and answers next to the
    baseline's. Warnings, other tables and pictures, and all settings are folded. The page stays below 2 MB and states
    how many answers it leaves out.

    \b
    Examples:
      benchctl report
      benchctl report results/first.jsonl -o first.html
      benchctl report 'results/three-*.jsonl' -o three.html
    """
    from benchctl.analysis.comparison import compare
    from benchctl.analysis.html.report import report as page_of
    from benchctl.bundled import models
    from benchctl.cli.options import read_files, read_scores
    from benchctl.measuring.clock import utc_now
    from benchctl.records.writer import check_writable

    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError("bad_file_ending", f"{out}: a report is an HTML page. End --out in .html.")
    check_writable(out)
    results = read_files(files or ("results/*.jsonl",))
    groups = compare(results, read_scores(scores))
    named = f"{len(results)} file{'s' if len(results) > 1 else ''}"
    made = f"Report of {named}, made by benchctl {__version__} on {utc_now():%Y-%m-%d at %H:%M} UTC"
    embedded_models = frozenset(model.name for model in models() if model.package is None)
    page = page_of(groups, embedded_models, made=made)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page.html, encoding="utf-8")
    except OSError as error:
        problem = f"{out}: cannot be written: {error.strerror}. Give another --out."
        raise UserError("cannot_write", problem) from error
    size = out.stat().st_size / 1e6
    click.echo(f"Report: {out} ({size:.1f} MB, {page.shown_answers} of {page.answers} answers)")
