"""What judges say, for programs: objects of the JSON and columns of the CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.comparison import Estimate, Group, MethodFigures

if TYPE_CHECKING:
    from benchctl.analysis.agreement import Agreement
    from benchctl.analysis.judged import JudgedFigures

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
