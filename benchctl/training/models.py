"""Builds models to train, whole or from the layers of a target, and writes them as folders that transformers reads."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, OlmoeConfig, PreTrainedModel

from benchctl.training.shapes import ModelShape
from benchctl.training.tokenizer import BOS, END, PAD, token_id

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


SHARED = (  # what a layer of a mixture of experts has in common with a dense one
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{letter}_proj" for letter in "qkvo"),
)


@dataclass(frozen=True)
class TokenIds:
    """What a model must know of its tokenizer: the number of ids and the special ones, None where it has none."""

    vocabulary: int
    bos: int | None
    end: int | list[int] | None
    pad: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenIds:
        """Those of a tokenizer that `benchctl train target` made."""
        return cls(tokenizer.get_vocab_size(), *(token_id(tokenizer, token) for token in (BOS, END, PAD)))

    @classmethod
    def of_config(cls, config: Any) -> TokenIds:
        """Those of another model."""
        return cls(config.vocab_size, config.bos_token_id, config.eos_token_id, config.pad_token_id)


def build_model(shape: ModelShape, ids: TokenIds, seed: int) -> PreTrainedModel:
    """A freshly initialised model; what writes to the residual stream starts smaller the deeper the model is."""
    torch.manual_seed(seed)
    model = _from_config(_olmoe(shape, ids) if shape.experts else _llama(shape, ids))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.removesuffix(".weight").endswith(("o_proj", "down_proj")):
                parameter.mul_(1 / math.sqrt(2 * shape.layers))
    return model


def build_from_target(target: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """A model of these layers of the target, in this order, with its embedding, final norm and head: all copied."""
    settings = target.config.to_dict()
    settings["num_hidden_layers"] = len(layers)
    if settings.get("layer_types"):
        settings["layer_types"] = [settings["layer_types"][layer] for layer in layers]
    model = _from_config(type(target.config).from_dict(settings))
    source: Any = target
    own: Any = model
    own.base_model.embed_tokens.load_state_dict(source.base_model.embed_tokens.state_dict())
    own.base_model.norm.load_state_dict(source.base_model.norm.state_dict())
    for place, layer in enumerate(layers):
        own.base_model.layers[place].load_state_dict(source.base_model.layers[layer].state_dict())
    own.get_output_embeddings().load_state_dict(source.get_output_embeddings().state_dict())
    return model


def can_take_over(shape: ModelShape, config: Any) -> bool:
    """Whether a model of this shape can begin with the embedding and the attention of one of this configuration."""
    own = (shape.hidden, shape.heads, shape.kv_heads, shape.hidden // shape.heads)
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    same = own == (config.hidden_size, heads, getattr(config, "num_key_value_heads", heads), width)
    return bool(same and shape.layers <= config.num_hidden_layers and config.model_type == "llama")


def take_over(model: PreTrainedModel, dense: PreTrainedModel) -> None:
    """Copies all that a mixture of experts has in common with a dense model: embedding, norms and attention.

    Its layers take those of layers spread evenly over the dense one. Sparse upcycling (Komatsuzaki et al., 2022,
    arXiv:2212.05055) also makes every expert a copy of the MLP; experts here are narrower and begin at random.
    """
    own: Any = model.base_model
    source: Any = dense.base_model
    own.embed_tokens.load_state_dict(source.embed_tokens.state_dict())
    own.norm.load_state_dict(source.norm.state_dict())
    for place, layer in enumerate(spread(len(own.layers), len(source.layers))):
        for name in SHARED:
            part = own.layers[place].get_submodule(name)
            part.load_state_dict(source.layers[layer].get_submodule(name).state_dict())


def spread(count: int, of: int) -> list[int]:
    """`count` of the numbers below `of`, evenly spread, both ends among them: spread(3, 9) is [0, 4, 8]."""
    return [round(place * (of - 1) / max(count - 1, 1)) for place in range(count)]


def empty_model(folder: Path) -> PreTrainedModel:
    """A model of the shape in the folder's config.json, with weights of no meaning."""
    return _from_config(AutoConfig.from_pretrained(folder))


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Writes bfloat16 safetensors and the configurations; `model` itself stays as it is."""
    save_config(model, folder)
    weights = {name: parameter.detach().cpu().to(torch.bfloat16) for name, parameter in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def save_config(model: PreTrainedModel, folder: Path) -> None:
    """Writes the configurations that go with weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    config = copy(model.config)
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    ids = TokenIds.of_config(model.config)
    ends = {"bos_token_id": ids.bos, "eos_token_id": ids.end, "pad_token_id": ids.pad}
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
    """In float32 whatever the configuration says its weights were stored in: trained weights are kept wide.

    Experts are left to transformers, whose first choice is `grouped_mm`: measured here on a CPU, forward and backward,
    a tenth faster than `eager` and thirty times faster than `batched_mm`.
    """
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32, attn_implementation="sdpa"
    )
    assert isinstance(model, PreTrainedModel)
    return model


def _llama(shape: ModelShape, ids: TokenIds) -> LlamaConfig:
    return LlamaConfig(intermediate_size=shape.mlp, **_common(shape, ids))


def _olmoe(shape: ModelShape, ids: TokenIds) -> OlmoeConfig:
    """As OLMoE-1B-7B (Muennighoff et al., 2024, arXiv:2409.02060) but for the sizes and the tied embeddings.

    `norm_topk_prob` stays False as there: the weights of the chosen experts are not rescaled to add up to 1, so the
    router also learns how much all of them together are to say.
    """
    return OlmoeConfig(
        intermediate_size=shape.mlp,
        num_experts=shape.experts,
        num_experts_per_tok=shape.experts_per_token,
        norm_topk_prob=False,
        **_common(shape, ids),
    )


def _common(shape: ModelShape, ids: TokenIds) -> dict[str, Any]:
    return {
        "vocab_size": ids.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.positions,
        "tie_word_embeddings": True,
        "bos_token_id": ids.bos,
        "eos_token_id": ids.end,
        "pad_token_id": ids.pad,
    }
