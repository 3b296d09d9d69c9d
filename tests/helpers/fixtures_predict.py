"""Rows of a made-up machine, on which it is known what every phase of a step takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compared import file_of
from fixtures_records import BASELINE, DRAFTED, EXITING, LAYERS, baseline_row

from benchctl.records.schema import Mode, Row
from benchctl.records.writer import RunFile

PHASES = ("draft", "verify", "commit", "host")
TOKENS = 24  # of every answer, the first by prefill
PROMPTS = 6


@dataclass(frozen=True)
class Step:
    """What a step did, and the seconds of its phases."""

    drafted: int
    accepted: int
    phases: tuple[float, float, float, float]
    layers: int = LAYERS

    @property
    def seconds(self) -> float:
        return sum(self.phases)


PLAIN = Step(0, 0, (0.0, 8.0, 1.0, 1.0))  # the baseline's: 10 s
# 4 drafted at 1 s each, 5 rows for 9 s where one takes 8, commit and host 1 s more than the baseline's each.
DRAFTING = Step(4, 3, (4.0, 9.0, 2.0, 2.0))


def row_of(label: str, steps: Sequence[Step], mode: Mode = "free", prompt_id: str = "p0", slower: float = 1.0) -> Row:
    """An answer of these steps, of which a free one takes `slower` times what a profiled one takes."""
    tokens = 1 + sum(step.accepted + 1 for step in steps)
    return replace(
        baseline_row(prompt_id, tokens=tokens),
        label=label,
        mode=mode,
        step_s=tuple(step.seconds * (slower if mode == "free" else 1.0) for step in steps),
        committed=tuple(step.accepted + 1 for step in steps),
        drafted=tuple(step.drafted for step in steps),
        accepted=tuple(step.accepted for step in steps),
        rows=tuple(1 + step.drafted if step.layers == LAYERS else 0 for step in steps),
        layers=(LAYERS, *(step.layers for step in steps for _ in range(step.accepted + 1))),
        phases={name: tuple(step.phases[at] for step in steps) for at, name in enumerate(PHASES)}
        if mode == "profile"
        else {},
    )


def both(label: str, steps: Sequence[Step], slower: float = 1.0) -> list[Row]:
    """The same answer to every prompt, free and profiled."""
    return [
        row_of(label, steps, mode, f"p{prompt}", slower) for prompt in range(PROMPTS) for mode in ("free", "profile")
    ]


def usual_file(slower: float = 1.0) -> RunFile:
    """24 tokens: the baseline in 24 steps, DRAFTED in 6, EXITING in 24 of half the layers; all profiled as well."""
    exiting = Step(0, 0, (0.0, 5.0, 1.0, 2.0), layers=LAYERS // 2)
    return file_of(
        [
            *both(BASELINE, [PLAIN] * TOKENS),
            *both(DRAFTED, [DRAFTING] * (TOKENS // 4), slower),
            *both(EXITING, [exiting] * TOKENS, slower),
        ]
    )
