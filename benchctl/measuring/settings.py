"""What a run was asked for, in groups; the defaults are those of `benchctl run`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchctl.measuring.plan import Order
from benchctl.records.schema import Mode

LongPrompts = Literal["error", "skip", "cut"]


@dataclass(frozen=True)
class PromptSettings:
    """Which prompts: suites or files, the first `limit` of each (None: all), and what becomes of those that do not fit
    into the target's context; `context_fill` tokens are put before each."""

    benches: tuple[str, ...] = ("koala",)
    limit: int | None = None
    data_dir: Path | None = None
    source: str = "auto"
    long_prompts: LongPrompts = "error"
    context_fill: int = 0


@dataclass(frozen=True)
class ModelSettings:
    """Which models, and how they are executed. An empty name means the embedded one, "auto" what suits the machine."""

    target: str = ""
    draft: str = ""
    dtype: str = "auto"
    device: str = "auto"
    threads: int = 1


@dataclass(frozen=True)
class AnswerSettings:
    """How long answers may be and how their tokens are chosen."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


@dataclass(frozen=True)
class RepeatSettings:
    """How often each prompt is measured, in which order and modes (the first is free); `warm_up` is the most rounds
    before, 0 for none."""

    repeats: int = 2
    warm_up: int = 3
    order: Order = "abba"
    modes: tuple[Mode, ...] = ("free",)


@dataclass(frozen=True)
class RunSettings:
    """All of a run. `batch_size` prompts are decoded together, 1 meaning no batches. With `watch` the machine's
    conditions are read, and rounds that they disturbed marked. `out` None means a new file in `folder`,
    named after suite, label and time."""

    methods: tuple[str, ...] = ("all",)
    prompts: PromptSettings = field(default_factory=PromptSettings)
    models: ModelSettings = field(default_factory=ModelSettings)
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    repeat: RepeatSettings = field(default_factory=RepeatSettings)
    batch_size: int = 1
    watch: bool = True
    out: Path | None = None
    resume: bool = False
    command: tuple[str, ...] = ()
    folder: Path = Path("results")
