"""Builds models to train, fresh or from layers of a target, and writes them as folders that transformers reads."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from benchctl.decoding.model.families import family_of
from benchctl.training.train_options import ModelShape

TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


def token_settings(config: Any) -> dict[str, Any]:
    """What the configuration of a model says of its tokenizer: the number of ids and the special ones."""
    names = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
    return {name: getattr(config, name) for name in names}


def build_model(config: Any, seed: int) -> PreTrainedModel:
    """A model with fresh weights. What writes to the residual starts smaller the deeper the model is."""
    torch.manual_seed(seed)
    model = _from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.removesuffix(".weight").endswith(("o_proj", "down_proj")):
                parameter.mul_(1 / math.sqrt(2 * config.num_hidden_layers))
    return model


def build_from_target(target: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """A model of these layers of the target, in this order, with its embedding, final norm and head: all copied."""
    settings = target.config.to_dict()
    settings["num_hidden_layers"] = len(layers)
    for by_layer in ("layer_types", "no_rope_layers"):
        if settings.get(by_layer):
            settings[by_layer] = [settings[by_layer][layer] for layer in layers]
    if settings.get("mlp_only_layers") is not None:  # indices of layers, which change
        family = family_of(target.config)
        dense = [index for index, layer in enumerate(layers) if not family.has_experts(target.config, layer)]
        settings |= {"mlp_only_layers": dense, "decoder_sparse_step": 1}
    model = _from_config(type(target.config).from_dict(settings))
    source, copied = family_of(target.config).stack(target), family_of(target.config).stack(model)
    inside = next(name for name, module in target.named_modules() if module is source)
    around = {name: weight for name, weight in target.state_dict().items() if not name.startswith(f"{inside}.")}
    model.load_state_dict(around, strict=False)
    for index, layer in enumerate(layers):
        copied[index].load_state_dict(source[layer].state_dict())
    return model


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Writes bfloat16 safetensors and the configurations; `model` itself stays as it is."""
    save_config(model, folder)
    weights = {name: parameter.detach().cpu().to(torch.bfloat16) for name, parameter in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def round_as_saved(model: PreTrainedModel) -> None:
    """Its weights become those that `save_model` writes, so that figures are of the saved model."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(torch.bfloat16))


def save_config(model: PreTrainedModel, folder: Path) -> None:
    """Writes the configurations that go with weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    config = copy(model.config)
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    ends = {name: id for name, id in token_settings(model.config).items() if name != "vocab_size"}
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copies the tokenizer of one model folder into another."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def parameter_count(module: nn.Module) -> int:
    """Parameters, tied ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def _from_config(config: Any) -> PreTrainedModel:
    """In float32 whatever the configuration says its weights were stored in: trained weights are kept wide."""
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32, attn_implementation=family_of(config).training_attention
    )
    assert isinstance(model, PreTrainedModel)
    return model


def llama_config(shape: ModelShape, tokens: dict[str, Any]) -> LlamaConfig:
    """Llama's layout with tied embeddings."""
    return LlamaConfig(**common_settings(shape), **tokens)


def common_settings(shape: ModelShape) -> dict[str, Any]:
    """What a configuration of any layout takes from a shape."""
    return {
        "intermediate_size": shape.mlp,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.positions,
        "tie_word_embeddings": True,
    }
