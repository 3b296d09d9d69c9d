"""The words above a picture: what was measured, on what, over which prompts."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.analysis.comparison import Group
from benchctl.analysis.plot_style import Style
from benchctl.analysis.plots import in_lines


def headline(group: Group) -> str:
    """The target, where it ran, and the baseline."""
    run = group.run
    return f"{run.target.name} on {run.device}, {run.dtype}, threads: {run.threads}, baseline: {run.baseline}"


def prompts_line(group: Group) -> str:
    """The suites, and how many prompts."""
    run, suites = group.run, group.suites[:-1] or group.suites
    prompts = max(method.prompts for method in group.pooled.methods)
    batches = f" in batches of up to {run.batch_size}" if run.batch_size > 1 else ""
    names = ", ".join(group.title(suite) for suite in suites)
    return f"{names}: {prompts} prompt{'s' if prompts != 1 else ''}{batches}"


def length_line(group: Group) -> str:
    return f"up to {group.run.max_new_tokens} new tokens"


def apart_line(group: Group) -> str:
    """What keeps a group from being compared with the first; "" where nothing does."""
    differing = "; ".join(f"{found.field} is {found.other}" for found in group.differs)
    return f"not comparable with the first panel: {differing}" if differing else ""


def title_lines(group: Group, *, with_headline: bool = True) -> list[str]:
    """What stands above a panel; the headline may stand above all panels instead."""
    lines = [prompts_line(group), apart_line(group)]
    if with_headline:
        lines = [headline(group), f"{prompts_line(group)}, {length_line(group)}", apart_line(group)]
    return [line for line in lines if line]


def shared_headline(groups: Sequence[Group]) -> str:
    """The headline, where all panels are of one; "" where each needs its own."""
    found = {f"{headline(group)}, {length_line(group)}" for group in groups}
    return found.pop() if len(found) == 1 else ""


def wrapped(lines: Sequence[str], style: Style, points: float, inches: float | None = None) -> str:
    """The lines, each broken where it would be wider than `inches` (than the picture, if not given) in a font of
    `points`."""
    width = inches or style.width - style.small / 72
    return "\n".join(part for line in lines for part in in_lines(line, points, width))
