"""What a check finds: nothing to object to, a deviation with what to do about it, or a reason not to look."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Deviation:
    """What was expected, what was seen instead, and what the author of the method may do."""

    expected: str
    seen: str
    action: str


@dataclass(frozen=True)
class Skipped:
    """Why a check has nothing to look at."""

    reason: str


@dataclass(frozen=True)
class Held:
    """Nothing to object to, and what was looked at."""

    detail: str


Result = Deviation | Skipped | Held | None


@dataclass(frozen=True)
class Finding:
    """One check of one method.

    target  the kind of the target or its name, empty for checks that need none
    detail  why it was skipped, or what was looked at
    """

    label: str
    check: str
    target: str
    verdict: Literal["pass", "fail", "skip"]
    expected: str = ""
    seen: str = ""
    action: str = ""
    detail: str = ""


def finding(label: str, check: str, target: str, look: Callable[[], Result]) -> Finding:
    """What a check finds, with what it was a check of. An error of the method is a finding too."""
    try:
        result = look()
    except Exception as error:  # whatever the method raises
        raised = traceback.extract_tb(error.__traceback__)[-1]
        action = f"fix what raises it: {Path(raised.filename).name}, line {raised.lineno}"
        result = Deviation("no error", f"{type(error).__name__}: {error}", action)
    if isinstance(result, Deviation):
        return Finding(label, check, target, "fail", result.expected, result.seen, result.action)
    if isinstance(result, Skipped):
        return Finding(label, check, target, "skip", detail=result.reason)
    return Finding(label, check, target, "pass", detail=result.detail if result else "")


def shown(tokens: tuple[int, ...]) -> str:
    """The first ids of an answer."""
    few = " ".join(map(str, tokens[:12]))
    return f"{few} .." if len(tokens) > 12 else few or "nothing"
