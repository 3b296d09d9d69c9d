"""A comparison for programs: CSV with a line per suite and method, JSON with everything, both at full precision."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchctl.analysis.frame.comparison import Estimate, Group, MethodFigures, SuiteFigures
from benchctl.analysis.gate import Gates
from benchctl.analysis.stats.winner import Winner, fastest
from benchctl.analysis.warnings import cautions

if TYPE_CHECKING:
    from benchctl.analysis.judges.agreement import Agreement
    from benchctl.analysis.judges.figures import JudgedFigures

Value = str | int | float | bool | None
Document = dict[str, object]

_COUNTS = ("pairs", "prompts", "asked_prompts", "identical", "incomplete", "asked", "unreadable", "prompts_needed")


def estimate_document(estimate: Estimate) -> Document:
    interval = estimate.interval
    return {
        "value": estimate.value,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "unit": estimate.metric.unit,
        "better": estimate.metric.better,
    }


def judged_document(found: JudgedFigures) -> Document:
    """What one judge says of one method."""
    return {
        "judge": found.judge.label,
        "model": found.judge.model,
        "protocol": found.judge.protocol,
        **{name: getattr(found, name) for name in _COUNTS},
        "margin": found.margin,
        "within_margin": found.within,
        "score_by_turn": list(found.by_turn),
        "metrics": {estimate.metric.name: estimate_document(estimate) for estimate in found.estimates},
    }


def flat_judged(method: MethodFigures) -> dict[str, Value]:
    """The same as columns, whose names end in the judge's: `score_difference[gpt gpt-4o pairwise]`."""
    line: dict[str, Value] = {}
    for found in method.judged:
        at = f"[{found.judge.name}]"
        line |= {f"{name}{at}": getattr(found, name) for name in _COUNTS}
        for estimate in found.estimates:
            interval = estimate.interval
            line[f"{estimate.metric.name}{at}"] = estimate.value
            line[f"{estimate.metric.name}_low{at}"] = interval.low if interval else None
            line[f"{estimate.metric.name}_high{at}"] = interval.high if interval else None
    return line


def agreement_documents(group: Group) -> list[Document]:
    return [agreement_document(found) for found in (group.judging.agreements if group.judging else ())]


def agreement_document(found: Agreement) -> Document:
    """How far two judges agree."""
    return {
        "judges": [found.one.name, found.other.name],
        "pairs": found.pairs,
        "prompts": found.prompts,
        "alike": found.alike,
        "kappa": found.kappa,
        "low": found.interval.low if found.interval else None,
        "high": found.interval.high if found.interval else None,
    }


def to_csv(groups: Sequence[Group]) -> str:
    """One line per group, suite and method. Empty where there is no value; units stand in the names of the columns."""
    lines = [
        {"group": number, "suite": suite.suite, "source": _source(group, suite), **_flat(group, method)}
        for number, group in enumerate(groups, 1)
        for suite in group.suites
        for method in suite.methods
    ]
    text = io.StringIO()
    columns = dict.fromkeys(name for line in lines for name in line)
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")


def to_json(groups: Sequence[Group], floor: float = 0.0, gates: Gates | None = None) -> str:
    """An object with `groups` and, where the first was held to something, `gates`; see the keys below. No difference in
    speed below `floor` is called one."""
    document = {"groups": [_group(group, floor) for group in groups]} | gates_document(gates)
    return json.dumps(document, indent=2, allow_nan=False)


def gates_document(gates: Gates | None) -> Document:
    """What came of gates, under `gates`; empty where nothing was held to any."""
    if gates is None:
        return {}
    found = {
        "passed": gates.passed,
        "require": gates.required,
        "require_quality": gates.quality,
        "unmet": list(gates.unmet),
        "unsupported": list(gates.unsupported),
        "fail_below": gates.least,
        "floor": gates.floor,
        "kept": [asdict(one) | {"slower": one.label in gates.slower} for one in gates.kept],
    }
    return {"gates": found}


def _flat(group: Group, method: MethodFigures) -> dict[str, Value]:
    line: dict[str, Value] = {
        "baseline": group.run.baseline,
        "label": method.label,
        "claim": method.exactness,
        "lossless": method.lossless,
        "prompts": method.prompts,
        "generations": method.generations,
        "checked_prompts": method.checked_prompts,
    }
    for estimate in method.estimates:
        interval = estimate.interval
        line[estimate.metric.name] = estimate.value
        line[f"{estimate.metric.name}_low"] = interval.low if interval else None
        line[f"{estimate.metric.name}_high"] = interval.high if interval else None
    return line | asdict(method.fidelity) | flat_judged(method)


def _group(group: Group, floor: float) -> Document:
    run = group.run
    winner = fastest(group, floor)
    return {
        "files": [str(file.path) for file in group.files],
        "baseline": run.baseline,
        "target": run.target.name,
        "draft": run.draft.name if run.draft else None,
        "dtype": run.dtype,
        "device": run.device,
        "executor": run.executor,
        "threads": run.threads,
        "batch_size": run.batch_size,
        "modes": list(run.modes),
        "context_fill": run.context_fill,
        "imported": run.imported,
        "temperature": run.temperature,
        "top_p": run.top_p,
        "top_k": run.top_k,
        "max_new_tokens": run.max_new_tokens,
        "machine": dict(run.machine),
        "differs_from_first_group": [asdict(difference) for difference in group.differs],
        "cautions": list(cautions(group, floor)),
        "agreement_of_judges": agreement_documents(group),
        "fastest": None if winner is None else _winner(winner),
        "suites": [_suite(group, suite) for suite in group.suites],
    }


def _winner(winner: Winner) -> Document:
    return {
        "label": winner.label,
        "slower": list(winner.slower),
        "cannot_be_told_from": list(winner.untold),
        "compared_pairs": winner.pairs,
        "not_all_answered": winner.partly,
        "answers_not_known": list(winner.aside),
        "floor": winner.floor,
    }


def _source(group: Group, figures: SuiteFigures) -> str:
    """Where the prompts came from: published, embedded or file; all of them for all suites together."""
    sources = {suite.name: suite.source for suite in group.run.suites}
    return sources.get(figures.suite) or "+".join(sorted(set(sources.values())))


def _suite(group: Group, suite: SuiteFigures) -> Document:
    methods = [_method(method) for method in suite.methods]
    return {"suite": suite.suite, "source": _source(group, suite), "methods": methods}


def _method(method: MethodFigures) -> Document:
    return {
        "label": method.label,
        "claim": method.exactness,
        "baseline": method.is_baseline,
        "lossless": method.lossless,
        "prompts": method.prompts,
        "generations": method.generations,
        "checked_prompts": method.checked_prompts,
        "verdicts": asdict(method.fidelity),
        "metrics": {estimate.metric.name: estimate_document(estimate) for estimate in method.estimates},
        "judged": [judged_document(found) for found in method.judged],
    }
