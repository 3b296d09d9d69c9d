"""Whole layers of drafters as others publish them, by folder or hub id: config.json and one file of weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from benchctl.decoding.model.families.family import ACTIVATIONS
from benchctl.decoding.model.target import TargetInfo, llama_rotary
from benchctl.decoding.modules.folders import FACTS
from benchctl.decoding.modules.others import CONFIG, EAGLE_WEIGHTS, modules_folder, read_config, weights_file
from benchctl.errors import UserError

COUNTS = ("hidden_size", "vocab_size", "num_attention_heads", "intermediate_size")  # that every layer has
_ROTARY = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")


@dataclass(frozen=True)
class PublishedLayers(ABC):
    """What config.json says: ``top`` is the whole file, ``layer`` the part about the layers.

    error, wanted  id of the error for a folder that holds something else, and what to name instead
    """

    place: str
    top: Mapping[str, Any]
    layer: Mapping[str, Any]
    error: ClassVar[str]
    wanted: ClassVar[str]

    @abstractmethod
    def unsupported(self, target: TargetInfo) -> str | None:
        """Why it does not fit a target with these facts, or None."""

    @abstractmethod
    def read(self, layers: int) -> object:
        """Its weights, for a target of so many layers.

        Raises UserError for weights that are missing, unknown or of other shapes than config.json says, and as `check`.
        """

    @cached_property
    def file(self) -> Path:
        """Of its weights; downloaded where ``place`` is a hub id. Raises UserError where there is none."""
        if (file := weights_file(self.place, EAGLE_WEIGHTS)) is None:
            raise self.wrong(f"lacks {' or '.join(EAGLE_WEIGHTS)}, or the hub cannot be reached")
        return file

    @property
    def width(self) -> int:
        return int(self.layer["hidden_size"])

    @property
    def vocabulary(self) -> int:
        """Tokens of the target that it was made for."""
        return int(self.layer["vocab_size"])

    @property
    def heads(self) -> int:
        return int(self.layer["num_attention_heads"])

    @property
    def kv_heads(self) -> int:
        return int(self.layer.get("num_key_value_heads") or self.heads)

    @property
    def head_dim(self) -> int:
        return int(self.layer.get("head_dim") or self.width // self.heads)

    @property
    def eps(self) -> float:
        return float(self.layer.get("rms_norm_eps", 1e-6))

    @property
    def activation(self) -> str:
        return str(self.layer.get("hidden_act", "silu"))

    def rotary(self, positions: int, like: Tensor) -> Tensor:
        """[positions, head_dim / 2] rotations, see llama_rotary."""
        settings = {name: self.layer[name] for name in _ROTARY if self.layer.get(name)}
        heads = {"hidden_size": self.width, "num_attention_heads": self.heads, "head_dim": self.head_dim}
        return llama_rotary({**settings, **heads}, positions, like)

    def check(self) -> None:
        """Raises UserError for an activation or rotations that are not supported."""
        if self.activation not in ACTIVATIONS:
            raise self.wrong(f"has the activation {self.activation}, which is not supported")
        self.rotary(1, torch.empty(0))

    def refuse_other(self, target: TargetInfo) -> None:
        """Raises UserError for a target that it does not fit."""
        if problem := self.unsupported(target):
            raise UserError("modules_of_other_target", f"{problem}; name one that was made for it")

    def fill(self, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Puts the weights into a module on torch's device "meta". Raises UserError where they do not fit."""
        try:
            module.load_state_dict(weights, assign=True)
        except RuntimeError as error:  # names what is missing, unknown or of another shape
            raise self.wrong(f"does not fit its {CONFIG} ({' '.join(str(error).split())})") from error

    def wrong(self, what: str) -> UserError:
        return UserError(self.error, f"{self.place}: {what}; name {self.wanted}")


def read_top(place: str, kind: str) -> Mapping[str, Any] | None:
    """The config.json of a folder or hub id; None for a folder without one, or of benchctl's modules.

    Raises UserError, which says what ``kind`` of modules it should be of, where it cannot be read.
    """
    if not place or (Path(place) / FACTS).is_file() or not (file := modules_folder(place) / CONFIG).is_file():
        return None
    return read_config(file, kind)


def check_counts(place: str, config: Mapping[str, Any], *names: str) -> None:
    """Raises UserError for one of these ``names`` that is no whole number in ``config``."""
    for name in names:
        if not isinstance(config.get(name), int):
            message = f"{place}: {name} is {config.get(name)!r} in its {CONFIG}; get the folder again"
            raise UserError("file_not_readable", message)


def unsupported_published(published: PublishedLayers | None, target: TargetInfo) -> str | None:
    """`Method.unsupported` of a method with these layers; weights are read too, before the target's are."""
    if published is None:
        return None
    if (problem := published.unsupported(target)) is None:
        published.read(target.layers)
    return problem


def refuse_training_options(method: object, folder: str, *names: str) -> None:
    """Raises UserError for an option of training, of these names, that is given with published modules."""
    for name in names:
        if (value := getattr(method, name)) != getattr(type(method), name):
            message = f"{folder}: {name}={value} has no effect on published modules; leave it out"
            raise UserError("options_of_training", message)
