"""DFlash's drafters as z-lab publishes them (z-lab/*-DFlash*), by folder or hub id: config.json and model.safetensors.

The configuration is Qwen3's, with block_size, num_target_layers and dflash_config: mask_token_id, and target_layer_ids,
whose states are those behind layer id + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchctl.decoding.model.families import ACTIVATIONS
from benchctl.decoding.model.target import Target, TargetInfo, llama_rotary
from benchctl.decoding.modules.others import (
    CONFIG,
    EAGLE_WEIGHTS,
    modules_folder,
    read_config,
    read_weights,
    weights_file,
)
from benchctl.decoding.modules.trainable import FACTS
from benchctl.errors import UserError

from .layers import DflashModule, Sizes, default_taps

_ROTARY = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")
_COUNTS = (
    *("hidden_size", "vocab_size", "num_attention_heads", "intermediate_size", "num_hidden_layers", "block_size"),
)


@dataclass(frozen=True)
class Published:
    """A folder's config.json."""

    place: str
    top: Mapping[str, Any]

    def taps(self, layers: int) -> tuple[int, ...]:
        """Layers of a target of so many that it reads the states of, in its own order."""
        ids = self.top["dflash_config"].get("target_layer_ids")
        return tuple(int(index) + 1 for index in ids) if ids else default_taps(layers, self.top["num_hidden_layers"])

    @property
    def block_tokens(self) -> int:
        """Tokens of a block, without the row of the last token of the text."""
        return int(self.top["block_size"]) - 1

    def unsupported(self, target: TargetInfo) -> str | None:
        """Why it does not fit a target with these facts, or None. The authors' last state is a normed one: refused."""
        made = (self.top["hidden_size"], self.top["vocab_size"], self.top.get("num_target_layers", target.layers))
        facts = (target.hidden_size, target.vocabulary, target.layers)
        if made != facts or not all(0 <= tap < target.layers for tap in self.taps(target.layers)):
            sizes = "width {}, {} tokens and {} layers"
            taps = f"states after layers {self.taps(target.layers)}"
            has = f"{sizes.format(*made)}, and reads {taps}, but the target has {sizes.format(*facts)}"
            return f"{self.place} was made for {has}"
        return None

    def load(self, target: Target) -> Parts:
        """Its weights, where and as the target is. Raises UserError for another target, and as `read` does."""
        if problem := self.unsupported(target.info):
            raise UserError("modules_of_other_target", f"{problem}; name a drafter that was made for it")
        module = self.read(target.layers).to(target.device, target.dtype).requires_grad_(False)
        mask = target.embed([self.top["dflash_config"]["mask_token_id"]])[0]
        like = target.embedding.new_empty(0, dtype=target.dtype)
        return Parts(module, mask, self._rotary(target.context_tokens, like))

    def read(self, layers: int) -> DflashModule:
        """Its weights, for a target of so many layers.

        Raises UserError for weights that are missing, unknown or of other shapes than config.json says, and for an
        activation, a mask token or rotations that are not supported.
        """
        top, act = self.top, str(self.top.get("hidden_act", "silu"))
        token = top["dflash_config"].get("mask_token_id")
        if not isinstance(token, int) or not 0 <= token < top["vocab_size"]:
            raise self._wrong(f"has the mask token {token}, which is not one of the target's")
        if act not in ACTIVATIONS:
            raise self._wrong(f"has the activation {act}, which is not supported")
        self._rotary(1, torch.empty(0))
        count, window = top["num_hidden_layers"], top.get("sliding_window")
        kinds = top.get("layer_types") or ["full_attention"] * count
        sizes = Sizes(
            hidden_size=top["hidden_size"],
            num_attention_heads=top["num_attention_heads"],
            num_key_value_heads=int(top.get("num_key_value_heads") or top["num_attention_heads"]),
            head_dim=self._head_dim,
            intermediate_size=top["intermediate_size"],
            taps=len(self.taps(layers)),
            windows=tuple(window if kind == "sliding_attention" else None for kind in kinds[:count]),
            eps=float(top.get("rms_norm_eps", 1e-6)),
            bias=bool(top.get("attention_bias", False)),
            own_mask=False,
            hidden_act=act,
        )
        with torch.device("meta"):
            module = DflashModule(sizes)
        try:
            module.load_state_dict(read_weights(self.file), assign=True)
        except RuntimeError as error:  # names what is missing, unknown or of another shape
            raise self._wrong(f"does not fit its {CONFIG} ({' '.join(str(error).split())})") from error
        return module

    @cached_property
    def file(self) -> Path:
        """Of its weights; downloaded where ``place`` is a hub id. Raises UserError where there is none."""
        if (file := weights_file(self.place, EAGLE_WEIGHTS)) is None:
            raise self._wrong(f"lacks {' or '.join(EAGLE_WEIGHTS)}, or the hub cannot be reached")
        return file

    @property
    def _head_dim(self) -> int:
        return int(self.top.get("head_dim") or self.top["hidden_size"] // self.top["num_attention_heads"])

    def _rotary(self, positions: int, like: Tensor) -> Tensor:
        settings = {name: self.top[name] for name in _ROTARY if self.top.get(name)}
        heads = {"hidden_size": self.top["hidden_size"], "num_attention_heads": self.top["num_attention_heads"]}
        return llama_rotary({**settings, **heads, "head_dim": self._head_dim}, positions, like)

    def _wrong(self, what: str) -> UserError:
        return UserError("not_a_dflash_drafter", f"{self.place}: {what}; name a whole folder in z-lab's format")


@dataclass(frozen=True, eq=False)
class Parts:
    """``mask`` [width] is the embedding of the mask token, ``rotary`` [positions, head_dim / 2] its rotations."""

    module: DflashModule
    mask: Tensor
    rotary: Tensor


@cache
def read_published(place: str) -> Published | None:
    """What a folder or hub id holds, by its config.json alone; None for a folder without one, or of benchctl's modules.

    Raises UserError where config.json cannot be read, is of another kind, or lacks what every drafter has.
    """
    if not place or (Path(place) / FACTS).is_file() or not (file := modules_folder(place) / CONFIG).is_file():
        return None
    top = read_config(file, "a drafter of DFlash's")
    counts = {name: top.get(name) for name in _COUNTS}
    if missing := [name for name, count in counts.items() if not isinstance(count, int)]:
        raise UserError("file_not_readable", f"{file}: lacks {', '.join(missing)}; get the folder again")
    if not isinstance(top.get("dflash_config"), dict):
        raise UserError("not_a_dflash_drafter", f"{file}: has no dflash_config; name a whole folder in z-lab's format")
    return Published(place, top)
