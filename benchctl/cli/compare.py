"""`benchctl compare`: tables of the figures in results files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from benchctl.cli import completion as completing
from benchctl.cli.options import FiniteRange
from benchctl.errors import UserError

if TYPE_CHECKING:
    from benchctl.analysis.frame.comparison import Group
    from benchctl.analysis.gate import Gates, Requirement
    from benchctl.analysis.tables.text import Format


@click.command()
@click.argument("files", nargs=-1, metavar="FILES...", shell_complete=completing.files)
@click.option(
    "--format",
    "format",
    type=click.Choice(["table", "brief", "md", "csv", "json"]),
    default="table",
    show_default=True,
    help="table for the terminal, brief for one of all suites together, md for Markdown; csv and json have every "
    "figure, with its interval, unrounded.",
)
@click.option(
    "--over",
    metavar="LABEL",
    shell_complete=completing.labels,
    help="Set times, exact match, --overlap and whether answers run away against this method, and acceptance rates "
    "too, as differences, and leave the baseline out. Verdicts, token agreement and how near answers are to the target "
    "stay as they were.",
)
@click.option(
    "--overlap",
    is_flag=True,
    help="Also ROUGE-L and chrF of the answers to the baseline's, which takes milliseconds for each pair that differs.",
)
@click.option(
    "--acceptance",
    is_flag=True,
    help="Show instead what methods that draft accept, under all names: by position and how many tokens a step too.",
)
@click.option(
    "--scores",
    "scores",
    multiple=True,
    metavar="FILE",
    shell_complete=completing.files,
    help="Scores of these answers beside those in the file next to each of FILES. May be repeated. Without FILES: how "
    "far the judges of these scores agree.",
)
@click.option(
    "--margin",
    type=FiniteRange(min=0, min_open=True),
    metavar="POINTS",
    help="Difference in a judge's score that counts as none: shows how many prompts it takes to tell.  [default: 0.1]",
)
@click.option(
    "--floor",
    metavar="FILE",
    shell_complete=completing.files,
    help="What `benchctl doctor --aa --out` wrote: no difference in speed is called one below its least detectable.",
)
@click.option(
    "--require",
    type=click.Choice(["identical", "tie", "numeric", "lossless"]),
    help="Exit with 1 unless all methods of the run answered all prompts, and all answers have this verdict or a "
    "stricter one; lossless also asks for the claim to be.",
)
@click.option(
    "--require-quality",
    "quality",
    type=FiniteRange(min=0),
    metavar="POINTS",
    help="Exit with 1 unless every judge that gave points shows all methods to be worse than the baseline by no more "
    "than POINTS: the interval of the mean difference lies above minus POINTS, on at least 10 prompts, every turn "
    "judged, and pairs in both orders.",
)
@click.option(
    "--baseline",
    "earlier",
    multiple=True,
    metavar="FILE",
    shell_complete=completing.files,
    help="Results of an earlier run, whose speed-ups --fail-below is about. May be repeated, for its sessions.",
)
@click.option(
    "--fail-below",
    type=FiniteRange(min=0, min_open=True),
    metavar="RATIO",
    help="Exit with 1 if a method became slower than in --baseline beyond chance (the interval of the part of its "
    "speed-up that it keeps lies below 1) and the estimate of that part is below RATIO.",
)
@click.pass_context
def compare(
    context: click.Context,
    files: tuple[str, ...],
    format: Format,
    over: str | None,
    overlap: bool,
    acceptance: bool,
    scores: tuple[str, ...],
    margin: float | None,
    floor: str | None,
    require: Requirement | None,
    quality: float | None,
    earlier: tuple[str, ...],
    fail_below: float | None,
) -> None:
    """Compare the methods in results files, each with the baseline measured beside it.

    Runs of the same target, prompts, settings and machine are taken together, a file counting as a session. Others
    are shown as groups of their own, with the setting that differs. What `benchctl judge` wrote beside a file is shown.

    Exit code: 0, 1 where --require, --require-quality or --fail-below is broken, 2 where runs cannot be compared (or
    for wrong usage), 3 for files that hold what cannot be true.

    \b
    Examples:
      benchctl compare results/first.jsonl
      benchctl compare results/first.jsonl --format brief
      benchctl compare 'results/*.jsonl' --format md > table.md
      benchctl compare results/first.jsonl --over 'two_model[draft_tokens=5]'
      benchctl compare results/lossy.jsonl --overlap
      benchctl compare results/first.jsonl --acceptance
      benchctl compare --scores results/first.scores.jsonl
      benchctl compare results/new.jsonl --require lossless --baseline results/old.jsonl --fail-below 0.95
    """
    from benchctl.analysis.judges.figures import MARGIN, with_judgements
    from benchctl.analysis.metrics.text_overlap import with_overlap
    from benchctl.analysis.stats.aa import read_floor
    from benchctl.cli.compare import FAILED, held, tell
    from benchctl.cli.inputs import read_scores, tell_cautions, tell_floor

    _check_together(context.params)
    if not files:
        _tell_agreement(scores, format)
        return
    more = read_scores(scores)
    least = read_floor(floor) if floor else None
    effect = least.effect if least else 0.0
    before, groups = (_compared(names, over, overlap) for names in (earlier, files))
    groups = with_judgements(with_overlap(groups) if overlap else groups, more, margin or MARGIN)
    gates = held(groups, require, before, fail_below, effect, quality)
    _show(groups, format, acceptance, effect, None if isinstance(gates, UserError) else gates)
    if format == "csv":
        tell_cautions(groups, effect)
    if least:
        tell_floor(groups, least)
    if isinstance(gates, UserError):
        raise gates
    if gates:
        tell(gates, groups[0], before)
    context.exit(0 if gates is None or gates.passed else FAILED)


def _compared(names: tuple[str, ...], over: str | None, overlap: bool) -> tuple[Group, ...]:
    """The comparison of these files; none where there are none."""
    from benchctl.analysis.frame.comparison import compare as compare_runs
    from benchctl.analysis.frame.comparison import over as set_over
    from benchctl.cli.inputs import read_files

    if not names:
        return ()
    return compare_runs([set_over(file, over) if over else file for file in read_files(names)], texts=overlap)


def _show(groups: tuple[Group, ...], format: Format, acceptance: bool, effect: float, gates: Gates | None) -> None:
    from benchctl.analysis.tables.acceptance import render_acceptance
    from benchctl.analysis.tables.text import render

    if acceptance:
        click.echo(render_acceptance(groups, format, gates))
    else:
        click.echo(render(groups, format, get_terminal_size().columns, effect, gates))


def _tell_agreement(scores: tuple[str, ...], format: Format) -> None:
    """How far judges agree, from their scores alone."""
    import json

    from benchctl.analysis.judges.agreement import agreements
    from benchctl.analysis.judges.judgements import from_scores
    from benchctl.analysis.tables.export import agreement_document
    from benchctl.analysis.tables.judges import agreement_sentence
    from benchctl.cli.inputs import read_scores

    found = agreements(from_scores(read_scores(scores)))
    if not found:
        raise UserError(f"{', '.join(scores)}: no two judges judged the same pairs. Name the scores of several judges.")
    if format == "json":
        click.echo(json.dumps({"agreement_of_judges": [agreement_document(one) for one in found]}, indent=2))
        return
    for one in found:
        click.echo(agreement_sentence(one))


def _check_together(options: Mapping[str, object]) -> None:
    """Refuses options that need others, or that would be ignored beside them."""
    if not options["files"]:
        _check_alone(options)
    gated = options["fail_below"] is not None
    if bool(options["earlier"]) != gated:
        raise click.UsageError("--baseline FILE and --fail-below RATIO need each other.")
    if options["acceptance"] and options["format"] == "brief":
        raise click.UsageError("--acceptance has no brief form: leave one of the two out.")
    if options["acceptance"] and options["overlap"]:
        raise click.UsageError("--acceptance shows no overlap: leave one of the two out.")
    if options["floor"] and not gated and (options["acceptance"] or options["format"] == "csv"):
        raise click.UsageError("--acceptance and csv call no difference in speed one: leave --floor out.")
    if options["over"] and (options["require"] or options["quality"] is not None):
        raise click.UsageError("--require and --require-quality are about answers beside the baseline's: no --over.")
    if options["margin"] and options["acceptance"]:
        raise click.UsageError("--acceptance shows no judge's score: leave --margin out.")


def _check_alone(options: Mapping[str, object]) -> None:
    """That where no results are named scores are, and nothing that is about results."""
    if not options["scores"]:
        raise click.UsageError("Name results files, or --scores alone.")
    given = [name for name, value in options.items() if value or value == 0.0 and value is not False]  # 0 points too
    asked = [name for name in given if name not in ("scores", "format")]
    if asked or options["format"] in ("brief", "csv", "md"):
        raise click.UsageError("--scores without FILES shows how judges agree, as text or json: name FILES for more.")


if TYPE_CHECKING:
    from benchctl.analysis.frame.comparison import Group
    from benchctl.analysis.gate import Gates, Requirement

FAILED = 1


def check_comparable(groups: Sequence[Group]) -> None:
    """Raises UserError, naming what differs, unless all files may be compared with each other."""
    if len(groups) > 1:
        differing = [
            f"{group.files[0].path} in {', '.join(one.field for one in group.differs)}" for group in groups[1:]
        ]
        raise UserError(
            f"not all files can be compared: {'; '.join(differing)}, from {groups[0].files[0].path}. They are shown as "
            f"{len(groups)} groups; name only files of one."
        )


def held(
    groups: Sequence[Group],
    required: Requirement | None,
    earlier: Sequence[Group],
    least: float | None,
    floor: float,
    quality: float | None,
) -> Gates | UserError | None:
    """What became of what the first group is held to, None where nothing was asked for; or why it cannot be said, to be
    raised when the tables are shown."""
    from benchctl.analysis.gate import hold

    try:
        check_comparable(groups)
        if earlier:
            check_comparable(earlier)
        asked = required or earlier or quality is not None
        return hold(groups[0], required, earlier[0] if earlier else None, least, floor, quality) if asked else None
    except UserError as problem:
        return problem


def tell(gates: Gates, group: Group, earlier: Sequence[Group]) -> None:
    """All of it, on stderr."""
    from benchctl.analysis.frame.sessions import count
    from benchctl.analysis.gate import told

    for notice in gates.unsupported:
        click.echo(f"Note: {notice}", err=True)
    for problem in gates.unmet:
        click.echo(f"FAIL: {problem}", err=True)
    if gates.least is None:
        return
    for line in told(gates.kept, gates.least, gates.floor):
        click.echo(line, err=True)
    if min(count(group), count(earlier[0])) == 1:
        click.echo(
            "Note: one of these was measured in one session, so what of a change is the difference between sessions "
            "cannot be told: --sessions 3 for both would tell, or --floor.",
            err=True,
        )
