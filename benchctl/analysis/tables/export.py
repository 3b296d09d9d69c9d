"""A comparison for programs: CSV with a line per suite and method, JSON with everything, both at full precision."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from benchctl.analysis.comparison import Group, MethodFigures, SuiteFigures
from benchctl.analysis.judges.figures import MARGIN, Agreement, JudgedFigures
from benchctl.analysis.machines import pooled_speedups
from benchctl.analysis.stats.estimates import Estimate
from benchctl.analysis.warnings import warnings
from benchctl.analysis.winner import fastest

Value = str | int | float | bool | None
Document = dict[str, object]

_RUN_FIELDS = (
    *("dtype", "weights", "device", "executor", "threads", "batch_size", "context_fill", "imported"),
    *("temperature", "top_p", "top_k", "max_new_tokens"),
)
_METHOD_FIELDS = ("refused", "prompts", "generations", "checked_prompts")
_JUDGED_FIELDS = ("pairs", "prompts", "asked_prompts", "identical", "incomplete", "asked", "unreadable",
                  "prompts_needed")  # fmt: skip


def to_csv(groups: Sequence[Group]) -> str:
    """One line per group, suite and method. Empty where there is no value; column names contain the unit.

    A judge's figures are in columns that end in its name: `score_difference[gpt gpt-4o pairwise]`.
    """
    lines = [
        {"group": number, "suite": suite.name, "source": _source(group, suite), **_flat(group, method)}
        for number, group in enumerate(groups, 1)
        for suite in (*group.categories, *group.suites)
        for method in suite.methods
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")


def to_json(groups: Sequence[Group]) -> str:
    """An object with `groups`, see the keys below, and `machines` where several machines measured a label."""
    document: Document = {"groups": [_group(group) for group in groups]}
    if pooled := pooled_speedups(groups):
        document["machines"] = [
            {name: getattr(each, name) for name in ("of", "label", "value")}
            | {"speedups": list(each.each), **asdict(each.interval)}
            for each in pooled
        ]
    return json.dumps(document, indent=2, allow_nan=False)


def _agreement_document(agreement: Agreement) -> Document:
    """How far two judges agree."""
    return {
        "judges": [agreement.first.name, agreement.second.name],
        "pairs": agreement.pairs,
        "prompts": agreement.prompts,
        "alike": agreement.alike,
        "kappa": agreement.kappa,
        "low": agreement.interval.low if agreement.interval else None,
        "high": agreement.interval.high if agreement.interval else None,
    }


def _flat(group: Group, method: MethodFigures) -> dict[str, Value]:
    line: dict[str, Value] = {"baseline": group.run.baseline, "label": method.label, "claim": method.exactness}
    line["lossless"] = _lossless(method)
    line |= {name: getattr(method, name) for name in _METHOD_FIELDS}
    line |= _flat_estimates(method.estimates) | asdict(method.fidelity)
    for judged in method.judged:
        judge = f"[{judged.judge.name}]"
        line |= {f"{name}{judge}": getattr(judged, name) for name in _JUDGED_FIELDS}
        line |= _flat_estimates(judged.estimates, judge)
    return line


def _flat_estimates(estimates: Sequence[Estimate], suffix: str = "") -> dict[str, Value]:
    return {
        f"{estimate.metric.name}{end}{suffix}": value
        for estimate in estimates
        for end, value in zip(("", "_low", "_high"), estimate.numbers.values(), strict=True)
    }


def _group(group: Group) -> Document:
    run, winner = group.run, fastest(group)
    differs = [{"field": each.field, "one": each.first, "other": each.second} for each in group.differs]
    return {
        "files": [str(file.path) for file in group.files],
        "baseline": run.baseline,
        "target": run.target.name,
        "draft": run.draft.name if run.draft else None,
        **{name: getattr(run, name) for name in _RUN_FIELDS},
        "modes": list(run.modes),
        "machine": dict(run.machine),
        "differs_from_first_group": differs,
        "warnings": [{"id": each.id, "text": each.text, "values": dict(each.values)} for each in warnings(group)],
        "agreement_of_judges": list(map(_agreement_document, group.judging.agreements if group.judging else ())),
        "fastest": winner
        and {
            "label": winner.label,
            "slower": list(winner.slower),
            "not_significantly_slower": list(winner.tied),
            "not_all_answered": winner.partly,
            "answers_not_known": list(winner.unconfirmed),
        },
        "suites": [
            {"suite": suite.name, "source": _source(group, suite), "methods": list(map(_method, suite.methods))}
            for suite in (*group.categories, *group.suites)
        ],
    }


def _source(group: Group, figures: SuiteFigures) -> str:
    """The origin of the prompts: published, embedded or file; all of them for all suites together."""
    sources = {suite.name: suite.source for suite in group.run.suites}
    return sources.get(figures.suite) or "+".join(sorted(set(sources.values())))


def _method(method: MethodFigures) -> Document:
    return {
        "label": method.label,
        "claim": method.exactness,
        "baseline": method.is_baseline,
        "lossless": _lossless(method),
        **{name: getattr(method, name) for name in _METHOD_FIELDS},
        "verdicts": asdict(method.fidelity),
        "metrics": _estimates(method.estimates),
        "judged": [_judged(judged) for judged in method.judged],
    }


def _lossless(method: MethodFigures) -> bool | None:
    """None where no answers were compared."""
    return method.lossless if method.is_compared else None


def _judged(judged: JudgedFigures) -> Document:
    return {
        "judge": judged.judge.label,
        "model": judged.judge.model,
        "protocol": judged.judge.protocol,
        **{name: getattr(judged, name) for name in _JUDGED_FIELDS},
        "margin": MARGIN,
        "score_by_turn": list(judged.by_turn),
        "metrics": _estimates(judged.estimates),
    }


def _estimates(estimates: Sequence[Estimate]) -> Document:
    return {
        each.metric.name: {**each.numbers, "unit": each.metric.unit, "better": each.metric.better} for each in estimates
    }
