"""What a run is asked for, in groups. The fields with `setting` are the options of `benchctl run`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchctl.options import setting

if TYPE_CHECKING:
    from benchctl.records.schema import Mode

Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
Weights = Literal["auto", "float16"]
Executor = Literal["auto", "static", "transformers"]
Device = Literal["auto", "cpu", "cuda"]
Source = Literal["auto", "published", "embedded"]
LongPrompts = Literal["error", "skip", "cut"]

BENCH_FLAGS = ("--suite", "--bench", "-b")
BENCHES_HELP = (
    "Suite (see `benchctl list suites`), one category of it (spec-bench/rag), or a .jsonl file of `prompt` or `turns` "
    "records. May be repeated."
)
TARGET_HELP = "Target model: embedded name, folder or hub id.  [default: the embedded target]"
DRAFT_HELP = "Draft model, best with the target's tokenizer.  [default: the one embedded with the target]"
_MODEL = "NAME|FOLDER|ID"


@dataclass(frozen=True)
class PromptSettings:
    """Which prompts, how many of each suite, and what happens to those that do not fit into the target's context."""

    benches: tuple[str, ...] = setting(("koala",), BENCHES_HELP, flags=BENCH_FLAGS, metavar="NAME|FILE")
    limit: int | None = setting(
        None, "Only N prompts of each suite, spread evenly over its categories.  [default: all]", least=1, metavar="N"
    )
    source: Source = setting(
        "auto",
        "published: only the published prompts. embedded: only the embedded sample. auto: the sample as fallback.",
    )
    long_prompts: LongPrompts = setting(
        "error", "Prompts longer than the target's context: refuse the run, skip them, or keep their last tokens."
    )
    context_fill: int = setting(
        0, "Put this many tokens of filler text before each prompt.", flags=("--context",), least=0, metavar="TOKENS"
    )


@dataclass(frozen=True)
class ModelSettings:
    """Which models, and how they are executed. An empty name means the embedded one."""

    target: str = setting("", TARGET_HELP, flags=("--model",), metavar=_MODEL)
    draft: str = setting("", DRAFT_HELP, flags=("--draft-model",), metavar=_MODEL)
    dtype: Dtype = setting("auto", "Number format; auto: float32 on a CPU, bfloat16 on a GPU.")
    device: Device = setting("auto", "Where to run; auto: a GPU if there is one.")
    threads: int = setting(1, "CPU threads of torch. 1 gives the least noise.", least=1)
    weights: Weights = setting(
        "auto",
        "Number format of weight matrices; auto: as --dtype. float16: half the memory traffic of float32 on a CPU. "
        "Arithmetic stays in float32. It is another target: its answers may differ.",
    )
    executor: Executor = setting(
        "auto",
        "Whose layers run. static: benchctl's own, which are faster. transformers: theirs, for any decoder-only model; "
        "methods that need inner layers cannot run. auto: transformers only for models that static does not know.",
    )


@dataclass(frozen=True)
class AnswerSettings:
    """How long answers may be and how their tokens are chosen."""

    max_new_tokens: int = setting(128, "Longest answer, in tokens.", least=1, metavar="N")
    temperature: float = setting(
        0.0, "Sampling temperature, 0.01 or more. 0 is greedy; only greedy runs have verdicts.", least=0
    )
    top_p: float = setting(1.0, "Sample from the smallest set of tokens with this probability.", above=0, most=1)
    top_k: int = setting(0, "Sample from the K most likely tokens; 0: from all.", least=0)
    seed: int = setting(0, "Seed of all sampling.")


@dataclass(frozen=True)
class RepeatSettings:
    """How often each prompt is measured, and in which modes."""

    repeats: int = setting(2, "How often each prompt is measured. Even numbers balance drift of the machine.", least=1)
    warm_up: int = setting(
        3, "Most warm-up rounds. Warm-up ends when two rounds in a row agree within 5%.", least=0, metavar="ROUNDS"
    )
    replay: bool = setting(
        False, "Also measure each method on the baseline's text, so that all decode the same tokens."
    )
    profile: bool = setting(
        False, "Also measure with each step split into phases. Speed-ups come from the generations without."
    )

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes of the run; the first is "free"."""
        asked: dict[Mode, bool] = {"free": True, "replay": self.replay, "profile": self.profile}
        return tuple(mode for mode, wanted in asked.items() if wanted)


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run. `out` None means a new file in `results/`, named after suite, label and time."""

    methods: tuple[str, ...] = setting(
        (),
        "Method, with or without options: two_model[draft_tokens=5]. May be repeated. `all`: every built-in method "
        "that can run here. The baseline is always measured.  [default: all, or only the sweeps]",
        flags=("--method", "-m"),
        metavar="LABEL",
    )
    sweeps: tuple[str, ...] = setting(
        (),
        "All combinations of alternatives, as m2r2[exit=2|4,draft_tokens=2:6:2] (2, 4 and 6). May be repeated.",
        flags=("--sweep",),
        metavar="LABEL",
    )
    prompts: PromptSettings = field(default_factory=PromptSettings)
    models: ModelSettings = field(default_factory=ModelSettings)
    batch_size: int = setting(
        1, "Decode N prompts together. All figures then compare batches with batches.", least=1, most=16, metavar="N"
    )
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    repeat: RepeatSettings = field(default_factory=RepeatSettings)
    watch: bool = setting(True, "Watch the machine's load, and exclude and repeat rounds that other load disturbed.")
    out: Path | None = setting(None, "Results file.  [default: results/<suite>-<label>-<time>.jsonl]", metavar="FILE")
    resume: bool = setting(False, "Continue --out: measure only what it lacks.")
    command: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels asked for, those of sweeps last; without methods and sweeps ("all",).

        Raises UserError for a sweep that cannot be expanded.
        """
        from benchctl.registry import expand_sweep

        swept = tuple(label for sweep in self.sweeps for label in expand_sweep(sweep))
        return (*self.methods, *swept) or ("all",)
