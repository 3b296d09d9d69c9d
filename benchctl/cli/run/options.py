"""The options of `benchctl run` that say what to measure, in groups, and the settings that they become."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchctl.cli import completion as completing

if TYPE_CHECKING:
    from benchctl.records.schema import Mode

Command = Callable[..., None]
DTYPES = ["auto", "float32", "bfloat16", "float16", "float64"]


class FiniteRange(click.FloatRange):
    """A range of numbers: nan, which compares with nothing and so passes every bound, and inf are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


_METHODS = (
    click.option(
        "--method",
        "-m",
        "methods",
        multiple=True,
        default=["all"],
        show_default=True,
        metavar="LABEL",
        shell_complete=completing.labels,
        help="Method, perhaps with options: two_model[draft_tokens=5]. May be repeated. `all` is every built-in one "
        "that can run here. The baseline, autoregressive, is always measured.",
    ),
    click.option(
        "--sweep",
        "sweeps",
        multiple=True,
        metavar="LABEL",
        shell_complete=completing.labels,
        help="Every combination of a label's alternatives: two_model[draft_tokens=2|3|4,confidence=0:0.6:0.2]. May be "
        "repeated.",
    ),
)
_PROMPT = (
    click.option(
        "--bench",
        "-b",
        "benches",
        multiple=True,
        default=["koala"],
        show_default=True,
        metavar="NAME|FILE",
        shell_complete=completing.benches,
        help="Suite (see `benchctl list benches`), or a .jsonl file of `prompt` or `turns` records; may be repeated.",
    ),
    click.option(
        "--limit",
        type=click.IntRange(min=1),
        metavar="N",
        help="Only the first N prompts of each bench.  [default: all]",
    ),
    click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="FOLDER",
        help="Folder with the published files of the suites.  [default: those fetched before, or fetched now]",
    ),
    click.option(
        "--source",
        type=click.Choice(["auto", "published", "embedded"]),
        default="auto",
        show_default=True,
        help="published refuses the embedded sample, embedded takes nothing else; auto falls back on it.",
    ),
    click.option(
        "--long-prompts",
        type=click.Choice(["error", "skip", "cut"]),
        default="error",
        show_default=True,
        help="Prompts longer than the target's context: refuse to run, leave them out, or keep their last tokens.",
    ),
    click.option(
        "--context",
        "context_fill",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="TOKENS",
        help="Put so many tokens of a filler text before each prompt, to measure at that length of context.",
    ),
)
_MODEL = (
    click.option(
        "--model",
        "target",
        default="",
        metavar="NAME|FOLDER|ID",
        shell_complete=completing.models,
        help="Target: embedded name, folder or hub id.  [default: the embedded target]",
    ),
    click.option(
        "--draft-model",
        "draft",
        default="",
        metavar="NAME|FOLDER|ID",
        shell_complete=completing.models,
        help="Draft model of the same tokenizer.  [default: the one embedded with the target]",
    ),
    click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        default="auto",
        show_default=True,
        help="Numbers to compute in; auto: float32 on a CPU, bfloat16 on a GPU.",
    ),
    click.option(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="Where to run; auto: a GPU where there is one.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="CPU threads of torch. One is the steadiest: two wait for each other whenever something else runs.",
    ),
    click.option(
        "--batch-size",
        type=click.IntRange(min=1, max=16),
        default=1,
        show_default=True,
        metavar="N",
        help="Decode N prompts together, for methods that can. All figures are then of batches, and compared with the "
        "baseline's on the same batches.",
    ),
)
_ANSWER = (
    click.option(
        "--max-new-tokens",
        type=click.IntRange(min=1),
        default=128,
        show_default=True,
        metavar="N",
        help="Longest answer, in tokens.",
    ),
    click.option(
        "--temperature",
        type=FiniteRange(min=0),
        default=0.0,
        show_default=True,
        help="Of the draws of tokens; 0 is greedy, and the only one with verdicts.",
    ),
    click.option(
        "--top-p",
        type=FiniteRange(min=0, min_open=True, max=1),
        default=1.0,
        show_default=True,
        help="Draw from the smallest set of tokens that has this probability.",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Draw from the K likeliest tokens; 0: from all.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything drawn."),
)
_MEASURING = (
    click.option(
        "--repeats",
        type=click.IntRange(min=1),
        default=2,
        show_default=True,
        help="How often each prompt is measured; even numbers balance drift under --order abba.",
    ),
    click.option(
        "--warm-up",
        type=click.IntRange(min=0),
        default=3,
        show_default=True,
        metavar="ROUNDS",
        help="Most rounds before measuring; they end when two in a row take the same time, within 5%.",
    ),
    click.option(
        "--order",
        type=click.Choice(["abba", "shuffle"]),
        default="abba",
        show_default=True,
        help="How methods take turns on a prompt: backwards every other time, or shuffled by --seed and file name.",
    ),
    click.option(
        "--sessions",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="Run N times, each in a fresh process that writes a file of its own: FILE-1.jsonl, FILE-2.jsonl and so "
        "on for --out FILE.jsonl, or for the name that one run makes. The table takes them together.",
    ),
    click.option(
        "--replay",
        is_flag=True,
        help="Measure each method on the baseline's own text too, forced upon it, so that all decode the same tokens.",
    ),
    click.option(
        "--profile",
        is_flag=True,
        help="Measure each method also with its steps split into draft, verify, commit and host. The headline stays "
        "that of steps that nobody splits.",
    ),
    click.option(
        "--watch/--no-watch",
        default=True,
        show_default=True,
        help="Read the machine's conditions around every generation, and mark rounds that they disturbed, so that no "
        "figure rests on them.",
    ),
)
_FILE = (
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Results file.  [default: results/<suite>-<label>-<time>.jsonl]",
    ),
    click.option("--resume", is_flag=True, help="Go on with --out: measure only what is missing in it."),
)


def asks_for_a_run(command: Command) -> Command:
    """Gives a command these options, and calls it with the RunSettings that they become."""

    @wraps(command)
    def gather(**values: Any) -> None:
        from benchctl.measuring import settings as ask

        values["modes"] = _modes(values.pop("replay"), values.pop("profile"))
        values["methods"] = _with_sweeps(values.pop("methods"), values.pop("sweeps"))
        values["command"] = ("benchctl", *sys.argv[1:])
        for group, kind in (
            ("prompts", ask.PromptSettings),
            ("models", ask.ModelSettings),
            ("answers", ask.AnswerSettings),
            ("repeat", ask.RepeatSettings),
        ):
            values[group] = _take(kind, values)
        command(settings=_take(ask.RunSettings, values), **values)

    for option in reversed((*_METHODS, *_PROMPT, *_MODEL, *_ANSWER, *_MEASURING, *_FILE)):
        gather = option(gather)
    return gather


def _take(kind: type[Any], values: dict[str, Any]) -> Any:
    """What `kind` has fields for."""
    return kind(**{field.name: values.pop(field.name) for field in fields(kind) if field.name in values})


def _modes(replay: bool, profile: bool) -> tuple[Mode, ...]:
    modes: list[Mode] = ["free"]
    modes += ["replay"] if replay else []
    modes += ["profile"] if profile else []
    return tuple(modes)


def _with_sweeps(methods: tuple[str, ...], sweeps: tuple[str, ...]) -> tuple[str, ...]:
    """The labels of the sweeps behind those asked for by name; a sweep alone does not bring in every method."""
    from benchctl.registry import expand_sweep

    source = click.get_current_context().get_parameter_source("methods")
    named = () if sweeps and source is click.core.ParameterSource.DEFAULT else methods
    return (*named, *(label for sweep in sweeps for label in expand_sweep(sweep)))
