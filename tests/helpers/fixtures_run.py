"""A small run: a random target and its draft, three prompts (one of two turns), the settings to measure them with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from click.testing import Result
from command import cli
from tiny import tiny_folder

from benchctl.measuring import settings as ask
from benchctl.measuring.check import check
from benchctl.measuring.run import RunSummary, run
from benchctl.measuring.session import Report
from benchctl.records.schema import Row
from benchctl.records.writer import RunFile, read

PROMPTS = (
    {"id": "short", "prompt": "Say something."},
    {"id": "talk", "turns": ["Count to three.", "And back?"]},
    {"id": "story", "prompt": "Tell a story about a dog that found a red ball in the park."},
)
LABELS = ("autoregressive", "two_model[draft_tokens=2]", "early_exit[threshold=0.0]")
GENERATIONS = 24


def make_folder(folder: Path) -> Path:
    """`target`, `draft` and `three.jsonl` in a folder."""
    tiny_folder(folder / "target")
    tiny_folder(folder / "draft", layers=1, seed=1)
    write_prompts(folder / "three.jsonl", PROMPTS)
    return folder


def write_prompts(path: Path, prompts: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return path


def make_settings(folder: Path, out: Path) -> ask.RunSettings:
    """What measures GENERATIONS generations of LABELS on the prompts in `folder`."""
    return ask.RunSettings(
        methods=LABELS[1:],
        prompts=ask.PromptSettings(benches=(str(folder / "three.jsonl"),)),
        models=ask.ModelSettings(str(folder / "target"), str(folder / "draft"), device="cpu"),
        answers=ask.AnswerSettings(max_new_tokens=6),
        repeat=ask.RepeatSettings(repeats=2, warm_up=2),
        watch=False,  # answers of six tokens take less time than the watch, which has tests of its own
        out=out,
        command=("benchctl", "run"),
    )


def invoke_run(*arguments: object) -> Result:
    """`benchctl run` in the folder of the fixture `here`; options given again replace those given here."""
    usual = "--model target --draft-model draft --bench three.jsonl --device cpu --max-new-tokens 5 --warm-up 1"
    return cli("run", "--no-watch", *usual.split(), "--out", "out.jsonl", *arguments)


def measure(settings: ask.RunSettings, report: Report = lambda event: None) -> RunSummary:
    """A run from its settings."""
    return run(check(settings, lambda notice: None), report)


def measure_file(settings: ask.RunSettings, report: Report = lambda event: None) -> RunFile:
    """The file of a run from settings with `out`."""
    measure(settings, report)
    assert settings.out is not None
    return read(settings.out)


def measured(file: RunFile) -> list[Row]:
    """The rows of a file without those of the warm-up."""
    return [row for row in file.rows if row.repeat >= 0]


def timeless(rows: Sequence[Row]) -> list[Row]:
    """Rows without what differs from one measurement to the next."""
    return [
        replace(
            row,
            started_s=None,
            cpu_s=None,
            ttft_s=0.0,
            step_s=(0.0,) * len(row.step_s),
            phases={name: (0.0,) * len(seconds) for name, seconds in row.phases.items()},
            peak_memory_bytes=None,
            reserved_memory_bytes=None,
            energy_j=None,
            conditions={},
            invalid="",
        )
        for row in rows
    ]
