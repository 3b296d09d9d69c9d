"""Folders of modules as others publish them, and weights for them that something is wrong with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from runs import VOCABULARY
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

Weights = dict[str, Tensor]
Change = Callable[[Weights], Weights]
WIDTH, MLP, HEADS, KV_HEADS = 32, 40, 4, 2
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-3,
    "rope_theta": 300.0,
    "max_position_embeddings": 16,  # fewer than the texts have: rotations follow from theta
}


def drawing() -> Callable[..., Tensor]:
    """What draws weights of a shape."""
    noise = torch.Generator().manual_seed(7)
    return lambda *shape: torch.randn(*shape, generator=noise) / shape[-1] ** 0.5


def rotary(**settings: Any) -> LlamaRotaryEmbedding:
    """Rotations of SIZES."""
    settings = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "rope_theta": 300.0, **settings}
    return LlamaRotaryEmbedding(LlamaConfig(**settings))


def folder_of(place: Path, weights: Weights, config: Mapping[str, Any], file: str = "model.safetensors") -> str:
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file({name: weight.contiguous() for name, weight in weights.items()}, place / file)
    else:
        torch.save(weights, place / file)
    return str(place)


def without(*names: str) -> Change:
    return lambda weights: {name: weight for name, weight in weights.items() if name not in names}


def changed(name: str, weight: Tensor) -> Change:
    return lambda weights: {**weights, name: weight}
