"""The first record of a results file: what was fixed before the first generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folder import modules_sha256
from benchctl.measuring.check import CheckedRun
from benchctl.measuring.choices import Choice
from benchctl.measuring.clock import utc_now
from benchctl.measuring.machine.apart import bandwidth_mb_s
from benchctl.measuring.machine.facts import Traffic, commit, machine_facts, versions
from benchctl.measuring.prompts.prompt import Suite
from benchctl.records.schema import MethodInfo, ModelInfo, Run, SuiteInfo

EXECUTOR = "static"  # a preallocated cache, no compilation
ATTENTION = "bmm+sdpa"  # what decoding/layers.py mixes few and many rows with


def run_record(
    checked: CheckedRun, choices: Sequence[Choice], target: ModelInfo, draft: ModelInfo | None, traffic: Traffic
) -> Run:
    """The header. `choices` are the checked run's, with what turned out unsupported marked."""
    settings = checked.settings
    answers = settings.answers
    return Run(
        name=checked.out.stem,
        created=utc_now().isoformat(timespec="seconds"),
        command=settings.command,
        baseline=choices[0].label,
        target=target,
        draft=draft,
        suites=tuple(map(suite_info, checked.suites)),
        methods=tuple(map(method_info, choices)),
        dtype=checked.dtype,
        device=checked.device,
        executor=EXECUTOR,
        attention=ATTENTION,
        threads=settings.models.threads,
        temperature=answers.temperature,
        top_p=answers.top_p,
        top_k=answers.top_k,
        seed=answers.seed,
        max_new_tokens=answers.max_new_tokens,
        repeats=settings.repeat.repeats,
        batch_size=settings.batch_size,
        modes=settings.repeat.modes,
        context_fill=settings.prompts.context_fill,
        order=settings.repeat.order,
        step_bytes=traffic.step_bytes,
        cache_token_bytes=traffic.cache_token_bytes,
        machine={**machine_facts(checked.device), **_measured(checked)},
        versions=versions(),
        commit=commit(),
    )


def _measured(checked: CheckedRun) -> dict[str, float]:
    """What only a measurement tells of the machine, in a second or two."""
    if not checked.settings.watch:
        return {}
    found = bandwidth_mb_s(checked.device, checked.settings.models.threads)
    return {} if found is None else {"memory_bandwidth_mb_s": round(found, 1)}


def model_info(name: str, target: Target) -> ModelInfo:
    """A loaded model's facts and hashes. A folder is recorded by its own name: where it lies is nobody's business."""
    return ModelInfo(
        name=Path(name).resolve().name if Path(name).is_dir() else name,
        **{name: value for name, value in asdict(target.info).items() if name in ModelInfo.__dataclass_fields__},
        parameters=target.parameters,
        weights_sha256=target.weights_sha256,
        tokenizer_sha256=target.tokenizer.sha256,
        chat_template_sha256=target.tokenizer.chat_template_sha256,
    )


def suite_info(suite: Suite) -> SuiteInfo:
    return SuiteInfo(
        name=suite.name,
        source=suite.source,
        origin=suite.origin,
        sha256=suite.prompts_sha256,
        prompts=len(suite.prompts),
        own=suite.own,
        exact_answers={prompt.id: prompt.exact_answers for prompt in suite.prompts if any(prompt.exact_answers)},
    )


def method_info(choice: Choice) -> MethodInfo:
    method = choice.method
    return MethodInfo(
        label=choice.label,
        name=choice.name,
        options=choice.options,
        exactness=method.exactness,
        reason=method.reason,
        unsupported=choice.unsupported,
        modules_sha256=modules_sha256(choice.modules) if choice.modules and not choice.unsupported else "",
    )
