"""From the options of a judging to the judge, its prompts and its settings; nothing is asked here."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchctl.cli.judge.options import KEY_ENV, JudgeOptions
from benchctl.errors import UserError

if TYPE_CHECKING:
    from benchctl.judging.items import Prompts
    from benchctl.judging.judge import Judge
    from benchctl.judging.judge_settings import JudgeSettings
    from benchctl.measuring.prompts.files import Prompt
    from benchctl.measuring.prompts.sources import Notify
    from benchctl.measuring.prompts.suites import Suite
    from benchctl.measuring.settings import RunSettings
    from benchctl.records.schema import SuiteInfo
    from benchctl.records.writer import RunFile
    from benchctl.registry import Label

CACHE = "judge-cache"
_OF_PAID = ("base_url", "key_env", "max_usd", "price_in", "price_out")
_OF_ASKED = ("repeats", "tries", "concurrency", "cache")
_REMARK = re.compile(
    r", \d+ longer than the context (?:left out|cut)$"
)  # which measuring.prompts.fit puts behind an origin


def settings_of(options: JudgeOptions, files: Sequence[RunFile]) -> JudgeSettings:
    """The settings of a judging, its judge prepared. Raises UserError for what a user can put right."""
    from benchctl.judging.budget import price_of
    from benchctl.judging.items import JudgeName
    from benchctl.judging.judge import Place
    from benchctl.judging.judge_settings import JudgeSettings
    from benchctl.registry import build_judge

    label = judge_label(options)
    judge = build_judge(label)
    _check_used(options, label.name, judge)
    judge.prepare(Place(options.base_url, options.key_env, tuple(file.run for file in files)))
    price = price_of(judge.model, options.price_in, options.price_out, at_usual_address=not options.base_url)
    return JudgeSettings(
        judge=JudgeName(_name(judge, label), judge),
        cache=options.cache or files[0].path.parent / CACHE,
        baseline=options.baseline_label,
        samples=options.repeats,
        price=price,
        max_usd=options.max_usd,
        concurrency=options.concurrency,
        tries=options.tries,
    )


def check_judge(options: JudgeOptions, settings: RunSettings) -> None:
    """Check a judge, and the run that it is to judge, before the run is measured. Raises UserError for what a user can
    put right."""
    from benchctl.judging.budget import check_budget, price_of
    from benchctl.judging.judge import AskedJudge, Place
    from benchctl.registry import build_judge

    label = judge_label(options)
    judge = build_judge(label)
    _check_used(options, label.name, judge)
    _check_answers(judge, settings)
    if not isinstance(judge, AskedJudge):
        return  # what else it needs is seen when the answers are there
    judge.prepare(Place(options.base_url, options.key_env, ()))
    if not judge.paid:
        return
    price = price_of(judge.model, options.price_in, options.price_out, at_usual_address=not options.base_url)
    check_budget(judge, price, options.max_usd)
    judge.reach()


def _check_answers(judge: Judge, settings: RunSettings) -> None:
    """Raises UserError where the run will have no answers that this judge could judge."""
    from benchctl.measuring.check import load_suites
    from benchctl.registry import BASELINE, build, canonical_label, parse_label, split_labels

    labels = {canonical_label(build(text), parse_label(text)) for text in split_labels(settings.labels)}
    if labels <= {BASELINE}:
        raise UserError(
            f"judges set answers beside those of {BASELINE}, and nothing else is to be measured: add a --method, or "
            "leave --judge out."
        )
    if judge.protocol == "likelihood" and settings.prompts.context_fill:
        raise UserError("likelihood cannot judge what is measured with --context: take another --judge.")
    if judge.protocol == "exact":
        suites = load_suites(settings.prompts, lambda notice: None)
        if not any(any(prompt.exact_answers) for suite in suites for prompt in suite.prompts):
            raise UserError(
                f"no prompt of {', '.join(suite.name for suite in suites)} has an exact answer, so exact would have "
                "nothing to grade by: measure the suite tasks or a file of prompts with exact answers, or take another "
                "--judge."
            )


def _check_used(options: JudgeOptions, name: str, judge: Judge) -> None:
    """Raises UserError for an option that a judge of this family would pass over."""
    from benchctl.judging.budget import is_paid
    from benchctl.judging.judge import AskedJudge

    unused = (*(() if isinstance(judge, AskedJudge) else _OF_ASKED), *(() if is_paid(judge) else _OF_PAID))
    for option in unused:
        if getattr(options, option) != getattr(JudgeOptions, option):
            raise UserError(f"{name} takes no --{option.replace('_', '-')}: leave it out.")


def beside_run(options: JudgeOptions, target: str) -> JudgeOptions:
    """The same for judging a run of this `target`: where that is a folder, its results do not say where it lies."""
    label = judge_label(options)
    ask = label.name == "likelihood" and all(name != "model" for name, _ in label.options) and Path(target).is_dir()
    return replace(options, model=target) if target and ask else options


def judge_label(options: JudgeOptions) -> Label:
    """The judge asked for, --model among its options: gpt where a key is set or named or a model is, else
    likelihood."""
    from benchctl.registry import Label, judge_options, parse_label

    named = options.model or options.base_url or options.key_env != KEY_ENV
    paid = bool(named or os.environ.get(options.key_env))
    label = parse_label(options.judge or ("gpt" if paid else "likelihood"))
    if not options.model:
        return label
    if any(name == "model" for name, _ in label.options):
        raise UserError(f"--model and '{label.text}' both name a model: give it once.")
    if all(option.name != "model" for option in judge_options(label.name)):
        raise UserError(f"{label.name} takes no --model: leave it out.")
    return Label(label.name, (*label.options, ("model", options.model)))


def prompts_of(files: Sequence[RunFile], source: str, notify: Notify) -> Prompts:
    """The prompts that files answer, from where they came from. Raises UserError where they cannot be had any more."""
    prompts: dict[tuple[str, str], Prompt] = {}
    loaded: dict[tuple[str, str], Suite] = {}
    for file in files:
        for info in file.run.suites:
            key = (info.name, info.sha256)
            if key not in loaded:
                loaded[key] = _suite(file, info, source, notify)
                prompts |= {(info.name, prompt.id): prompt for prompt in loaded[key].prompts}
    return prompts


def _suite(file: RunFile, info: SuiteInfo, source: str, notify: Notify) -> Suite:
    from benchctl.measuring.prompts.suites import load_suite, suite_names

    # Of a known suite, the kind that was measured; "file" is one in BENCHCTL_DATA that differs from the published one.
    asked = info.source if source == "auto" and info.source != "file" else source
    suite = load_suite(
        info.name if info.name in suite_names() else _REMARK.sub("", info.origin),
        source=asked,
        limit=None,
        notify=notify,
    )
    return suite if file.run.imported else _measured(file, info, suite)


def _measured(file: RunFile, info: SuiteInfo, suite: Suite) -> Suite:
    """The prompts that a run measured, by their hash: the first ones, or those that were not too long for its target.

    Raises UserError where it measured other ones.
    """
    answered = {row.prompt_id for row in file.rows if row.suite == info.name}
    for prompts in (
        suite.prompts[: info.prompts],
        tuple(prompt for prompt in suite.prompts if prompt.id in answered),
    ):
        if (part := replace(suite, prompts=prompts)).prompts_sha256 == info.sha256:
            return part
    raise UserError(
        f"{file.path}: the prompts of {info.name} found at {suite.origin} are not those that it was measured with "
        f"({info.prompts} from {info.origin}). Set BENCHCTL_DATA, or put the file back where it was; if the "
        "run left out long prompts and was not finished, finish it with --resume first."
    )


def _name(judge: Judge, label: Label) -> str:
    """How scores and the cache name a judge: by the options that change what it says, folders without their places."""
    from benchctl.options import changed_options

    said = tuple(option for option in changed_options(judge) if option[0] not in judge.unsaid)
    return replace(label, options=said).without_places.text
