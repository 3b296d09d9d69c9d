"""`benchctl doctor`: how well this machine can measure, the smallest effect it can detect, and checks of methods."""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchctl.cli import completion as completing

if TYPE_CHECKING:
    from benchctl.analysis.stats.aa import SelfComparison
    from benchctl.conformance.findings import Finding
    from benchctl.measuring.machine.advice import Examination
    from benchctl.measuring.machine.gpu import GpuMoment

_WIDTH, _MARGIN = 80, 18
_PROMPTS, _REPEATS, _NEW_TOKENS = 10, 8, 32  # of the small run
_RIGHT, _TOO_OFTEN = 0.05, 0.10  # false-positive rates


@click.command()
@click.argument("files", nargs=-1, metavar="[FILES]...", type=click.Path(path_type=Path))
@click.option(
    "--method",
    "-m",
    "methods",
    multiple=True,
    metavar="LABEL",
    shell_complete=completing.labels,
    help="Hold a method to what it claims instead, built in or of another distribution, perhaps with options: "
    "two_model[draft_tokens=5]. May be repeated. `all` is every built-in one.",
)
@click.option(
    "--aa",
    is_flag=True,
    help="Compare the baseline with itself instead: in FILES, or in a small run.",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads of torch.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What to examine; auto: a GPU where there is one.",
)
@click.option(
    "--model",
    default="",
    metavar="NAME|FOLDER|ID",
    shell_complete=completing.models,
    help="Target of the small run.  [default: embedded]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Results file of the small run.  [default: results/aa-<time>.jsonl]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def doctor(
    files: tuple[Path, ...],
    methods: tuple[str, ...],
    aa: bool,
    threads: int,
    device: str,
    model: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Examine this machine: its facts, a sentinel kernel, memory bandwidth and FLOP rate, and what to improve.

    With --aa, compare the baseline with itself: the false-positive rate (5% is expected), and the smallest effect that
    is detected with 80% power.

    With --method, hold methods to what they claim: answers, counts, limits, stop tokens, isolation, cache,
    determinism. On a CPU in under a minute per method, on tiny random targets in float64, a Llama-like one and a
    mixture of experts; it needs no model and no network.

    Exit code: 0, 1 where a check of --method fails, 2 where it cannot be done, 3 for FILES that hold what cannot be
    true.

    \b
    Examples:
      benchctl doctor --threads 2
      benchctl doctor --aa --out results/aa.jsonl
      benchctl doctor --aa results/first.jsonl
      benchctl doctor --method two_model --method m2r2_dynamic
      benchctl doctor --method all --json
    """
    if methods and (aa or files):
        raise click.UsageError("--method examines methods, --aa and FILES the baseline's noise: give one of them.")
    if (files or model or out) and not aa:
        raise click.UsageError("FILES, --model and --out are for --aa: add it, or leave them out.")
    if files and (model or out):
        raise click.UsageError("--model and --out are for the small run: leave them out, or the FILES.")
    if methods:
        examine_methods(methods, as_json)
    elif aa:
        files = files or (_measure_baseline(model, device, threads, out),)
        compare_with_itself(files, as_json)
    else:
        show_machine(device, threads, as_json)


def show_machine(device: str, threads: int, as_json: bool) -> None:
    """Examine the machine and print what was found. Raises UserError for a GPU that is not there."""
    from benchctl.measuring.check import choose_device
    from benchctl.measuring.machine.advice import examine_machine
    from benchctl.measuring.settings import ModelSettings

    chosen, _ = choose_device(ModelSettings(device=device))
    examination = examine_machine(chosen, threads)
    if as_json:
        click.echo(json.dumps(asdict(examination), indent=2))
        return
    for name, text in _facts(examination):
        click.echo(_labelled(name, text))
    for advice in examination.advice:
        click.echo(textwrap.fill(advice[0].upper() + advice[1:], _WIDTH, initial_indent="* ", subsequent_indent="  "))
    if not examination.advice:
        click.echo("No problem was found.")


def _facts(examination: Examination) -> Iterator[tuple[str, str]]:
    facts, seen = examination.facts, examination.seen
    yield "cpu", f"{facts['cpu']}, {facts['cores']} usable"
    yield "memory", f"{int(str(facts['memory_bytes'])) / 2**30:.1f} GiB"
    yield "system", str(facts["os"])
    if facts["gpu"]:
        yield "gpu", f"{facts['gpu']}, driver {facts['gpu_driver']}"
    if examination.gpu is not None:
        yield "gpu now", _gpu(examination.gpu)
    threads = "1 thread" if examination.threads == 1 else f"{examination.threads} threads"
    yield "measured on", threads if examination.device == "cpu" else examination.device
    yield (
        "sentinel",
        f"{examination.sentinel_s * 1e6:.1f} us a product, the slowest twentieth {seen.sentinel_spread:.0%} longer",
    )
    yield "memory bandwidth", f"{examination.memory_bandwidth_mb_s / 1e3:.1f} GB/s"
    yield "FLOP rate", f"{examination.flops_per_s / 1e9:,.0f} GFLOP/s ({examination.flop_dtype})"
    if seen.foreign_cores is not None:
        yield "others", f"used {seen.foreign_cores:.1f} cores"
    if seen.waited_share is not None:
        yield "waited for a core", f"{seen.waited_share:.0%} of the time"


def _gpu(gpu: GpuMoment) -> str:
    shown = [
        (gpu.sm_clock_mhz, "{:.0f} MHz"),
        (gpu.memory_clock_mhz, "memory {:.0f} MHz"),
        (gpu.power_w, "{:.0f} W"),
        (gpu.temperature_c, "{:.0f} °C"),
        (gpu.foreign_processes, "{:.0f} other processes"),
    ]
    return ", ".join(pattern.format(value) for value, pattern in shown if value is not None)


def _labelled(name: str, text: str) -> str:
    head = f"{name:<{_MARGIN}}"
    return textwrap.fill(text, _WIDTH, initial_indent=head, subsequent_indent=" " * _MARGIN, break_on_hyphens=False)


def compare_with_itself(files: Sequence[Path], as_json: bool) -> None:
    """Compare the baseline with itself; print the result. Raises UserError for files with too few measurements."""
    from benchctl.analysis.stats import aa
    from benchctl.cli.inputs import read_files

    comparison = aa.compare_with_itself(read_files(list(map(str, files))))
    click.echo(json.dumps(asdict(comparison), indent=2) if as_json else _describe(comparison))


def _measure_baseline(model: str, device: str, threads: int, out: Path | None) -> Path:
    """The results file of a small run: ten embedded prompts, eight times each.

    Raises UserError for an `out` that exists or cannot be written.
    """
    from benchctl.cli.display import RunDisplay
    from benchctl.measuring import settings as ask
    from benchctl.measuring.check import check
    from benchctl.measuring.clock import utc_now
    from benchctl.measuring.run import run

    out = out or Path("results") / f"aa-{utc_now():%Y%m%dT%H%M%S}.jsonl"
    settings = ask.RunSettings(
        methods=("autoregressive",),
        prompts=ask.PromptSettings(limit=_PROMPTS, source="embedded"),
        models=ask.ModelSettings(model, device=device, threads=threads),
        answers=ask.AnswerSettings(max_new_tokens=_NEW_TOKENS),
        repeat=ask.RepeatSettings(repeats=_REPEATS),
        out=out,
        command=("benchctl", *sys.argv[1:]),
    )
    with RunDisplay() as display:
        checked = check(settings, display.notice)
        display.begin(checked)
        display.end(run(checked, display))
    return out


def _describe(comparison: SelfComparison) -> str:
    lines = [
        f"{comparison.baseline} against itself: {comparison.prompts} prompts, {comparison.repeats} repeats, sessions: "
        f"{comparison.sessions}; {comparison.splits} splits into equal arms.",
        f"  called different           {comparison.false_positive_rate:.1%} of them ({_RIGHT:.0%} is right)",
        f"  least detectable effect    {comparison.minimum_detectable_effect:.2%}",
    ]
    if comparison.false_positive_rate > _TOO_OFTEN:
        lines.append(
            "Intervals are too narrow here: measure more prompts, and several --sessions, before you believe one."
        )
    return "\n".join(lines)


def examine_methods(methods: Sequence[str], as_json: bool) -> None:
    """Check methods on random targets and print the findings. Exits with 1 where a check fails.

    Raises UserError for labels that the registry refuses, before anything is examined.
    """
    from benchctl.conformance.checks import WHAT, examine
    from benchctl.registry import build, split_labels

    labels = split_labels(methods)
    for label in labels:
        build(label)  # an impossible label is refused before the first minute is spent
    print_findings(((label, examine(label)) for label in labels), WHAT, as_json)


def print_findings(methods: Iterable[tuple[str, Iterable[Finding]]], what: Mapping[str, str], as_json: bool) -> None:
    """Print each label and a line for each of its findings as it is made, then their sum; or all as JSON.

    `what` says of each check what passes it. Exits with 1 where a check fails.
    """
    all_findings: list[Finding] = []
    for label, findings in methods:
        if not as_json:
            click.echo(label)
        for finding in findings:
            all_findings.append(finding)
            if not as_json:
                click.echo(_finding_line(finding, what))
    click.echo(json.dumps([asdict(finding) for finding in all_findings], indent=2) if as_json else _sum(all_findings))
    if any(finding.verdict == "fail" for finding in all_findings):
        raise click.exceptions.Exit(1)


def _finding_line(finding: Finding, what: Mapping[str, str]) -> str:
    """Verdict, check and target; what is wrong and what to do about it, folded where it is long."""
    head = f"  {finding.verdict}  {finding.check:<11}  {finding.target:<7}  "
    text = what[finding.check] + (f": {finding.detail}" if finding.detail else "")
    if finding.verdict == "skip":
        text = finding.detail
    if finding.verdict == "fail":
        text = f"expected {finding.expected}; seen: {finding.seen}. To do: {finding.action}."
    return textwrap.fill(text, 80, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)


def _sum(all_findings: Sequence[Finding]) -> str:
    counts = Counter(finding.verdict for finding in all_findings)
    return f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped."
