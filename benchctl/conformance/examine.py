"""The examination: every check on every target that the method runs on, one finding after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchctl.conformance import checks
from benchctl.conformance.findings import Deviation, Finding, Result, Skipped, finding
from benchctl.conformance.method_under_test import MethodUnderTest
from benchctl.conformance.random_models import KINDS, RandomModels, random_models
from benchctl.decoding.method import why_unsupported

OF_THE_METHOD: dict[str, Callable[[MethodUnderTest], Result]] = {
    "options": checks.options,
    "claim": checks.claim,
    "unsupported": checks.unsupported,
}
ON_A_TARGET: dict[str, Callable[[MethodUnderTest, RandomModels], Result]] = {
    "engaged": checks.engaged,
    "greedy": checks.greedy,
    "sampled": checks.sampled,
    "counting": checks.counting,
    "limits": checks.limits,
    "stops": checks.stops,
    "isolation": checks.isolation,
    "determinism": checks.determinism,
    "batches": checks.batches,
    "replay": checks.replayed,
    "cache": checks.cache_audit,
}
WHAT: dict[str, str] = {
    "options": "options are read and written as labels",
    "claim": "the claim is a known one, a lossy one has a reason",
    "unsupported": "None or a reason",
    "engaged": "drafts are accepted, or layers left out",
    "greedy": "greedy answers are the target's",
    "sampled": "sampled answers have the target's distribution",
    "counting": "all passes of the target are counted",
    "limits": "answers end at the limit",
    "stops": "answers end at the first stop token",
    "isolation": "earlier prompts change nothing",
    "determinism": "the same seed gives the same answer",
    "batches": "in a batch answers are those given alone",
    "replay": "it says a text that is forced upon it",
    "cache": "the cache is that of a fresh prefill",
}


def examine(label: str) -> Iterator[Finding]:
    """All findings on the method of a label. Raises UserError for a label that the registry refuses.

    Nothing is read or written but untrained modules in a temporary folder, where the method needs some.
    """
    with tempfile.TemporaryDirectory(prefix="benchctl-doctor-") as folder:
        subject = MethodUnderTest(label, Path(folder))
        name = subject.canonical
        for check, look in OF_THE_METHOD.items():
            yield finding(name, check, "", guarded(partial(look, subject)))
        for kind in KINDS:
            models = random_models(kind)
            barred = guarded(partial(_barred, subject, models))
            for check, test in ON_A_TARGET.items():
                result = barred or guarded(partial(test, subject, models))
                yield finding(name, check, kind, result)


def _barred(subject: MethodUnderTest, models: RandomModels) -> Result:
    reason = why_unsupported(subject.fresh(), models.target.info)
    return Skipped(reason) if reason else None


def guarded(look: Callable[[], Result]) -> Result:
    """What a check finds; an error of the method is a finding too."""
    try:
        return look()
    except Exception as error:  # whatever the method raises
        return Deviation("no error", f"{type(error).__name__}: {error}", f"fix what raises it: {_innermost(error)}")


def _innermost(error: Exception) -> str:
    """File and line that raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}" if trace else "unknown"
