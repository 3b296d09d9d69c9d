"""DFlash's drafters as z-lab publishes them (z-lab/*-DFlash*), by folder or hub id: config.json and model.safetensors.

The configuration is Qwen3's, with block_size, num_target_layers and dflash_config: mask_token_id, and target_layer_ids,
whose states are those behind layer id + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.others import read_weights
from benchctl.decoding.modules.published_layers import COUNTS, PublishedLayers, check_counts, read_top
from benchctl.errors import UserError

from .layers import DflashModule, Sizes, default_taps


@dataclass(frozen=True)
class Published(PublishedLayers):
    """A drafter; its configuration has no separate part about the layers."""

    error = "not_a_dflash_drafter"
    wanted = "a whole folder in z-lab's format"

    def taps(self, layers: int) -> tuple[int, ...]:
        """Layers of a target of so many that it reads the states of, in its own order."""
        ids = self.top["dflash_config"].get("target_layer_ids")
        return tuple(int(index) + 1 for index in ids) if ids else default_taps(layers, self.top["num_hidden_layers"])

    @property
    def block_tokens(self) -> int:
        """Tokens of a block, without the row of the last token of the text."""
        return int(self.top["block_size"]) - 1

    def unsupported(self, target: TargetInfo) -> str | None:
        """The authors' last state is a normed one: refused."""
        made = (self.width, self.vocabulary, self.top.get("num_target_layers", target.layers))
        facts = (target.hidden_size, target.vocabulary, target.layers)
        if made != facts or not all(0 <= tap < target.layers for tap in self.taps(target.layers)):
            sizes = "width {}, {} tokens and {} layers"
            taps = f"states after layers {self.taps(target.layers)}"
            has = f"{sizes.format(*made)}, and reads {taps}, but the target has {sizes.format(*facts)}"
            return f"{self.place} was made for {has}"
        return None

    def load(self, target: Target) -> Parts:
        """Its weights, where and as the target is. Raises UserError for another target, and as `read` does."""
        self.refuse_other(target.info)
        module = self.read(target.layers).to(target.device, target.dtype).requires_grad_(False)
        mask = target.embed_anywhere([self.top["dflash_config"]["mask_token_id"]])[0]
        like = target.embedding.new_empty(0, dtype=target.dtype)
        return Parts(module, mask, self.rotary(target.context_tokens, like))

    def read(self, layers: int) -> DflashModule:
        """Also raises UserError for a mask token that the target does not have."""
        self.check()
        top, token = self.top, self.top["dflash_config"].get("mask_token_id")
        if not isinstance(token, int) or not 0 <= token < self.vocabulary:
            raise self.wrong(f"has the mask token {token}, which is not one of the target's")
        count, window = top["num_hidden_layers"], top.get("sliding_window")
        kinds = top.get("layer_types") or ["full_attention"] * count
        sizes = Sizes(
            hidden_size=self.width,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate_size=top["intermediate_size"],
            taps=len(self.taps(layers)),
            windows=tuple(window if kind == "sliding_attention" else None for kind in kinds[:count]),
            eps=self.eps,
            bias=bool(top.get("attention_bias", False)),
            own_mask=False,
            hidden_act=self.activation,
        )
        with torch.device("meta"):
            module = DflashModule(sizes)
        self.fill(module, read_weights(self.file))
        return module


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
    if (top := read_top(place, "a drafter of DFlash's")) is None:
        return None
    check_counts(place, top, *COUNTS, "num_hidden_layers", "block_size")
    if not isinstance(top.get("dflash_config"), dict):
        raise UserError("not_a_dflash_drafter", f"{place}: has no dflash_config; name a whole folder in z-lab's format")
    return Published(place, top, top)
