"""`benchctl predict`: the speed-up that acceptance and costs predict, next to the measured one."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

import click

from benchctl.cli import completion as completing

if TYPE_CHECKING:
    from rich.table import Table

    from benchctl.analysis.predict.speedup import Accounts, Figure, Prediction
    from benchctl.records.writer import RunFile

WIDTH = 80
_NONE = "–"
_LABEL_CHARACTERS = 16  # the least width of the first column
_LARGE_SHARE = 0.1  # of a method's time: an unexplained share above it is a note


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...", shell_complete=completing.files)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, unrounded.")
def predict(files: tuple[str, ...], as_json: bool) -> None:
    """Predict each method's speed-up from acceptance and costs, and show where the measured one differs.

    Costs come from profile rows (benchctl run --profile), or else from how step times follow the length of drafts.
    All figures are of decoding without prefill, per token.

    \b
    Examples:
      benchctl predict results/profiled.jsonl
      benchctl predict results/profiled.jsonl --json
    """
    from benchctl.analysis.predict.speedup import predict as predict_files
    from benchctl.cli.options import read_files

    runs = [file for file in read_files(files) if file.rows]
    accounts = predict_files(runs)
    click.echo(_json(runs, accounts) if as_json else _tables(runs, accounts))


def _tables(files: Sequence[RunFile], accounts: Accounts) -> str:
    """The accounts as tables of 80 columns and notes, without a newline at the end."""
    from rich.console import Console
    from rich.text import Text

    from benchctl.analysis.predict.speedup import Prediction

    text = io.StringIO()
    console = Console(file=text, width=WIDTH, force_terminal=True, highlight=False)
    run = files[0].run
    console.print(Text(f"Decoding, against {run.baseline} on {run.target.name}; prefill left out."))
    predictions = [account for account in accounts if isinstance(account, Prediction)]
    for table in _account_tables(predictions) if predictions else ():
        console.print()
        console.print(table)
    console.print()
    for note in _notes(accounts, run.step_bytes):
        console.print(Text(note, style="yellow" if note.startswith("Note") else "dim"))
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _json(files: Sequence[RunFile], accounts: Accounts) -> str:
    """An object with `predictions` and `unpredicted`, at full precision."""
    from benchctl.analysis.predict.speedup import Prediction, Unpredicted

    document = {
        "files": [str(file.path) for file in files],
        "baseline": files[0].run.baseline,
        "target": files[0].run.target.name,
        "predictions": [
            asdict(account) | {"rows_per_step": account.costs.rows_per_step, "gap_lies_in": account.gap_lies_in.name}
            for account in accounts
            if isinstance(account, Prediction)
        ],
        "unpredicted": [asdict(account) for account in accounts if isinstance(account, Unpredicted)],
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _account_tables(predictions: Sequence[Prediction]) -> Iterator[Table]:
    yield _table(
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
        yield _table("A token's time, %", list(same_parts), [*parts, total])
    yield _table(
        "Costs and acceptance",
        predictions,
        [
            ("tokens per step", lambda account: f"{account.costs.tokens_per_step:.2f}"),
            ("rows per step", _rows_per_step),
            ("draft step / target step", lambda account: _ratio(account.costs.draft_ratio)),
            ("its rows / one row", lambda account: _ratio(account.costs.verify_ratio)),
            ("depth fraction", lambda account: f"{account.costs.depth_fraction:.3f}"),
            ("prompts", lambda account: str(account.prompts)),
            ("costs from", lambda account: account.basis),
        ],
    )


def _table(
    title: str, accounts: Sequence[Prediction], columns: Sequence[tuple[str, Callable[[Prediction], str]]]
) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from benchctl.analysis.names import label_lines

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    height: int = max([2, *(len(name.split()) for name, _ in columns)])
    table.add_column("\n".join([title, *[""] * (height - 2), "method"]), overflow="fold", min_width=_LABEL_CHARACTERS)
    for name, _ in columns:
        words = name.split()
        table.add_column("\n".join([""] * (height - len(words)) + words), justify="right", no_wrap=True)
    for account in accounts:
        table.add_row(Text("\n ".join(label_lines(account.label))), *(Text(cell(account)) for _, cell in columns))
    return table


def _notes(accounts: Accounts, step_bytes: int) -> Iterator[str]:
    from benchctl.analysis.predict.speedup import Prediction, Unpredicted

    yield (
        "Predicted: tokens per step over the cost of a step. That cost is drafting and passes, or the layers run and "
        "one head. The gap is the other cost of each step, heads at other exits included. Times are percent of the "
        "baseline's time per token, so the speed-up of whole answers differs where lengths differ."
    )
    costs = [account.costs for account in accounts if isinstance(account, Prediction)]
    if not step_bytes and any(not each.drafted_per_step and each.depth_fraction < 1 for each in costs):
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
