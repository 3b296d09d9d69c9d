"""`benchctl judge`: scores the answers in results files, next to the baseline's, into a file of scores for each."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchctl.cli.options import options_from
from benchctl.errors import UserError
from benchctl.measuring.settings import Source
from benchctl.options import changed_options, options_of, setting

if TYPE_CHECKING:
    from benchctl.cli.display import JudgeDisplay
    from benchctl.judging.judge import Judge
    from benchctl.judging.scoring import JudgeSettings, Judging
    from benchctl.measuring.prompts.files import Prompt
    from benchctl.measuring.prompts.sources import Notify
    from benchctl.measuring.prompts.suites import Suite
    from benchctl.records.schema import SuiteInfo
    from benchctl.records.writer import RunFile
    from benchctl.registry import Label

UNFINISHED = 1
KEY_ENV = "OPENAI_API_KEY"
CACHE = "judge-cache"
_OF_PAID = ("base_url", "key_env", "max_usd", "price_in", "price_out")
_OF_ASKED = ("repeats", "tries", "concurrency", "cache")


@dataclass(frozen=True)
class JudgeOptions:
    """The options of `benchctl judge`."""

    judge: str | None = setting(
        None,
        "Judge, with or without options: gpt[protocol=single] (see `benchctl list judges`).  [default: gpt if a key "
        "or --model is given, else likelihood]",
        metavar="LABEL",
    )
    model: str = setting("", "Model of the judge, the same as its option `model`.", metavar="NAME")
    base_url: str = setting(
        "",
        "Server with OpenAI's interface for gpt, such as http://localhost:8000/v1.  [default: OpenAI's own]",
        metavar="URL",
    )
    key_env: str = setting(
        KEY_ENV, "Environment variable with the key of gpt. The key is never written.", metavar="NAME"
    )
    baseline_label: str = setting(
        "", "Label whose answers the others are compared with.  [default: the run's baseline]", metavar="LABEL"
    )
    repeats: int = setting(
        1,
        "Ask each question K times; figures use the mean of the scores. At temperature 0 most replies are the same.",
        metavar="K",
        least=1,
    )
    tries: int = setting(
        3,
        "Most requests per question until a reply can be read. Unreadable replies are counted, never scored. A "
        "higher number than last time asks again.",
        least=1,
    )
    max_usd: float | None = setting(None, "Send no request that could raise the cost above X.", metavar="X", least=0)
    price_in: float | None = setting(
        None, "Price of a million prompt tokens, instead of the one in the price table.", metavar="USD", least=0
    )
    price_out: float | None = setting(
        None, "Price of a million reply tokens, instead of the one in the price table.", metavar="USD", least=0
    )
    concurrency: int = setting(4, "Most requests at the same time.", metavar="N", least=1, most=64)
    cache: Path | None = setting(
        None,
        "Folder that keeps every reply. With it, judging can be repeated offline and free.  [default: judge-cache next "
        "to the first results file]",
        metavar="FOLDER",
    )
    dry_run: bool = setting(False, "Only print the number of questions and their cost; ask nothing.")
    source: Source = setting("auto", "Where to take prompts from; auto: from the same place as the run.")
    as_json: bool = setting(False, "Print JSON.", flags=("--json",))


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@options_from(JudgeOptions, "options")
@click.pass_context
def judge(context: click.Context, options: JudgeOptions, files: tuple[str, ...]) -> None:
    """Let a judge score the answers in results files against the baseline's, in both orders.

    Scores of first.jsonl go into first.scores.jsonl next to it. Answers with scores are not judged again, so the same
    command continues an interrupted judging. Every reply is kept. Equal answers tie without a question.

    Exit code: 0; 1 if judgements are left undone (--max-usd, a question too long for the judge, no readable reply); 2
    for wrong usage; 3 for an invalid data file.

    \b
    Examples:
      benchctl judge results/first.jsonl
      benchctl judge results/*.jsonl --judge gpt --model gpt-4o-mini --dry-run
      benchctl judge results/*.jsonl --judge gpt --model gpt-4o-mini --max-usd 2
      benchctl judge results/first.jsonl --judge 'gpt[protocol=single]' --model gpt-4o
      benchctl judge results/first.jsonl --judge gpt --model my-model --base-url http://localhost:8000/v1
      benchctl judge results/first.jsonl --judge 'local[model=my_models/judge]'
    """
    from benchctl.cli.display import JudgeDisplay, describe_summary
    from benchctl.cli.options import read_files
    from benchctl.records.scores import scores_path

    results = read_files(files)
    if options.dry_run:
        _print_forecast(results, options)
        return
    with JudgeDisplay() as display:
        judging, settings = _judging(results, options, display)
        summary = judging.run()
    click.echo(describe_summary(summary, settings.label), err=True)
    for file in results:
        click.echo(f"Scores: {scores_path(file.path)}", err=options.as_json)
    if options.as_json:
        click.echo(json.dumps(asdict(summary), indent=2))
    context.exit(UNFINISHED if summary.unfinished else 0)


def _print_forecast(files: Sequence[RunFile], options: JudgeOptions) -> None:
    from benchctl.cli.display import JudgeDisplay, describe_forecast
    from benchctl.judging.budget import price_table

    judging, settings = _judging(files, options, JudgeDisplay())
    forecast = judging.forecast()
    if options.as_json:
        click.echo(json.dumps(asdict(forecast), indent=2))
        return
    by_hand = options.price_in is not None or options.price_out is not None
    source_of_price = "at the prices given" if by_hand else f"at the prices noted on {price_table().date}"
    click.echo(describe_forecast(forecast, settings.label, source_of_price if settings.judge.paid else ""))


def _judging(files: Sequence[RunFile], options: JudgeOptions, display: JudgeDisplay) -> tuple[Judging, JudgeSettings]:
    from benchctl.judging.scoring import Judging, World
    from benchctl.measuring.clock import utc_now

    prompts: dict[tuple[str, str], Prompt] = {}
    loaded: set[tuple[str, str]] = set()
    for file in files:
        for info in file.run.suites:
            if (info.name, info.sha256) not in loaded:
                loaded.add((info.name, info.sha256))
                suite = _suite(file, info, options.source, display.notice)
                prompts |= {(info.name, prompt.id): prompt for prompt in suite.prompts}
    settings = settings_of(options, files)
    world = World(now=lambda: utc_now().isoformat(timespec="seconds"), notify=display.notice, progress=display)
    return Judging(files, prompts, settings, world), settings


def _suite(file: RunFile, info: SuiteInfo, source: str, notify: Notify) -> Suite:
    """The prompts of a file, identified by their hash: so many as --limit keeps or, in earlier versions, kept, or
    those that were not too long."""
    from benchctl.measuring.prompts.fit import without_remark
    from benchctl.measuring.prompts.suites import evenly, load_suite, suite_names

    # The source that was measured; "file" is a suite in BENCHCTL_DATA that differs from the published one.
    asked = info.source if source == "auto" and info.source != "file" else source
    name = info.name if info.name.partition("/")[0] in suite_names() else without_remark(info.origin)
    suite = load_suite(name, source=asked, limit=None, notify=notify)
    if file.run.imported:
        return suite
    answered = {row.prompt_id for row in file.rows if row.suite == info.name}
    long_left_out = tuple(each for each in suite.prompts if each.id in answered)
    for prompts in (evenly(suite.prompts, info.prompts), suite.prompts[: info.prompts], long_left_out):
        if (part := replace(suite, prompts=prompts)).prompts_sha256 == info.sha256:
            return part
    raise UserError(
        "other_prompts",
        f"{file.path}: the prompts of {info.name} at {suite.origin} differ from those of the run "
        f"({info.prompts} from {info.origin}), so answers cannot be judged. Set BENCHCTL_DATA, or put the file back. "
        "If the run skipped long prompts and is unfinished, finish it with --resume first.",
    )


def settings_of(options: JudgeOptions, files: Sequence[RunFile]) -> JudgeSettings:
    """The settings of a judging, its judge prepared. Raises UserError for what a user can fix."""
    from benchctl.judging.budget import price_of
    from benchctl.judging.judge import Place
    from benchctl.judging.scoring import JudgeSettings

    label, judge = _build_judge(options)
    judge.prepare(Place(options.base_url, options.key_env, tuple(file.run for file in files)))
    # Its name in scores and in the cache has the options that change its replies, and no paths of folders.
    said = tuple(option for option in changed_options(judge) if option[0] not in judge.unsaid)
    return JudgeSettings(
        label=replace(label, options=said).without_places.text,
        judge=judge,
        cache=options.cache or files[0].path.parent / CACHE,
        baseline=options.baseline_label,
        samples=options.repeats,
        price=price_of(judge.model, options.price_in, options.price_out, at_usual_address=not options.base_url),
        max_usd=options.max_usd,
        concurrency=options.concurrency,
        tries=options.tries,
    )


def _build_judge(options: JudgeOptions) -> tuple[Label, Judge]:
    """The judge, not prepared yet. Raises UserError for an option that a judge of its family does not use."""
    from benchctl.judging.judge import AskedJudge
    from benchctl.registry import build_judge

    label = judge_label(options)
    judge = build_judge(label)
    unused = (*(() if isinstance(judge, AskedJudge) else _OF_ASKED), *(() if judge.paid else _OF_PAID))
    for option in unused:
        if getattr(options, option) != getattr(JudgeOptions, option):
            raise UserError(
                "unused_judge_option", f"{label.name} does not use --{option.replace('_', '-')}. Leave it out."
            )
    return label, judge


def judge_label(options: JudgeOptions) -> Label:
    """The judge asked for, with --model as an option; default: gpt if a key or a model is given, else likelihood."""
    from benchctl.registry import JUDGES, Label, class_of, parse_label

    named = options.model or options.base_url or options.key_env != KEY_ENV
    paid = bool(named or os.environ.get(options.key_env))
    label = parse_label(options.judge or ("gpt" if paid else "likelihood"))
    if not options.model:
        return label
    if any(name == "model" for name, _ in label.options):
        raise UserError("repeated_option", f"--model and '{label.text}' both name a model. Name it once.")
    if all(option.name != "model" for option in options_of(class_of(JUDGES, label.name))):
        raise UserError("unused_judge_option", f"{label.name} does not use --model. Leave it out.")
    return Label(label.name, (*label.options, ("model", options.model)))
