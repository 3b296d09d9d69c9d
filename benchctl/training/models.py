"""Builds the reference models and writes them as folders that transformers reads."""

from __future__ import annotations

import json
import math
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from benchctl.errors import UserError
from benchctl.training.tokenizer import BOS, END, PAD, save_tokenizer, token_id


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a Llama-like model with tied embeddings."""

    layers: int = 16
    hidden: int = 192
    heads: int = 6
    kv_heads: int = 3
    mlp: int = 640
    positions: int = 1024


TARGET = ModelShape()
DRAFT = ModelShape(layers=2, hidden=128, heads=4, kv_heads=2, mlp=352)


def build_model(shape: ModelShape, tokenizer: Tokenizer, seed: int) -> LlamaForCausalLM:
    """A freshly initialised model; what writes to the residual stream starts smaller the deeper the model is."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(_config(shape, tokenizer))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(1 / math.sqrt(2 * shape.layers))
    return model


def empty_model(folder: Path) -> LlamaForCausalLM:
    """A model of the shape in the folder's config.json, with weights of no meaning."""
    return LlamaForCausalLM(LlamaConfig.from_pretrained(folder))


def _config(shape: ModelShape, tokenizer: Tokenizer) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=True,
        bos_token_id=token_id(tokenizer, BOS),
        eos_token_id=token_id(tokenizer, END),
        pad_token_id=token_id(tokenizer, PAD),
    )


def load_model(folder: Path) -> LlamaForCausalLM:
    """The model of a folder in float32. Raises UserError when there is none."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: no config.json; train a model into this folder first")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert isinstance(model, LlamaForCausalLM)
    return model


def save_model(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes bfloat16 safetensors, the configurations and the tokenizer; `model` itself stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: parameter.detach().to(torch.bfloat16) for name, parameter in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = copy(model.config)
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, positions=int(model.config.max_position_embeddings))
    ends = {
        "bos_token_id": token_id(tokenizer, BOS),
        "eos_token_id": token_id(tokenizer, END),
        "pad_token_id": token_id(tokenizer, PAD),
    }
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")


def parameter_count(module: nn.Module) -> int:
    """Parameters, tied ones once."""
    return sum(parameter.numel() for parameter in module.parameters())
