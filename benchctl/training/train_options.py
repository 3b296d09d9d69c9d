"""The settings of a training job as plain values: the command line makes them without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self

from benchctl.errors import UserError
from benchctl.options import setting

ScheduleName = Literal["cosine", "linear"]
OptimizerName = Literal["muon", "adamw"]
OWN = "[default: depends on the part]"
LAYERS_HELP = "Decoder layers."
HIDDEN_HELP = "Width of the residual stream."
HEADS_HELP = "Attention heads."
KV_HEADS_HELP = "Heads for keys and values."
MLP_HELP = "Inner width of the MLP."
SELF_DISTIL_HELP = "Learn from the target's own answers to N prompts of the data. 0: learn from the data itself."


@dataclass(frozen=True)
class Learning:
    """How a part is trained: rates are peaks, `warmup` is a share of the run, `epochs` its length if none is given."""

    optimizer: OptimizerName
    rate: float
    matrix_rate: float
    schedule: ScheduleName
    warmup: float
    batch_tokens: int
    epochs: float | None = None


DRAFT_LEARNING = Learning("adamw", 1e-3, 0.01, "cosine", 0.05, 4096)


@dataclass(frozen=True)
class TrainOptions:
    """Options of every training; None is the part's own default. The length is one of `minutes`, `steps`, `epochs`."""

    data: tuple[str, ...]
    out: Path
    minutes: float | None = setting(None, "Length of the training in minutes. Or give --steps or --epochs.", least=0.01)
    steps: int | None = setting(None, "Length of the training in optimiser steps.", least=1)
    epochs: float | None = setting(None, f"Length of the training in passes through the data.  {OWN}", least=0.01)
    resume: bool = setting(False, "Continue from the newest checkpoint in --out.")
    seed: int = setting(0, "Seed for new weights and the order of the data.", least=0)
    held_out_every: int = setting(100, "Measure on held-out text every STEPS steps.", least=1, metavar="STEPS")
    answers_only: bool = setting(False, "Give prompts no weight in the loss; otherwise 30%.")
    optimizer: OptimizerName | None = setting(None, f"Optimiser. Muon trains only the matrices.  {OWN}")
    rate: float | None = setting(None, f"Peak learning rate of AdamW.  {OWN}", least=0)
    matrix_rate: float | None = setting(None, f"Peak learning rate of Muon.  {OWN}", least=0)
    schedule: ScheduleName | None = setting(None, f"How the learning rate falls to zero.  {OWN}")
    warmup: float | None = setting(None, f"Share of the run in which the learning rate rises.  {OWN}", least=0, most=1)
    clip: float = setting(1.0, "Largest gradient norm.", above=0)
    batch_tokens: int | None = setting(None, f"Tokens per optimiser step.  {OWN}", least=1)
    device: str = setting("cpu", "Where to train.", metavar="cpu|cuda[:N]")
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "auto: bfloat16 on a GPU or ARM processor that supports it and on x86 with AMX, else float32. On a CPU the "
        "frozen target stays in float32.",
    )
    threads: int | None = setting(None, "CPU threads.  [default: torch's choice]", least=1)
    compiled: bool = setting(False, "Compile the loss with torch.compile.", flags=("--compile/--no-compile",))

    def with_defaults(self, learning: Learning) -> Self:
        """These options with every None filled in. Raises UserError unless the length is given in one way."""
        given = [length for length in (self.minutes, self.steps, self.epochs) if length is not None]
        if len(given) > 1 or (not given and learning.epochs is None):
            raise UserError(
                "no_training_length", "Give the length of the training with one of --minutes, --steps and --epochs."
            )
        own = {name: value for name, value in asdict(learning).items() if name != "epochs" or not given}
        return replace(self, **{name: value for name, value in own.items() if getattr(self, name) is None})


@dataclass(frozen=True)
class TeacherOptions(TrainOptions):
    """Options of a training that learns from a frozen target."""

    model: str = ""
    self_distil: int = setting(0, SELF_DISTIL_HELP, least=0, metavar="N")
    self_distil_temperature: float = setting(
        0.0, "Temperature of the target's answers, 0.01 or more; 0 is greedy.", least=0
    )
    answer_tokens: int = setting(160, "Longest answer of the target, in tokens.", least=1)
    cache: Path | None = setting(
        None, "Folder for the target's answers and states, which runs may share.  [default: answers only, in --out]"
    )
    store_gb: float = setting(
        20.0, "Largest size of the target's states in --cache, in GB; on a CPU, without an encoder. 0: none.", least=0
    )
    draft_vocabulary: int | None = setting(
        None,
        "Number of tokens that drafters score: the most frequent of the data. Where exits or adapters write the "
        "answer: number of random tokens in the loss of each pass. 0: all.  [default: 8192 if the target has 32768 or "
        "more, else all]",
        least=0,
        metavar="N",
    )
    row_tokens: int = setting(512, "Tokens per row of packed text.", least=8)
    micro_rows: int = setting(4, "Rows per pass. Fewer need less memory.", least=1)


@dataclass(frozen=True)
class ModuleOptions(TeacherOptions):
    """Options of the training of a method's modules."""

    save_as: Literal["float32", "float16"] = setting(
        "float32", "Type of the saved weights. They are rounded to it before they are measured last."
    )


@dataclass(frozen=True)
class DraftOptions(TeacherOptions):
    """Options of the training of a draft model."""

    self_distil: int = setting(12_000, SELF_DISTIL_HELP, least=0, metavar="N")
    exits: str = setting("", "Layers of the draft model that learn to draft too, such as 1 or 2+4.", metavar="LAYERS")


@dataclass(frozen=True)
class Provenance:
    """What makes the result again: the command line (names of folders instead of paths), the code and its libraries."""

    command: str
    commit: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model with tied embeddings in Llama's layout."""

    layers: int = setting(16, LAYERS_HELP, least=1)
    hidden: int = setting(192, HIDDEN_HELP, least=1)
    heads: int = setting(6, HEADS_HELP, least=1)
    kv_heads: int = setting(3, KV_HEADS_HELP, least=1)
    mlp: int = setting(640, MLP_HELP, least=1)
    positions: int = setting(1024, "Longest text, in tokens.", least=1)


def check_shape(shape: ModelShape) -> None:
    """Raises UserError for sizes that no model can have."""
    for flag, size, divisor_flag, divisor in (
        ("--hidden", shape.hidden, "--heads", shape.heads),
        ("--heads", shape.heads, "--kv-heads", shape.kv_heads),
    ):
        if size % divisor:
            raise UserError(
                "shapes_do_not_fit", f"{flag} {size} is no multiple of {divisor_flag} {divisor}; give a multiple"
            )
    if shape.hidden // shape.heads % 2:
        raise UserError(
            "shapes_do_not_fit",
            f"--heads {shape.heads} gives heads of {shape.hidden // shape.heads} numbers; rotary positions need an "
            "even count; give other --heads",
        )


@dataclass(frozen=True)
class DraftStart:
    """What a draft model is before training.

    `init_from` is FROM_TARGET (its embedding, first and last layers, norm and head), FROM_SCRATCH, or the name, folder
    or hub id of a model; empty: FROM_TARGET where the sizes given allow that, else FROM_SCRATCH. Sizes that are None
    are those of the target, but for the layers: DRAFT_LAYERS.
    """

    init_from: str = setting(
        "",
        "Start from layers of the target, from random weights, or from a model with the same tokenizer.  "
        "[default: target, or scratch with other sizes]",
        metavar="target|scratch|MODEL",
    )
    layers: int | None = setting(None, f"{LAYERS_HELP}  [default: 2]", least=1)
    hidden: int | None = setting(None, f"{HIDDEN_HELP}  [default: the target's]", least=1)
    heads: int | None = setting(None, f"{HEADS_HELP}  [default: the target's]", least=1)
    kv_heads: int | None = setting(None, f"{KV_HEADS_HELP}  [default: the target's]", least=1)
    mlp: int | None = setting(None, f"{MLP_HELP}  [default: the target's]", least=1)


FROM_TARGET, FROM_SCRATCH = "target", "scratch"
DRAFT_LAYERS = 2
