"""`benchctl simulate`: what loading experts would cost on other tiers than this machine's, labelled as simulation."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchctl.cli import completion as completing

if TYPE_CHECKING:
    from benchctl.decoding.experts.trace import Trace
    from benchctl.offload.forecast import Line
    from benchctl.offload.simulator import PolicyChoice, Prefetch

_POLICIES = ["on_demand", "lru", "lfu", "least_stale", "oracle"]
_SHARE = click.FloatRange(min=0, max=1)


@click.group(no_args_is_help=True)
def simulate() -> None:
    """Simulate what this machine cannot show. A simulation is not a measurement, and every output says so.

    \b
    Examples:
      benchctl simulate record --model ref-moe --limit 4 --out trace.jsonl
      benchctl simulate offload --trace trace.jsonl
    """


@simulate.command()
@click.option(
    "--model", required=True, metavar="NAME|FOLDER|ID", shell_complete=completing.models, help="A mixture of experts."
)
@click.option(
    "--method",
    "-m",
    "label",
    default="expert_offload[prefetch=next_gate]",
    show_default=True,
    metavar="LABEL",
    shell_complete=completing.labels,
    help="Method that offloads experts; the trace keeps what it predicts.",
)
@click.option(
    "--bench",
    "-b",
    default="koala",
    show_default=True,
    metavar="NAME|FILE",
    shell_complete=completing.benches,
    help="Suite or .jsonl file.",
)
@click.option("--limit", type=click.IntRange(min=1), default=8, show_default=True, metavar="N", help="First N prompts.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=2),
    default=64,
    show_default=True,
    metavar="N",
    help="Longest answer, in tokens.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to run.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads of torch.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="Trace.")
def record(
    model: str, label: str, bench: str, limit: int, max_new_tokens: int, device: str, threads: int, out: Path
) -> None:
    """Record a routing trace: the experts each layer needs, those predicted, and the time computing takes.

    \b
    Examples:
      benchctl simulate record --model ref-moe --bench koala --limit 4 --out trace.jsonl
      benchctl simulate record --model ref-moe --method 'm2r2[mode=aot,modules=my-modules]' --out trace.jsonl
    """
    from benchctl.decoding.experts.trace import write_trace
    from benchctl.measuring.prompts.suites import load_suite
    from benchctl.measuring.tracing import Recording
    from benchctl.measuring.tracing import record as record_trace

    def tell(notice: str) -> None:
        click.echo(f"Note: {notice}", err=True)

    suite = load_suite(bench, source="auto", limit=limit, notify=tell)
    trace = record_trace(Recording(model, label, suite.prompts, max_new_tokens, device=device, threads=threads))
    write_trace(out, trace)
    click.echo(f"{out}: {trace.tokens} tokens of {len(trace.generations)} answers, {trace.source}.")
    click.echo(f"Measured: TPOT {trace.tpot_s * 1e3:.2f} ms, of which stall {trace.stall_s * 1e3:.2f} ms.")


@simulate.command()
@click.option(
    "--trace",
    "path",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Recorded trace. Without one, a synthetic trace of the shape of OLMoE-1B-7B stands in.",
)
@click.option(
    "--policy",
    "policies",
    type=click.Choice(_POLICIES),
    multiple=True,
    help="What is evicted; on_demand keeps nothing, oracle knows what comes. May be repeated.  [default: all]",
)
@click.option(
    "--prefetch",
    "prefetches",
    type=click.Choice(["blocking", "none", "recorded", "next", "aot"]),
    multiple=True,
    help="What is fetched ahead: nothing (blocking: nor is any of a layer's experts computed before all are there), "
    "what the recorded method predicted, or what a predictor of --recall would, of the next layer or, at layer l, up "
    "to layer 2 l.  [default: blocking, none and recorded; of a synthetic trace blocking, none, next and aot]",
)
@click.option(
    "--capacity",
    "capacities",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="EXPERTS",
    help="Experts that the fast tier holds. May be repeated.  [default: a quarter of all]",
)
@click.option(
    "--bandwidth",
    "bandwidths",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    metavar="MB/S",
    help="10^6 bytes a second. May be repeated.  [default: where on-demand LRU loads for as long as it computes]",
)
@click.option(
    "--recall",
    "recalls",
    type=_SHARE,
    multiple=True,
    default=[0.9],
    show_default=True,
    help="Share of the needed experts that next and aot foresee. May be repeated.",
)
@click.option(
    "--spare", type=click.IntRange(min=0), default=0, show_default=True, help="Experts that they name beyond top-k."
)
@click.option("--tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Synthetic: tokens decoded.")
@click.option("--popularity", type=click.FloatRange(min=0), default=0.5, show_default=True, help="Synthetic: Zipf's s.")
@click.option("--persistence", type=_SHARE, default=0.3, show_default=True, help="Synthetic: chance to be used again.")
@click.option("--layer-ms", type=click.FloatRange(min=0), help="Synthetic: ms to compute a layer.  [default: 0.4]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the synthetic trace and of predictions.")
@click.option(
    "--format",
    "format",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="csv and json have every figure, unrounded.",
)
def offload(path: Path | None, format: str, **asked: Any) -> None:
    """Simulate a mixture of experts whose experts are loaded from a slow tier, by the policies of a real run.

    Speed-ups are over on-demand LRU of the same capacity and bandwidth: "x LRU" over policy lru with prefetch none,
    which computes experts as they come, "x blocking" over one that waits for all of a layer's first. Popularity and
    persistence of the synthetic trace are guesses, not measurements of OLMoE: vary them before believing a figure.

    \b
    Examples:
      benchctl simulate offload --trace trace.jsonl --capacity 32 --bandwidth 500 --bandwidth 1000
      benchctl simulate offload --bandwidth 25000 --recall 0.7 --recall 0.9 --spare 2 --format csv
    """
    lines = _simulate(path, **asked)
    click.echo({"table": _table, "csv": _csv, "json": _json}[format](lines))


def _simulate(
    path: Path | None,
    policies: Sequence[PolicyChoice],
    prefetches: Sequence[Prefetch],
    capacities: Sequence[int],
    bandwidths: Sequence[float],
    recalls: Sequence[float],
    spare: int,
    seed: int,
    **made_up: Any,
) -> list[Line]:
    from benchctl.decoding.experts.trace import read_trace
    from benchctl.offload.forecast import Question, forecast
    from benchctl.offload.made_up import Guessing
    from benchctl.offload.simulator import POLICIES

    trace = read_trace(path) if path is not None else _synthetic(seed=seed, **made_up)
    usual: tuple[Prefetch, ...] = ("next", "aot") if trace.synthetic else ("recorded",)
    guesses = [Guessing(recall, spare, seed=seed) for recall in recalls]
    return list(
        forecast(
            trace,
            Question(policies or POLICIES, prefetches or ("blocking", "none", *usual), capacities, bandwidths, guesses),
        )
    )


def _synthetic(*, tokens: int, popularity: float, persistence: float, layer_ms: float | None, seed: int) -> Trace:
    from dataclasses import replace

    from benchctl.offload.forecast import OLMOE
    from benchctl.offload.made_up import Routing, made_up_trace

    shape = OLMOE if layer_ms is None else replace(OLMOE, layer_s=layer_ms / 1e3)
    return made_up_trace(shape, Routing(popularity, persistence), tokens=tokens, prompt_tokens=32, seed=seed)


def _json(lines: Sequence[Line]) -> str:
    return json.dumps({"simulation": True, "lines": [asdict(line) for line in lines]}, indent=2)


def _csv(lines: Sequence[Line]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(asdict(lines[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, lines))
    return text.getvalue().rstrip("\n")


def _table(lines: Sequence[Line]) -> str:
    from rich.console import Console
    from rich.table import Table

    text = io.StringIO()
    console = Console(file=text, width=80, highlight=False)
    first = lines[0]
    console.print(f"Simulation, not a measurement. {first.source}.", markup=False)
    for capacity, bandwidth in dict.fromkeys((line.capacity, line.bandwidth_mb_s) for line in lines):
        console.print(
            f"\nSimulation: {capacity} experts in the fast tier, {bandwidth:,.0f} MB/s; computing takes "
            f"{first.compute_ms:.2f} ms per token. Figures are per token."
        )
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for name, _ in _COLUMNS:
            table.add_column(name, justify="left" if name in ("policy", "prefetch") else "right", no_wrap=True)
        for line in lines:
            if (line.capacity, line.bandwidth_mb_s) == (capacity, bandwidth):
                table.add_row(*(cell(line) for _, cell in _COLUMNS))
        console.print(table)
    return "\n".join(row.rstrip() for row in text.getvalue().rstrip().splitlines())


def _prefetch(line: Line) -> str:
    """With what was assumed of made-up predictions: next 0.9+2 finds 0.9 of the experts and names two spare ones."""
    return line.prefetch if line.recall_assumed is None else f"{line.prefetch} {line.recall_assumed:g}+{line.spare}"


_COLUMNS: tuple[tuple[str, Callable[[Line], str]], ...] = (
    ("policy", lambda line: line.policy),
    ("prefetch", _prefetch),
    ("x LRU", lambda line: f"{line.speedup_over_lru:.2f}"),
    ("x blocking", lambda line: f"{line.speedup_over_blocking:.2f}"),
    ("TPOT ms", lambda line: f"{line.tpot_ms:.2f}"),
    ("stall ms", lambda line: f"{line.stall_ms:.2f}"),
    ("loads", lambda line: f"{line.loads:.1f}"),
    ("MB", lambda line: f"{line.loaded_mb:.1f}"),
    ("resident", lambda line: f"{line.residency:.3f}"),
)
