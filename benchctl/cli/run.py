"""`benchctl run`: measures methods against the baseline on prompts, into one results file, and ends with a table."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from benchctl.measuring.check import CheckedRun
    from benchctl.measuring.run import RunSummary
    from benchctl.measuring.settings import LongPrompts, RunSettings

DTYPES = ["auto", "float32", "bfloat16", "float16", "float64"]


class FiniteRange(click.FloatRange):
    """A range of numbers: nan, which compares with nothing and so passes every bound, and inf are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


@click.command()
@click.option(
    "--method",
    "-m",
    "methods",
    multiple=True,
    default=["all"],
    show_default=True,
    metavar="LABEL",
    help="Method, perhaps with options: two_model[draft_tokens=5]. May be repeated. `all` is every built-in one. "
    "The baseline, autoregressive, is always measured.",
)
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="LABEL",
    help="Every combination of a label's alternatives: two_model[draft_tokens=2|3|4,confidence=0:0.6:0.2]. May be "
    "repeated.",
)
@click.option(
    "--bench",
    "-b",
    "benches",
    multiple=True,
    default=["koala"],
    show_default=True,
    metavar="NAME|FILE",
    help="Suite (see `benchctl list benches`), or a .jsonl file of `prompt` or `turns` records; may be repeated.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N prompts of each bench.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Folder with the published files of the suites.",
)
@click.option(
    "--source",
    type=click.Choice(["auto", "published", "embedded"]),
    default="auto",
    show_default=True,
    help="published refuses the embedded sample, embedded takes nothing else; auto falls back on it.",
)
@click.option(
    "--long-prompts",
    type=click.Choice(["error", "skip", "cut"]),
    default="error",
    show_default=True,
    help="Prompts longer than the target's context: refuse to run, leave them out, or keep their last tokens.",
)
@click.option(
    "--model",
    default="",
    metavar="NAME|FOLDER|ID",
    help="Target: embedded name, folder or hub id.  [default: the embedded target]",
)
@click.option(
    "--draft-model",
    default="",
    metavar="NAME|FOLDER|ID",
    help="Draft model of the same tokenizer.  [default: the one embedded with the target]",
)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    default="auto",
    show_default=True,
    help="Numbers to compute in; auto: float32 on a CPU, bfloat16 on a GPU.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where to run; auto: a GPU where there is one.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="CPU threads of torch. One is the steadiest: two wait for each other whenever something else runs.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1, max=16),
    default=1,
    show_default=True,
    metavar="N",
    help="Decode N prompts together, for methods that can. All figures are then of batches, and compared with the "
    "baseline's on the same batches.",
)
@click.option(
    "--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True, metavar="N", help="Longest answer."
)
@click.option(
    "--temperature",
    type=FiniteRange(min=0),
    default=0.0,
    show_default=True,
    help="0 is greedy, and the only one with verdicts.",
)
@click.option(
    "--top-p",
    type=FiniteRange(min=0, min_open=True, max=1),
    default=1.0,
    show_default=True,
    help="Draw from the smallest set of tokens that has this probability.",
)
@click.option(
    "--top-k",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Draw from the K likeliest tokens; 0: from all.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything drawn.")
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="How often each prompt is measured. Every other time in the opposite order, so even numbers balance drift.",
)
@click.option(
    "--warm-up",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="ROUNDS",
    help="Most rounds before measuring; they end when two in a row take the same time.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Results file.  [default: results/<suite>-<label>-<time>.jsonl]",
)
@click.option("--resume", is_flag=True, help="Go on with --out: measure only what is missing in it.")
@click.option("--json", "as_json", is_flag=True, help="Print the final table as JSON, and nothing else on stdout.")
def run(
    methods: tuple[str, ...],
    sweeps: tuple[str, ...],
    benches: tuple[str, ...],
    limit: int | None,
    data_dir: Path | None,
    source: str,
    long_prompts: LongPrompts,
    model: str,
    draft_model: str,
    dtype: str,
    device: str,
    threads: int,
    batch_size: int,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int,
    repeats: int,
    warm_up: int,
    out: Path | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Measure methods against the baseline, interleaved on the same prompts, and print the final table.

    Every generation is a line of the results file, written at once: an interrupted run goes on with --resume.

    \b
    Examples:
      benchctl run --limit 10
      benchctl run --method two_model --method 'early_exit[threshold=0.8]' --bench mt-bench
      benchctl run --sweep 'm2r2[exit=2|4,draft_tokens=3|5,width=1|2|4]' --limit 20
      benchctl run --bench my_prompts.jsonl --model my_models/target --draft-model my_models/draft
      benchctl run --method skip_decode --batch-size 8 --limit 32
      benchctl run --method prompt_lookup --out results/first.jsonl --resume
    """
    from benchctl.measuring import settings as ask

    settings = ask.RunSettings(
        methods=_with_sweeps(methods, sweeps),
        prompts=ask.PromptSettings(benches, limit, data_dir, source, long_prompts),
        models=ask.ModelSettings(model, draft_model, dtype, device, threads),
        answers=ask.AnswerSettings(max_new_tokens, temperature, top_p, top_k, seed),
        repeat=ask.RepeatSettings(repeats, warm_up),
        batch_size=batch_size,
        out=out,
        resume=resume,
        command=("benchctl", *sys.argv[1:]),
    )
    checked, summary = _measure(settings)
    _print_table(checked.out, as_json)
    click.echo(f"Results: {checked.out}", err=as_json)
    if summary.measured and summary.failed == summary.measured:
        raise click.exceptions.Exit(1)


def _with_sweeps(methods: tuple[str, ...], sweeps: tuple[str, ...]) -> tuple[str, ...]:
    """The labels of the sweeps behind those asked for by name; a sweep alone does not bring in every method."""
    from benchctl.registry import expand_sweep

    source = click.get_current_context().get_parameter_source("methods")
    named = () if sweeps and source is click.core.ParameterSource.DEFAULT else methods
    return (*named, *(label for sweep in sweeps for label in expand_sweep(sweep)))


def _measure(settings: RunSettings) -> tuple[CheckedRun, RunSummary]:
    from benchctl.cli.run_display import RunDisplay
    from benchctl.measuring.check import check
    from benchctl.measuring.run import run as run_checked

    with RunDisplay() as display:
        checked = check(settings, display.notice)
        display.begin(checked)
        summary = run_checked(checked, display)
        display.end(summary)
    return checked, summary


def _print_table(path: Path, as_json: bool) -> None:
    from benchctl.analysis.report import summary

    click.echo(summary([path], "json" if as_json else "table"))
