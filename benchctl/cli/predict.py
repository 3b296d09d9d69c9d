"""`benchctl predict`: the speed-up that acceptance and costs predict, next to the measured one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from shutil import get_terminal_size
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from benchctl.analysis.predict import Accounts, Figure, Prediction
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

    runs = [file for file in read_files(files) if file.rows]
    accounts = predict_files(runs)
    click.echo(_json(runs, accounts) if as_json else _tables(runs, accounts))


def _tables(files: Sequence[RunFile], accounts: Accounts) -> str:
    """The accounts as tables and notes in the terminal's width, without a newline at the end."""
    from benchctl.analysis.names import short_labels
    from benchctl.analysis.predict import Prediction
    from benchctl.analysis.tables.grids import Grid, Paragraph, terminal

    run = files[0].run
    heading = Paragraph((f"Decoding, against {run.baseline} on {run.target_name}; prefill left out.",))
    predictions = [account for account in accounts if isinstance(account, Prediction)]
    names = short_labels([account.label for account in accounts])
    grids = [
        Grid(
            title,
            ("method", *(name for name, _ in columns)),
            {"": tuple((names[each.label], *(cell(each) for _, cell in columns)) for each in of_table)},
        )
        for title, of_table, columns in (_account_tables(predictions) if predictions else ())
    ]
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


class _Table(NamedTuple):
    title: str
    predictions: Sequence[Prediction]
    columns: Sequence[tuple[str, Callable[[Prediction], str]]]


def _account_tables(predictions: Sequence[Prediction]) -> Iterator[_Table]:
    yield _Table(
        "Speed-up per token",
        predictions,
        [
            ("predicted [95%]", lambda account: _with_interval(account.predicted)),
            ("measured [95%]", lambda account: _with_interval(account.measured)),
            ("gap", lambda account: f"{account.gap.value:+.2f}"),
            ("it lies in", lambda account: account.gap_lies_in.name),
        ],
    )

    def part_names(account: Prediction) -> tuple[str, ...]:
        return tuple(part.name for part in account.parts)

    for names, same_parts in groupby(sorted(predictions, key=part_names), key=part_names):
        parts = [(name, lambda account, at=at: f"{100 * account.parts[at].share:.1f}") for at, name in enumerate(names)]
        total = ("in all", lambda account: f"{100 / account.measured.value:.1f}")
        yield _Table("A token's time, %", list(same_parts), [*parts, total])
    yield _Table(
        "Costs and acceptance",
        predictions,
        [
            ("tokens per step", lambda account: f"{account.costs.tokens_per_step:.2f}"),
            ("rows per step", _rows_per_step),
            ("draft step / target step", lambda account: _ratio(account.costs.draft_ratio)),
            ("its rows / one row", lambda account: f"{account.costs.verify_ratio:.3f}"),
            ("depth fraction", lambda account: f"{account.costs.depth_fraction:.3f}"),
            ("prompts", lambda account: str(account.prompts)),
        ],
    )


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


def _rows_per_step(account: Prediction) -> str:
    """Rows that exit early are not counted, because they do not reach the last layer."""
    return f"{account.costs.rows_per_step:.2f}" if account.costs.drafted_per_step else _NONE


def _with_interval(figure: Figure) -> str:
    interval = figure.interval
    ends = "n/a" if interval is None else f"{interval.low:.2f}, {interval.high:.2f}"
    return f"{figure.value:.2f}x [{ends}]"


def _ratio(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}"
