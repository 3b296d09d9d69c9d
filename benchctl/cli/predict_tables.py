"""How predictions look: tables of 80 columns, and JSON with every figure."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchctl.analysis.comparison import label_lines
from benchctl.analysis.predict.hardware import SHORT_S, Extrapolation, Hardware
from benchctl.analysis.predict.speedup import Accounts, Figure, Prediction, Unpredicted
from benchctl.records.writer import RunFile

WIDTH = 80
_NONE = "–"
_LABEL = 16  # least characters
_MUCH = 0.1  # of a method's time that nothing explains
_Line = TypeVar("_Line", Prediction, Extrapolation)
_MODEL = (
    "A model, not a measurement: a pass takes as long as reading its weights and cache, or computing its rows; tokens "
    "per step, rows and the cost of drafting, as a part of a pass, stay as measured. Launches, commit and host cost "
    "nothing, and a token that leaves early asks one head, so it is what can be hoped for."
)
_HEAD = (
    "Note: the file does not say what a step reads, so the head's part of one is guessed from all parameters, and what "
    "tokens that leave early gain with it."
)
_SHORT = (
    "a step would take less than a millisecond: there launching its kernels decides, which the model leaves out. "
    "Predict from a run of a larger target."
)


def to_tables(
    files: Sequence[RunFile], accounts: Accounts, machines: Sequence[Hardware], models: Sequence[Extrapolation]
) -> str:
    """The accounts, and what the model says of each machine, without a newline at the end."""
    text = io.StringIO()
    console = Console(file=text, width=WIDTH, force_terminal=True, highlight=False)
    console.print(Text(f"Decoding, against {files[0].run.baseline} on {files[0].run.target.name}; prefill left out."))
    predictions = [account for account in accounts if isinstance(account, Prediction)]
    if predictions:
        for table in _account_tables(predictions):
            console.print()
            console.print(table)
    for machine in machines:
        if not any(model.hardware == machine.name for model in models):
            continue
        console.print()
        console.print(_model_table(machine, [model for model in models if model.hardware == machine.name]))
        console.print(Text(f"{machine.title}: {machine.source}.", style="dim"))
    console.print()
    for note in _notes(accounts, models, files[0].run.step_bytes):
        console.print(Text(note, style="yellow" if note.startswith("Note") else "dim"))
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def to_json(files: Sequence[RunFile], accounts: Accounts, models: Sequence[Extrapolation]) -> str:
    """An object with `predictions`, `unpredicted` and `models`, at full precision."""
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
        "models": [asdict(model) for model in models],
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _account_tables(predictions: Sequence[Prediction]) -> Iterator[Table]:
    yield _table(
        "Speed-up per token",
        predictions,
        [
            ("predicted [95%]", lambda account: _spread(account.predicted)),
            ("measured [95%]", lambda account: _spread(account.measured)),
            ("gap", lambda account: f"{account.gap.value:+.2f}"),
            ("it lies in", lambda account: account.gap_lies_in.name),
        ],
    )
    for names, alike in groupby(sorted(predictions, key=_part_names), key=_part_names):
        parts = [(name, _share_of(place)) for place, name in enumerate(names)]
        whole = ("in all", lambda account: f"{100 / account.measured.value:.1f}")
        yield _table("A token's time, %", list(alike), [*parts, whole])
    yield _table(
        "What it rests on",
        predictions,
        [
            ("tokens per step", lambda account: f"{account.costs.tokens_per_step:.2f}"),
            ("rows per step", _rows),
            ("draft step / target step", lambda account: _ratio(account.costs.draft_ratio)),
            ("its rows / one row", lambda account: _ratio(account.costs.verify_ratio)),
            ("depth fraction", lambda account: f"{account.costs.depth_fraction:.3f}"),
            ("prompts", lambda account: str(account.prompts)),
            ("costs from", lambda account: account.basis),
        ],
    )


def _part_names(account: Prediction) -> tuple[str, ...]:
    return tuple(part.name for part in account.parts)


def _share_of(place: int) -> Callable[[Prediction], str]:
    return lambda account: f"{100 * account.parts[place].share:.1f}"


def _model_table(machine: Hardware, models: Sequence[Extrapolation]) -> Table:
    return _table(
        f"Model of {machine.name}",
        models,
        [
            ("speed-up", lambda model: f"{model.speedup:.2f}x"),
            ("answers together", lambda model: str(model.batch_size)),
            ("baseline ms per step", lambda model: f"{1e3 * model.baseline_step_s:.3g}"),
            ("dtype", lambda model: model.dtype),
        ],
    )


def _table(title: str, lines: Sequence[_Line], columns: Sequence[tuple[str, Callable[[_Line], str]]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    height: int = max([2, *(len(name.split()) for name, _ in columns)])
    table.add_column("\n".join([title, *[""] * (height - 2), "method"]), overflow="fold", min_width=_LABEL)
    for name, _ in columns:
        words = name.split()
        table.add_column("\n".join([""] * (height - len(words)) + words), justify="right", no_wrap=True)
    for line in lines:
        table.add_row(Text("\n ".join(label_lines(line.label))), *(Text(cell(line)) for _, cell in columns))
    return table


def _exits(account: Prediction | Unpredicted) -> bool:
    return isinstance(account, Prediction) and not account.costs.drafted_per_step and account.costs.depth_fraction < 1


def _notes(accounts: Accounts, models: Sequence[Extrapolation], step_bytes: int) -> Iterator[str]:
    yield (
        "Predicted: tokens per step over what a step costs by its drafting and its passes, or the layers it runs and "
        "one head. The gap is what every step costs beside that, heads asked at other exits included. Times are in "
        "percent of the baseline's for a token; where answers differ in length, whole ones compare otherwise."
    )
    if not step_bytes and any(_exits(account) for account in accounts):
        yield _HEAD
    if models:
        yield _MODEL
    if any(model.baseline_step_s < SHORT_S for model in models):
        yield f"Note: {_SHORT}"
    for account in accounts:
        if isinstance(account, Unpredicted):
            yield f"Note: {account.label} is not predicted: {account.reason}."
        elif (share := abs(account.unexplained) * account.measured.value) > _MUCH:
            yield (
                f"Note: {account.label}: free and profiled steps differ by {share:.0%} of its time: the machine was "
                "not steady, or splitting the steps costs much. Measure again with more --repeats and no other load."
            )


def _rows(account: Prediction) -> str:
    """Rows that leave early are no rows of the last layer."""
    return f"{account.costs.rows_per_step:.2f}" if account.costs.drafted_per_step else _NONE


def _spread(figure: Figure) -> str:
    interval = figure.interval
    spread = "n/a" if interval is None else f"{interval.low:.2f}, {interval.high:.2f}"
    return f"{figure.value:.2f}x [{spread}]"


def _ratio(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}"
