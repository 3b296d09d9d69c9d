"""`benchctl doctor --aa`: the baseline against itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from benchctl.analysis.stats.aa import SelfComparison

_PROMPTS, _REPEATS, _NEW_TOKENS = 10, 8, 32
_RIGHT, _TOO_OFTEN = 0.05, 0.10


@dataclass(frozen=True)
class Small:
    """A small run of the baseline alone."""

    model: str
    device: str
    threads: int
    command: tuple[str, ...]


def compare_with_itself(files: Sequence[Path], small: Small, out: Path | None, as_json: bool) -> None:
    """Compare the baseline with itself in `files`, or in a small run that is measured into `out`; print the result.

    Raises UserError for files with too few measurements, and for an `out` that exists or cannot be written.
    """
    from benchctl.analysis.stats import aa
    from benchctl.cli.inputs import read_files
    from benchctl.measuring.clock import utc_now

    if not files:
        files = [_run(small, out or Path("results") / f"aa-{utc_now():%Y%m%dT%H%M%S}.jsonl")]
    comparison = aa.compare_with_itself(read_files(list(map(str, files))))
    click.echo(json.dumps(asdict(comparison), indent=2) if as_json else _shown(comparison))


def _run(small: Small, out: Path) -> Path:
    """Measure ten embedded prompts eight times each."""
    from benchctl.cli.run.display import RunDisplay
    from benchctl.measuring import settings as ask
    from benchctl.measuring.check import check
    from benchctl.measuring.run import run

    settings = ask.RunSettings(
        methods=("autoregressive",),
        prompts=ask.PromptSettings(limit=_PROMPTS, source="embedded"),
        models=ask.ModelSettings(small.model, device=small.device, threads=small.threads),
        answers=ask.AnswerSettings(max_new_tokens=_NEW_TOKENS),
        repeat=ask.RepeatSettings(repeats=_REPEATS),
        out=out,
        command=small.command,
    )
    with RunDisplay() as display:
        checked = check(settings, display.notice)
        display.begin(checked)
        display.end(run(checked, display))
    return out


def _shown(found: SelfComparison) -> str:
    lines = [
        f"{found.baseline} against itself: {found.prompts} prompts, {found.repeats} repeats, sessions: "
        f"{found.sessions}; {found.splits} splits into equal arms.",
        f"  called different           {found.false_positive_rate:.1%} of them ({_RIGHT:.0%} is right)",
        f"  least detectable effect    {found.minimum_detectable_effect:.2%}",
    ]
    if found.false_positive_rate > _TOO_OFTEN:
        lines.append(
            "Intervals are too narrow here: measure more prompts, and several --sessions, before you believe one."
        )
    return "\n".join(lines)
