"""`benchctl compare`: tables of the figures in results files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Literal

import click

from benchctl.cli import completion as completing
from benchctl.cli.options import options_from
from benchctl.errors import UserError
from benchctl.options import setting

if TYPE_CHECKING:
    from benchctl.analysis.comparison import Group
    from benchctl.analysis.gate import Gates
    from benchctl.records.scores import Score

FAILED = 1


@dataclass(frozen=True)
class _Options:
    """The options of `benchctl compare`."""

    format: Literal["table", "brief", "md", "csv", "json"] = setting(
        "table",
        "table: all tables for the terminal. brief: one table over all suites. md: Markdown. csv, json: every figure "
        "with its interval, unrounded.",
    )
    over: str | None = setting(
        None,
        "Use this method as the baseline for speed, exact match, acceptance and degeneration. Verdicts, token "
        "agreement and the target's opinion of answers do not change.",
        metavar="LABEL",
        completion="labels",
    )
    acceptance: bool = setting(
        False, "Show only acceptance: of methods that draft, under all its names, by position and by tokens per step."
    )
    scores: tuple[str, ...] = setting(
        (),
        "Further scores of these answers; those next to each of FILES are read anyway. May be repeated. Without "
        "FILES: how far the judges of these scores agree.",
        metavar="FILE",
        completion="files",
    )
    require: Literal["identical", "tie", "numeric", "lossless"] | None = setting(
        None,
        "Exit with 1 unless all methods answered all prompts, all with this verdict or a stricter one. lossless also "
        "requires that the method claims to be exact.",
    )
    quality: float | None = setting(
        None,
        "Exit with 1 unless every judge that gave points shows all methods to be at most POINTS worse than the "
        "baseline: the interval of the mean difference lies above minus POINTS, on at least 10 prompts, with every "
        "turn judged, and pairs in both orders.",
        flags=("--require-quality",),
        metavar="POINTS",
        least=0,
    )
    earlier: tuple[str, ...] = setting(
        (),
        "Results of an earlier run, to whose speed-ups --fail-below refers. Repeat it for further sessions.",
        flags=("--baseline",),
        metavar="FILE",
        completion="files",
    )
    fail_below: float | None = setting(
        None,
        "Exit with 1 if a method became significantly slower than in --baseline (the interval of new / old speed-up "
        "lies below 1) and that ratio is below RATIO.",
        metavar="RATIO",
        above=0,
    )


@click.command()
@click.argument("files", nargs=-1, metavar="FILES...", shell_complete=completing.files)
@options_from(_Options, "options")
@click.pass_context
def compare(context: click.Context, options: _Options, files: tuple[str, ...]) -> None:
    """Compare the methods in results files, each with the baseline of the same file.

    Runs of the same target, prompts, settings and machine are pooled, each file being a session. Other runs are shown
    as separate groups, with the setting that differs. Scores that `benchctl judge` wrote next to a file are included.

    Exit code: 0; 1 where --require, --require-quality or --fail-below fails; 2 where runs cannot be compared, or for
    wrong usage; 3 for an invalid data file.

    \b
    Examples:
      benchctl compare results/first.jsonl
      benchctl compare results/first.jsonl --format brief
      benchctl compare 'results/*.jsonl' --format md > table.md
      benchctl compare results/first.jsonl --over 'two_model[draft_tokens=5]'
      benchctl compare results/first.jsonl --acceptance
      benchctl compare --scores results/first.scores.jsonl
      benchctl compare results/new.jsonl --require lossless --baseline results/old.jsonl --fail-below 0.95
    """
    _check_usage(files, options)
    if not files:
        _print_agreement(options)
        return
    from benchctl.analysis.gate import check_gates
    from benchctl.analysis.tables.acceptance import render_acceptance
    from benchctl.analysis.tables.text import render
    from benchctl.cli.inputs import print_warnings, read_scores

    scores = read_scores(options.scores)
    before, groups = _compared(options.earlier, options.over, None), _compared(files, options.over, scores)
    gates: Gates | None = None
    problem: UserError | None = None  # raised after the tables are printed
    try:
        _check_comparable(groups)
        _check_comparable(before)
        if options.require or before or options.quality is not None:
            earlier = before[0] if before else None
            gates = check_gates(groups[0], options.require, earlier, options.fail_below, options.quality)
    except UserError as error:
        problem = error
    if options.acceptance:
        click.echo(render_acceptance(groups, options.format, gates))
    else:
        click.echo(render(groups, options.format, get_terminal_size().columns, gates))
    if options.format == "csv":
        print_warnings(groups)
    if problem:
        raise problem
    if gates:
        _print_gates(gates, groups[0], before)
    context.exit(0 if gates is None or gates.passed else FAILED)


def _check_usage(files: Sequence[str], options: _Options) -> None:
    """Refuses options that need others, or that would have no effect with them."""
    if not files:
        if not options.scores:
            raise click.UsageError("Name results files, or --scores alone.")
        given = {name for name, value in vars(options).items() if value or (value == 0.0 and value is not False)}
        if given - {"scores", "format"} or options.format in ("brief", "csv", "md"):
            raise click.UsageError("--scores without FILES shows how judges agree, as text or json: name FILES.")
    if bool(options.earlier) != (options.fail_below is not None):
        raise click.UsageError("--baseline FILE and --fail-below RATIO need each other.")
    if options.acceptance and options.format == "brief":
        raise click.UsageError("--acceptance has no brief form: leave one of the two out.")
    if options.over and (options.require or options.quality is not None):
        raise click.UsageError("--require and --require-quality compare answers with the baseline's: no --over.")


def _print_agreement(options: _Options) -> None:
    """How far judges agree, from their scores only."""
    from benchctl.analysis.judges.figures import agreements
    from benchctl.analysis.judges.judgements import from_scores
    from benchctl.analysis.tables.columns import agreement_sentence
    from benchctl.analysis.tables.export import agreement_document
    from benchctl.cli.inputs import read_scores

    measured = agreements(from_scores(read_scores(options.scores)))
    if not measured:
        raise UserError(
            "no_common_judgements",
            f"{', '.join(options.scores)}: no two judges judged the same pairs. Name the scores of several judges.",
        )
    if options.format == "json":
        click.echo(json.dumps({"agreement_of_judges": [agreement_document(each) for each in measured]}, indent=2))
        return
    for each in measured:
        click.echo(agreement_sentence(each))


def _compared(names: Sequence[str], over: str | None, scores: Sequence[Score] | None) -> tuple[Group, ...]:
    """The comparison of these files; none where there are none."""
    from benchctl.analysis.comparison import compare as compare_runs
    from benchctl.analysis.comparison import over as set_over
    from benchctl.cli.inputs import read_files

    if not names:
        return ()
    return compare_runs([set_over(file, over) if over else file for file in read_files(names)], scores)


def _check_comparable(groups: Sequence[Group]) -> None:
    """Raises UserError, naming what differs, unless all files may be compared with each other."""
    if len(groups) > 1:
        differing = [
            f"{group.files[0].path} in {', '.join(each.field for each in group.differs)}" for group in groups[1:]
        ]
        raise UserError(
            "runs_not_comparable",
            f"not all files can be compared: {'; '.join(differing)}, from {groups[0].files[0].path}. They are shown as "
            f"{len(groups)} groups; name only files of one.",
        )


def _print_gates(gates: Gates, group: Group, earlier: Sequence[Group]) -> None:
    """Print the result on stderr."""
    from benchctl.analysis.gate import regression_lines

    for notice in gates.unsupported:
        click.echo(f"Note: {notice}", err=True)
    for problem in gates.inconclusive:
        click.echo(f"INCONCLUSIVE: {problem}", err=True)
    for problem in gates.failed:
        click.echo(f"FAIL: {problem}", err=True)
    if gates.least is None:
        return
    for line in regression_lines(gates.regressions, gates.least):
        click.echo(line, err=True)
    if min(group.sessions, earlier[0].sessions) == 1:
        click.echo(
            "Note: one of the runs has one session only, so a change may be a difference between sessions. Measure "
            "both with --sessions 3.",
            err=True,
        )
