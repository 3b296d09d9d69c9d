"""EAGLE's layers in the three formats in which they are published, by folder or hub id.

eagle        SafeAILab's of EAGLE and EAGLE-2, version 1 (yuhuili/EAGLE-*): a plain Llama configuration
eagle3       SafeAILab's and SpecForge's of version 3 (yuhuili/EAGLE3-*, lmsys/SGLang-EAGLE3-*): draft_vocab_size
speculators  RedHatAI/*-speculator.eagle3: speculators_model_type, and the layer's configuration inside

Only widths and the vocabulary show which target they were made for. Two keys have two meanings:
norm_output        SpecForge: the LM head reads normed states (true, also where it is missing); speculators: rows read
                   the normed state before them (false where it is missing)
aux layer ids      at the top, layers that have run; inside eagle_config (SpecForge), the layer whose output it is
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.others import read_weights
from benchctl.decoding.modules.published_layers import COUNTS, PublishedLayers, check_counts, read_top
from benchctl.errors import UserError

from .head import EagleModule, LayerConfig, Sizes, Traits, default_taps


@dataclass(frozen=True)
class Published(PublishedLayers):
    """A layer; ``kind`` is its format."""

    kind: str
    error = "not_an_eagle_layer"
    wanted = "a folder of a whole layer of EAGLE's"

    @property
    def version(self) -> str:
        if self.kind == "eagle":
            return "1"
        return "3.1" if self._feeds_normed and self.top.get("fc_norm", False) else "3"

    @property
    def _feeds_normed(self) -> bool:
        return self.kind == "speculators" and bool(self.top.get("norm_output", False))

    def taps(self, layers: int) -> tuple[int, ...]:
        """Layers of a target of so many that it reads the states of, in its own order."""
        if self.kind == "eagle":
            return (layers,)
        if ids := self.top.get("eagle_aux_hidden_state_layer_ids"):
            return tuple(map(int, ids))
        inner = (self.top.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
        return tuple(int(index) + 1 for index in inner) if inner else default_taps(layers)

    def unsupported(self, target: TargetInfo) -> str | None:
        folder, taps = self.place, self.taps(target.layers)
        if self.top.get("target_hidden_size") not in (None, self.width):
            return f"{folder} has another width than the target it was made for, which is not supported"
        if (self.width, self.vocabulary) != (target.hidden_size, target.vocabulary):
            made = f"{folder} was made for width {self.width} and {self.vocabulary} tokens"
            return f"{made}, but the target has width {target.hidden_size} and {target.vocabulary} tokens"
        if not all(0 <= tap <= target.layers for tap in taps):
            return f"{folder} reads states after layers {taps}, but the target has {target.layers}"
        return None

    def load(self, target: Target) -> tuple[EagleModule, Traits, Tensor | None]:
        """Module, traits and ids of `read`, where and as the target is. Raises UserError for another target too."""
        self.refuse_other(target.info)
        module, embedding, ids = self.read(target.layers)
        like = target.embedding.new_empty(0, dtype=target.dtype)
        traits = Traits(
            layer=LayerConfig(self.width, self.heads, self.kv_heads, self.head_dim, self.activation),
            taps=self.taps(target.layers),
            rotary=self.rotary(target.context_tokens, like),
            feeds_normed=self._feeds_normed,
            norms_residual=self.kind == "speculators" and bool(self.top.get("norm_before_residual", False)),
            bare_head=self.kind == "eagle3" and not self.top.get("norm_output", True),
            embedding=None if embedding is None else embedding.to(target.device, target.dtype),
        )
        return module.to(target.device, target.dtype).requires_grad_(False), traits, ids

    def read(self, layers: int) -> Parts:
        self.check()
        found = {re.sub(r"^layers\.0\.", "midlayer.", name): weight for name, weight in read_weights(self.file).items()}
        embedding = found.pop("embed_tokens.weight", None)
        to_target, to_draft = found.pop("d2t", None), found.pop("t2d", None)
        if embedding is not None and list(embedding.shape) != [self.vocabulary, self.width]:
            raise self.wrong(f"has an embedding of shape {list(embedding.shape)}")
        fused = self.kind != "eagle"
        tokens = int(self.top["draft_vocab_size"]) if fused else 0
        sizes = Sizes(
            width=self.width,
            query=self.heads * self.head_dim,
            kv=self.kv_heads * self.head_dim,
            mlp=int(self.layer["intermediate_size"]),
            taps=len(self.taps(layers)) if fused else 0,
            tokens=tokens,
            tap_norms=fused and bool(self.top.get("fc_norm", False)),
            input_norm=fused and bool(self.top.get("norm_before_fc", False)),
            head_norm=self.head_dim if "midlayer.self_attn.q_norm.weight" in found else 0,
            biases=self._biases(found),
            eps=self.eps,
        )
        with torch.device("meta"):
            module = EagleModule(sizes)
        self.fill(module, found)
        return Parts(module, embedding, self._ids(tokens, to_target, to_draft) if fused else None)

    def _biases(self, found: Iterable[str]) -> tuple[str, ...]:
        if self.kind != "eagle":
            return tuple(name.split(".")[-2] for name in found if name.endswith(".bias"))
        attention = ("q_proj", "k_proj", "v_proj") if self.top.get("qkv_bias", False) else ()
        return ("fc", *attention) if self.top.get("bias", True) else attention

    def _ids(self, tokens: int, to_target: Tensor | None, to_draft: Tensor | None) -> Tensor | None:
        """[tokens] the target's ids behind the logits; None for all. d2t holds differences, t2d marks the ids."""
        if tokens == self.vocabulary:
            if to_target is not None and bool(to_target.any()):
                raise self.wrong("scores all tokens, but has a d2t that is not zero")
            return None
        if to_target is None:
            raise self.wrong(f"scores {tokens} of {self.vocabulary} tokens, but lacks d2t, which says which")
        ids = torch.arange(len(to_target)) + to_target.long()
        marked = None if to_draft is None else to_draft.nonzero()[:, 0].tolist()
        if (
            len(ids) != tokens
            or not 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary
            or len(set(ids.tolist())) != tokens
            or marked not in (None, sorted(ids.tolist()))
        ):
            raise self.wrong(f"has a d2t of {len(ids)} entries that does not say which {tokens} tokens it scores")
        return ids


class Parts(NamedTuple):
    """``embedding`` [vocabulary, width], where it has one; ``ids`` [k] the target's behind its logits, None for all."""

    module: EagleModule
    embedding: Tensor | None
    ids: Tensor | None


@cache
def read_published(place: str) -> Published | None:
    """What a folder or hub id holds, by its config.json alone; None for a folder without one, or of benchctl's modules.

    Raises UserError where config.json cannot be read or lacks what every layer has.
    """
    if (top := read_top(place, "a layer of EAGLE's")) is None:
        return None
    layer, kind = top, "eagle3" if "draft_vocab_size" in top else "eagle"
    if "speculators_model_type" in top:
        kind, layer = "speculators", top.get("transformer_layer_config") or {}
        if top["speculators_model_type"] != "eagle3":
            message = f"{place}: holds a {top['speculators_model_type']} of speculators, not an eagle3"
            raise UserError("not_an_eagle_layer", f"{message}; name a folder of an eagle3")
    check_counts(place, layer, *COUNTS)
    if kind != "eagle":
        check_counts(place, top, "draft_vocab_size")
    return Published(place, top, layer, kind)
