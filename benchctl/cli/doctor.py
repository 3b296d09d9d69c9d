"""`benchctl doctor`: how well this machine can measure, the smallest effect it can detect, and checks of methods."""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchctl.cli.options import given, options_from
from benchctl.measuring.settings import BENCH_FLAGS, BENCHES_HELP, DRAFT_HELP, Device
from benchctl.options import setting

if TYPE_CHECKING:
    from benchctl.conformance.findings import Finding
    from benchctl.measuring.machine.advice import Examination

_WIDTH, _MARGIN = 80, 18
_PROMPTS, _REPEATS, _NEW_TOKENS = 10, 8, 32  # of the small run
_RIGHT, _TOO_OFTEN = 0.05, 0.10  # false-positive rates


@dataclass(frozen=True)
class _OwnModel:
    """The options of the checks on a user's own model."""

    draft_model: str = setting("", DRAFT_HELP, metavar="NAME|FOLDER|ID")
    suites: tuple[str, ...] = setting(("koala",), BENCHES_HELP, flags=BENCH_FLAGS, metavar="NAME|FILE")
    limit: int = setting(
        3, "N prompts of each suite, of each category as many; of several turns the first.", metavar="N", least=1
    )
    max_new_tokens: int = setting(48, "Longest answer, in tokens.", metavar="N", least=1)
    draws: int = setting(
        10_000,
        "Short answers to draw for the test of frequencies; 0 leaves it out. 500, or one in 20, are decoded; the "
        "others follow from the numbers drawn. More find smaller deviations.",
        metavar="N",
        least=0,
    )


@dataclass(frozen=True)
class _Options:
    """The options of `benchctl doctor`."""

    methods: tuple[str, ...] = setting(
        (),
        "Check what this method claims, instead of the machine: two_model[draft_tokens=5]. On tiny random models, or "
        "with --model on that model. May be repeated. `all`: every built-in method.",
        flags=("--method", "-m"),
        metavar="LABEL",
    )
    aa: bool = setting(False, "Compare the baseline with itself: in FILES, or in a small run.")
    model: str = setting(
        "",
        "Target of --method, in float64, or of the small run of --aa.",
        metavar="NAME|FOLDER|ID",
    )
    own: _OwnModel = field(default_factory=_OwnModel)
    threads: int = setting(1, "CPU threads of torch.", least=1)
    device: Device = setting("auto", "Where to run; auto: a GPU if there is one.")
    out: Path | None = setting(
        None, "Results file of the small run.  [default: results/aa-<time>.jsonl]", metavar="FILE"
    )
    as_json: bool = setting(False, "Print JSON.", flags=("--json",))


@click.command()
@click.argument("files", nargs=-1, metavar="[FILES]...", type=click.Path(path_type=Path))
@options_from(_Options, "options")
@click.pass_context
def doctor(context: click.Context, options: _Options, files: tuple[Path, ...]) -> None:
    """Check this machine, or what methods claim.

    Without options: the machine's facts, speed and memory bandwidth, and what to improve.

    With --aa: the baseline against itself, with the false-positive rate, which should be 5%, and the smallest effect
    that is detected with 80% power.

    With --method: the checks of a method on tiny random models. Plug-ins need to pass them.

    With --method and --model: the method on that model, in float64, which takes eight bytes per parameter. Greedy
    answers must equal the baseline's. Each step must follow from the text before it. Short sampled answers must have
    the target's distribution, exactly and in the frequencies of real draws.

    Exit code: 0; 1 if a check fails; 2 for wrong usage; 3 for an invalid data file.

    \b
    Examples:
      benchctl doctor
      benchctl doctor --threads 2 --device cpu
      benchctl doctor --aa results/first.jsonl
      benchctl doctor --method two_model --method m2r2_dynamic
      benchctl doctor --method two_model --model my_models/target --draft-model my_models/draft --limit 5
    """
    _check_usage(context, options, files)
    if options.methods:
        findings, checks = _on_own_model(options) if options.model else _on_random_models(options.methods)
        print_findings(findings, checks, options.as_json)
    elif options.aa:
        _compare_with_itself(files or (_measure_baseline(options),), options.as_json)
    else:
        _examine_machine(options)


def _check_usage(context: click.Context, options: _Options, files: Sequence[Path]) -> None:
    """Refuses options that would have no effect."""
    if options.methods and (options.aa or files or options.out):
        raise click.UsageError("--method checks methods; --aa, FILES and --out check the machine. Use one of the two.")
    if (files or options.out) and not options.aa:
        raise click.UsageError("FILES and --out are for --aa. Add it, or leave them out.")
    if options.model and not (options.methods or options.aa):
        raise click.UsageError("--model is for --method or --aa. Add one of them, or leave it out.")
    if files and (options.model or options.out):
        raise click.UsageError("--model and --out are for the small run. Leave them out, or the FILES.")
    if options.methods and not options.model:
        for each in given(context):
            if each.name in ("threads", "device"):
                raise click.UsageError(
                    f"{each.opts[0]} is for the machine, or for --method with --model. Leave it out."
                )
    own = {each.name for each in fields(_OwnModel)}
    flags = [each.opts[0] for each in given(context) if each.name in own]
    if flags and not (options.methods and options.model):
        raise click.UsageError(f"{flags[0]} is for --method with --model. Add both, or leave it out.")


Findings = Iterable[tuple[str, Iterable["Finding"]]]
Checks = Mapping[str, Callable[..., object]]


def _on_random_models(methods: Sequence[str]) -> tuple[Findings, Checks]:
    """The findings on each method, and the checks by name."""
    from benchctl.conformance.checks import CHECKS, examine
    from benchctl.registry import build, canonical_label, parse_label, split_labels

    # An impossible label is refused before the first minute is spent.
    labels = {label: canonical_label(build(label), parse_label(label)) for label in split_labels(methods)}
    return ((label, _noted(own, examine(label))) for label, own in labels.items()), CHECKS


def _on_own_model(options: _Options) -> tuple[Findings, Checks]:
    from benchctl.conformance.own_model import CHECKS, Case, verify
    from benchctl.decoding.method import Method
    from benchctl.measuring.run import prepare_own_model
    from benchctl.measuring.settings import ModelSettings, PromptSettings

    asked = options.own
    own = prepare_own_model(
        options.methods,
        PromptSettings(asked.suites, asked.limit),
        ModelSettings(options.model, asked.draft_model, "float64", options.device, options.threads),
        lambda notice: click.echo(f"Note: {notice}", err=True),
    )

    def findings() -> Iterator[tuple[str, Iterator[Finding]]]:
        """The findings on each method, except those that `all` includes and that cannot run here."""
        for choice in own.choices:
            if choice.unsupported:
                click.echo(f"Note: {choice.label} cannot run here: {choice.unsupported}.", err=True)
                continue
            assert isinstance(choice.method, Method)
            new_tokens, draws = asked.max_new_tokens, asked.draws
            case = Case(choice.label, choice.method, own.target, own.drafts(choice), own.prompts, new_tokens, draws)
            yield choice.label, verify(case, Path(own.name).name)

    return findings(), CHECKS


def _noted(label: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings on a label in its one spelling; whether all passed is kept for `benchctl run`."""
    from benchctl.bundled import cache_folder
    from benchctl.registry import SHIPPED, note_examined, parse_label

    name, passed = parse_label(label).name, True
    for finding in findings:
        passed &= finding.verdict != "fail"
        yield finding
    if name not in SHIPPED:
        try:
            note_examined(name, label, passed)
        except OSError as error:
            click.echo(
                f"Note: {cache_folder()} cannot be written ({error.strerror}), so `benchctl run` will not know that "
                f"{name} was examined.",
                err=True,
            )


def _examine_machine(options: _Options) -> None:
    from benchctl.measuring.check import choose_device
    from benchctl.measuring.machine.advice import examine_machine
    from benchctl.measuring.settings import ModelSettings

    chosen, _ = choose_device(ModelSettings(device=options.device))
    examination = examine_machine(chosen, options.threads)
    if options.as_json:
        click.echo(json.dumps(asdict(examination), indent=2))
        return
    for name, text in _facts(examination):
        head, margin = f"{name:<{_MARGIN}}", " " * _MARGIN
        wrapped = textwrap.fill(text, _WIDTH, initial_indent=head, subsequent_indent=margin, break_on_hyphens=False)
        click.echo(wrapped)
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
    if (gpu := examination.gpu) is not None:
        shown = [
            (gpu.sm_clock_mhz, "{:.0f} MHz"),
            (gpu.memory_clock_mhz, "memory {:.0f} MHz"),
            (gpu.power_w, "{:.0f} W"),
            (gpu.temperature_c, "{:.0f} °C"),
            (gpu.foreign_processes, "{:.0f} other processes"),
        ]
        yield "gpu now", ", ".join(pattern.format(value) for value, pattern in shown if value is not None)
    threads = "1 thread" if examination.threads == 1 else f"{examination.threads} threads"
    yield "measured on", threads if examination.device == "cpu" else examination.device
    yield (
        "matrix product",
        f"{examination.sentinel_s * 1e6:.1f} us; the slowest 5% took {seen.sentinel_spread:.0%} longer",
    )
    yield "memory bandwidth", f"{examination.memory_bandwidth_mb_s / 1e3:.1f} GB/s"
    if seen.foreign_cores is not None:
        yield "other processes", f"used {seen.foreign_cores:.1f} cores"
    if seen.waited_share is not None:
        yield "waited for a core", f"{seen.waited_share:.0%} of the time"


def _measure_baseline(options: _Options) -> Path:
    """The results file of a small run: ten embedded prompts, eight times each."""
    from benchctl.cli.run import measure
    from benchctl.measuring import settings as ask
    from benchctl.measuring.clock import utc_now

    out = options.out or Path("results") / f"aa-{utc_now():%Y%m%dT%H%M%S}.jsonl"
    settings = ask.RunSettings(
        methods=("autoregressive",),
        prompts=ask.PromptSettings(limit=_PROMPTS, source="embedded"),
        models=ask.ModelSettings(options.model, device=options.device, threads=options.threads),
        answers=ask.AnswerSettings(max_new_tokens=_NEW_TOKENS),
        repeat=ask.RepeatSettings(repeats=_REPEATS),
        out=out,
        command=("benchctl", *sys.argv[1:]),
    )
    measure(settings)
    return out


def _compare_with_itself(files: Sequence[Path], as_json: bool) -> None:
    from benchctl.analysis.comparison import check_alike
    from benchctl.analysis.stats import aa
    from benchctl.cli.options import read_files

    measured = read_files(list(map(str, files)))
    check_alike(measured)
    comparison = aa.compare_with_itself(measured)
    if as_json:
        click.echo(json.dumps(asdict(comparison), indent=2))
        return
    half = comparison.repeats // 2
    click.echo(
        f"{comparison.baseline} against itself: {comparison.prompts} prompts, {comparison.repeats} repeats, sessions: "
        f"{comparison.sessions}; {comparison.splits} splits into equal arms.\n"
        f"  false-positive rate          {comparison.false_positive_rate:.1%} (expected: {_RIGHT:.0%})\n"
        f"  minimum detectable effect    {comparison.minimum_detectable_effect:.2%} "
        f"(with {half} repeat{'s' * (half != 1)} of each prompt)"
    )
    if comparison.false_positive_rate > _TOO_OFTEN:
        click.echo("Intervals are too narrow on this machine. Measure more prompts, and use --sessions 3.")


def print_findings(methods: Findings, checks: Checks, as_json: bool) -> None:
    """Print each label, a line for each of its findings as it is made, and the counts; or all as JSON.

    Exits with 1 if a check fails.
    """
    all_findings: list[Finding] = []
    for label, findings in methods:
        if not as_json:
            click.echo(label)
        for finding in findings:
            all_findings.append(finding)
            if not as_json:
                _print_finding(finding, checks[finding.check])
    counts = Counter(finding.verdict for finding in all_findings)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in all_findings], indent=2))
    else:
        click.echo(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped.")
    if counts["fail"]:
        raise click.exceptions.Exit(1)


def _print_finding(finding: Finding, check: Callable[..., object]) -> None:
    """Verdict, check and target; then what the check shows, or for a failure what is wrong and what to do."""
    head = f"  {finding.verdict}  {finding.check:<11}  {finding.target:<7}  "
    text = (check.__doc__ or "").partition("\n")[0].rstrip(".") + (f": {finding.detail}" if finding.detail else "")
    if finding.verdict == "skip":
        text = finding.detail
    if finding.verdict == "fail":
        text = f"expected {finding.expected}; found {finding.seen}. To do: {finding.action}."
    indent = " " * len(head)
    click.echo(textwrap.fill(text, _WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False))
