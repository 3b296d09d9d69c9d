"""Tables of a comparison, for the terminal and as Markdown; the only place that knows how numbers look."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchctl.analysis.cautions import cautions
from benchctl.analysis.comparison import Group, MethodFigures, compare
from benchctl.analysis.export import to_csv, to_json
from benchctl.analysis.loading import (
    EVICTED_UNUSED,
    LATE,
    LOADED,
    LOADS,
    PRECISION,
    RECALL,
    RESIDENCY,
    STALL,
    THROTTLE,
    has_loading,
)
from benchctl.analysis.metrics import (
    ACCEPTANCE_DIFFERENCE,
    ACCEPTANCE_RATE,
    BLOCK_EFFICIENCY,
    DECODE_SPEEDUP,
    DEPTH_FRACTION,
    EXACT_MATCH,
    EXACT_MATCH_DIFFERENCE,
    MEAN_ACCEPTED,
    SPEEDUP,
    TOKEN_AGREEMENT,
    TOKENS_PER_S,
    TPOT,
    TTFT,
    Metric,
)
from benchctl.recordfile import read
from benchctl.records import Run

Format = Literal["table", "md", "csv", "json"]
WIDTH = 80
_NONE = "–"
_NOTE = (
    "Ratios of sums over the prompts that both the method and the baseline answered; "
    "[95% interval, paired bootstrap over sessions, prompts and repeats]."
)


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[MethodFigures], str]


@dataclass(frozen=True)
class _Block:
    """Columns that belong together and fit into 80 characters."""

    title: str
    columns: tuple[_Column, ...]


def summary(paths: Sequence[Path | str], format: Format = "table", width: int = WIDTH) -> str:
    """The figures of results files as text. `table` has colours, which click.echo drops where there is no terminal.

    Raises UserError for files that cannot be read or hold no generations.
    """
    return render(compare([read(path) for path in paths]), format, width)


def render(groups: Sequence[Group], format: Format = "table", width: int = WIDTH) -> str:
    """A comparison as text, without a newline at its end."""
    if format == "csv":
        return to_csv(groups)
    if format == "json":
        return to_json(groups)
    return _markdown(groups) if format == "md" else _terminal(groups, width)


def _heading(groups: Sequence[Group], group: Group) -> Iterator[str]:
    if len(groups) > 1:
        names = ", ".join(str(file.path) for file in group.files)
        yield f"Group {groups.index(group) + 1} of {len(groups)}: {names}"
    if group.differs:
        differing = "; ".join(f"{found.field} is {found.other}, there {found.one}" for found in group.differs)
        yield f"Not comparable with group 1: {differing}."
    yield f"Baseline {group.run.baseline} on {_settings(group.run)}."


def _settings(run: Run) -> str:
    threads = "1 thread" if run.threads == 1 else f"{run.threads} threads"
    batches = f", batches of up to {run.batch_size}" if run.batch_size > 1 else ""
    return (
        f"{run.target.name} ({run.target.layers} layers), {run.executor} executor, {run.dtype}, {run.device}, "
        f"{threads}{batches}, {_sampling(run)}, up to {run.max_new_tokens} new tokens"
    )


def _sampling(run: Run) -> str:
    if run.temperature == 0:
        return "greedy"
    top_p = f", top-p {run.top_p:g}" if run.top_p < 1 else ""
    top_k = f", top-k {run.top_k}" if run.top_k else ""
    return f"temperature {run.temperature:g}{top_p}{top_k}"


def _number(metric: Metric, pattern: str, scale: float = 1) -> Callable[[MethodFigures], str]:
    def cell(method: MethodFigures) -> str:
        value = method.estimate(metric).value
        return _NONE if value is None else pattern.format(value * scale)

    return cell


def _speedup(method: MethodFigures) -> str:
    estimate = method.estimate(SPEEDUP)
    if method.is_baseline or estimate.value is None:
        return "baseline" if method.is_baseline else _NONE
    interval = estimate.interval
    spread = "n/a" if interval is None else f"{interval.low:.2f}, {interval.high:.2f}"
    return f"{estimate.value:.2f}x [{spread}]"


def _share(metric: Metric, pattern: str) -> Callable[[MethodFigures], str]:
    def cell(method: MethodFigures) -> str:
        estimate = method.estimate(metric)
        if estimate.value is None:
            return _NONE
        interval = estimate.interval
        spread = "n/a" if interval is None else f"{interval.low:{pattern}}, {interval.high:{pattern}}"
        return f"{estimate.value:{pattern}} [{spread}]"

    return cell


def _loss(method: MethodFigures) -> str:
    named = method.is_baseline and method.checked_prompts
    return "baseline" if named else _share(EXACT_MATCH_DIFFERENCE, "+.3f")(method)


def _acceptance_difference(method: MethodFigures) -> str:
    return "baseline" if method.is_baseline else _share(ACCEPTANCE_DIFFERENCE, "+.3f")(method)


def _lossless(method: MethodFigures) -> str:
    """Empty for sampled answers: one text cannot show whether their distribution is the target's."""
    if method.is_baseline or method.fidelity.sampled:
        return _NONE
    return "yes" if method.lossless else "no"


_SPEED = _Block(
    "Speed",
    (
        _Column("speed-up [95%]", _speedup),
        _Column("decode only", _number(DECODE_SPEEDUP, "{:.2f}x")),
        _Column("tokens/s", _number(TOKENS_PER_S, "{:.1f}")),
        _Column("TPOT ms", _number(TPOT, "{:.2f}", 1e3)),
        _Column("TTFT ms", _number(TTFT, "{:.1f}", 1e3)),
        _Column("prompts", lambda method: str(method.prompts)),
    ),
)
_DRAFTING = _Block(
    "Drafting and depth",
    (
        _Column("block efficiency", _number(BLOCK_EFFICIENCY, "{:.2f}")),
        _Column("mean accepted tokens", _number(MEAN_ACCEPTED, "{:.2f}")),
        _Column("acceptance rate", _number(ACCEPTANCE_RATE, "{:.3f}")),
        _Column("depth fraction", _number(DEPTH_FRACTION, "{:.3f}")),
    ),
)
_AGAINST = _Block("Against it", (_Column("acceptance difference [95%]", _acceptance_difference),))
_COMPARED = (
    _Column("identical", lambda method: _verdicts(method, method.fidelity.identical)),
    _Column("tie", lambda method: _verdicts(method, method.fidelity.tie)),
    _Column("lossy", lambda method: _verdicts(method, method.fidelity.lossy)),
)
_SAMPLED = (_Column("sampled", lambda method: _verdicts(method, method.fidelity.sampled)),)

_EXACT_MATCH = _Block(
    "Exact match",
    (
        _Column("exact match [95%]", _share(EXACT_MATCH, ".3f")),
        _Column("difference [95%]", _loss),
        _Column("checked prompts", lambda method: str(method.checked_prompts)),
    ),
)


_LOADING = _Block(
    "Expert loading, per token",
    (
        _Column("stall ms", _number(STALL, "{:.2f}", 1e3)),
        _Column("experts loaded", _number(LOADS, "{:.2f}")),
        _Column("MB loaded", _number(LOADED, "{:.2f}", 1e-6)),
        _Column("evicted unused", _number(EVICTED_UNUSED, "{:.2f}")),
        _Column("loading throttled to", _number(THROTTLE, "{:g} MB/s")),
    ),
)
_FORESIGHT = _Block(
    "Experts at the moment of need",
    (
        _Column("resident", _number(RESIDENCY, "{:.3f}")),
        _Column("late", _number(LATE, "{:.3f}")),
        _Column("prediction recall", _number(RECALL, "{:.3f}")),
        _Column("prediction precision", _number(PRECISION, "{:.3f}")),
    ),
)


def _verdicts(method: MethodFigures, count: int) -> str:
    return _NONE if method.is_baseline else str(count)


def _blocks(group: Group) -> tuple[_Block, ...]:
    """Expert loading has a place only where experts are loaded, exact match where there are answers to check, a
    difference of acceptance rates where the baseline drafts."""
    methods = group.pooled.methods
    drafts = any(method.estimate(ACCEPTANCE_DIFFERENCE).value is not None for method in methods)
    drafting = (_DRAFTING, _AGAINST) if drafts else (_DRAFTING,)
    fidelity = (
        _Column("token agreement", _number(TOKEN_AGREEMENT, "{:.3f}")),
        *(_COMPARED if group.run.temperature == 0 else _SAMPLED),
        _Column("failed", lambda method: str(method.fidelity.failed)),
        _Column("claim", lambda method: method.exactness.replace("_", " ")),
        _Column("lossless", _lossless),
    )
    loading = (_LOADING, _FORESIGHT) if has_loading(group.frame) else ()
    blocks = _SPEED, *drafting, *loading, _Block("Fidelity", fidelity)
    checked = any(method.checked_prompts for method in methods)
    return (*blocks, _EXACT_MATCH) if checked else blocks


def _terminal(groups: Sequence[Group], width: int) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=True, highlight=False)
    for group in groups:
        for line in _heading(groups, group):
            console.print(Text(line))
        for block in _blocks(group):
            console.print()
            console.print(_table(block, group))
        console.print()
        console.print(Text(_NOTE, style="dim"))
        console.print()
        for caution in cautions(group):
            console.print(Text(f"Note: {caution}", style="yellow"))
        console.print()
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _table(block: _Block, group: Group) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    lines = max(2, *(len(column.title.split()) for column in block.columns))
    table.add_column(_at_bottom([block.title, "method"], lines), overflow="fold")
    for column in block.columns:
        table.add_column(_at_bottom(column.title.split(), lines), justify="right", no_wrap=True)
    for suite in group.suites:
        if len(group.suites) > 1:
            table.add_row(Text(group.title(suite), style="italic"))
        for method in suite.methods:
            table.add_row(
                Text("\n ".join(method.label_lines)), *(Text(column.cell(method)) for column in block.columns)
            )
        table.add_section()
    return table


def _at_bottom(words: Sequence[str], lines: int) -> str:
    return "\n".join(["" for _ in range(lines - len(words))] + list(words))


def _markdown(groups: Sequence[Group]) -> str:
    return "\n\n".join("\n\n".join(_markdown_parts(groups, group)) for group in groups)


def _markdown_parts(groups: Sequence[Group], group: Group) -> Iterator[str]:
    yield from _heading(groups, group)
    columns = [column for block in _blocks(group) for column in block.columns]
    for suite in group.suites:
        yield f"**{group.title(suite)}**"
        lines = [["method", *(column.title for column in columns)], ["---", *("---:" for _ in columns)]]
        lines += [[f"`{method.label}`", *(column.cell(method) for column in columns)] for method in suite.methods]
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines)
    yield _NOTE
    if found := cautions(group):
        yield "\n".join(f"* {caution}" for caution in found)
