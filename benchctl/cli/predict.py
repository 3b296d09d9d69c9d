"""`benchctl predict`: the speed-up that acceptance and costs predict, next to the measured one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from benchctl.analysis.predict import Accounts, Figure, Prediction
    from benchctl.analysis.tables.grids import Grid
    from benchctl.records.schema import Run
    from benchctl.records.writer import RunFile

_NONE = "–"
_LARGE_SHARE = 0.1  # of a method's time: an unexplained share above it is a note


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, unrounded.")
def predict(files: tuple[str, ...], as_json: bool) -> None:
    """Predict each method's speed-up from acceptance and costs, and show where the measured one differs.

    It needs profiled steps (`benchctl run --profile`). All figures are of decoding without prefill, per token.

    \b
    Examples:
      benchctl predict results/profiled.jsonl
      benchctl predict results/profiled.jsonl --json
    """
    from benchctl.analysis.predict import predict as predict_files
    from benchctl.cli.options import read_files

    runs = read_files(files)
    accounts = predict_files(runs)
    click.echo(_json(runs, accounts) if as_json else _tables(runs, accounts))


def _tables(files: Sequence[RunFile], accounts: Accounts) -> str:
    """The accounts as tables and notes in the terminal's width, without a newline at the end."""
    from benchctl.analysis.names import short_labels
    from benchctl.analysis.predict import Prediction
    from benchctl.analysis.tables.grids import Paragraph, terminal

    run = files[0].run
    heading = Paragraph((f"Decoding, against {run.baseline} on {run.target_name}; prefill left out.",))
    predictions = [account for account in accounts if isinstance(account, Prediction)]
    names = short_labels([account.label for account in accounts])
    grids = _grids(predictions, names) if predictions else ()
    notes = (Paragraph((note,), "warning" if note.startswith("Note") else "note") for note in _notes(accounts, run))
    return terminal([heading, *grids, *notes], get_terminal_size().columns)


def _json(files: Sequence[RunFile], accounts: Accounts) -> str:
    """An object with `predictions` and `unpredicted`, at full precision."""
    from benchctl.analysis.predict import Prediction, Unpredicted

    document = {
        "files": [str(file.path) for file in files],
        "baseline": files[0].run.baseline,
        "target": files[0].run.target_name,
        "predictions": [
            asdict(account) | {"rows_per_step": account.costs.rows_per_step, "gap_lies_in": account.gap_lies_in.name}
            for account in accounts
            if isinstance(account, Prediction)
        ],
        "unpredicted": [asdict(account) for account in accounts if isinstance(account, Unpredicted)],
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _grids(predictions: Sequence[Prediction], names: Mapping[str, str]) -> Iterator[Grid]:
    """Speed-ups, times by part (a table for each set of parts), and costs. `names` has what to call labels."""
    from benchctl.analysis.tables.grids import Grid

    speedups = tuple(
        (
            names[each.label],
            _with_interval(each.predicted),
            _with_interval(each.measured),
            f"{each.gap.value:+z.2f}",
            each.gap_lies_in.name,
        )
        for each in predictions
    )
    yield Grid(
        "Speed-up per token", ("method", "predicted [95%]", "measured [95%]", "gap", "it lies in"), {"": speedups}
    )

    def part_names(account: Prediction) -> tuple[str, ...]:
        return tuple(part.name for part in account.parts)

    for parts, same_parts in groupby(sorted(predictions, key=part_names), key=part_names):
        times = tuple(
            (
                names[each.label],
                *(f"{100 * part.share:z.1f}" for part in each.parts),
                f"{100 / each.measured.value:.1f}",
            )
            for each in same_parts
        )
        yield Grid("A token's time, %", ("method", *parts, "in all"), {"": times})
    costs = tuple(
        (
            names[each.label],
            f"{each.costs.tokens_per_step:.2f}",
            # Rows that exit early are not counted, because they do not reach the last layer.
            f"{each.costs.rows_per_step:.2f}" if each.costs.drafted_per_step else _NONE,
            _NONE if each.costs.draft_ratio is None else f"{each.costs.draft_ratio:.3f}",
            f"{each.costs.verify_ratio:.3f}",
            f"{each.costs.depth_fraction:.3f}",
            str(each.prompts),
        )
        for each in predictions
    )
    head = ("tokens per step", "rows per step", "draft step / target step", "its rows / one row", "depth fraction")
    yield Grid("Costs and acceptance", ("method", *head, "prompts"), {"": costs})


def _notes(accounts: Accounts, run: Run) -> Iterator[str]:
    from benchctl.analysis.predict import Prediction, Unpredicted

    yield (
        "Predicted: tokens per step / cost of a step. The cost is drafting and target passes, or layers and one head. "
        "The gap is every other cost of a step. Times are percent of the baseline's time per token. Where lengths "
        "differ, the speed-up of whole answers differs too."
    )
    costs = [account.costs for account in accounts if isinstance(account, Prediction)]
    if not run.step_bytes and any(not each.drafted_per_step and each.depth_fraction < 1 for each in costs):
        yield (
            "Note: the file does not contain the bytes that a step reads. The head's share is estimated from all "
            "parameters, and so is the gain of tokens that exit early."
        )
    for account in accounts:
        if isinstance(account, Unpredicted):
            yield f"Note: {account.label} is not predicted: {account.reason}."
        elif (share := abs(account.unexplained) * account.measured.value) > _LARGE_SHARE:
            yield (
                f"Note: {account.label}: free and profiled steps differ by {share:.0%} of its time. The machine was "
                "not steady, or profiling is expensive. Measure again with more --repeats and no other load."
            )


def _with_interval(figure: Figure) -> str:
    interval = figure.interval
    ends = "n/a" if interval is None else f"{interval.low:.2f}, {interval.high:.2f}"
    return f"{figure.value:.2f}x [{ends}]"
