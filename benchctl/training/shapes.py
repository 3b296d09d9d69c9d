"""The sizes of the reference models, apart from the code that builds them: the command line reads its defaults here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchctl.errors import UserError


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model with tied embeddings: Llama's layout, or OLMoE's where there are experts.

    `mlp` is the width of the MLP, or of each expert; `experts_per_token` of the `experts` answer each token.
    """

    layers: int = 16
    hidden: int = 192
    heads: int = 6
    kv_heads: int = 3
    mlp: int = 640
    positions: int = 1024
    experts: int = 0
    experts_per_token: int = 2


def check_shape(shape: ModelShape) -> None:
    """Raises UserError for sizes that no model can have."""
    for whole, part in (("hidden", "heads"), ("heads", "kv_heads")):
        if getattr(shape, whole) % getattr(shape, part):
            names = [f"--{name.replace('_', '-')} {getattr(shape, name)}" for name in (whole, part)]
            raise UserError(f"{names[0]} is no multiple of {names[1]}; give one that is")
    if shape.hidden // shape.heads % 2:
        raise UserError(f"heads of {shape.hidden // shape.heads} are odd, and positions turn pairs; give other --heads")
    if shape.experts and shape.experts_per_token > shape.experts:
        raise UserError(f"--experts-per-token {shape.experts_per_token} is more than --experts {shape.experts}")


TARGET = ModelShape()
MOE = ModelShape(layers=8, mlp=128, experts=16)


@dataclass(frozen=True)
class DraftStart:
    """What a draft model is before training.

    `init_from` is FROM_TARGET (its embedding, first and last layers, norm and head), FROM_SCRATCH, or the name, folder
    or hub id of a model; empty: FROM_TARGET where the sizes given allow that, else FROM_SCRATCH. Sizes that are None
    are those of the target, but for the layers: DRAFT_LAYERS.
    """

    init_from: str = ""
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    mlp: int | None = None


FROM_TARGET, FROM_SCRATCH = "target", "scratch"
MoeStart = Literal["", "model", "scratch"]
DRAFT_LAYERS = 2
