"""Small random models as transformers builds them, made in memory from a seed."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}

# Settings of the two kinds every method is held to; heads * head_dim differs from hidden_size, as in published models.
LLAMA: dict[str, Any] = {"head_dim": 16}
MIXTRAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 24}


def random_config(family: str, **settings: Any) -> Any:
    """Configuration of a tiny model of a family of transformers; ``settings`` are fields of its config."""
    return CONFIG_MAPPING[family](**{**_COMMON, **settings})


def random_model(config: Any, seed: int, dtype: torch.dtype) -> Any:
    """A random transformers model, with every gain and bias away from its initial 1 or 0 so that none can be lost."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # The other implementations of experts refuse float64.
        options = {"attn_implementation": "sdpa", "experts_implementation": "eager"}
        model = AutoModelForCausalLM.from_config(config, **options)  # type: ignore[no-untyped-call]
        _roughen(model)
    return model.to(dtype).eval()


@torch.no_grad()
def _roughen(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.add_(torch.empty_like(parameter).uniform_(-0.5, 0.5))
        elif name.endswith("bias"):
            parameter.normal_(0.0, 0.3)
    if model.config.tie_word_embeddings:
        # A residual that stays close to its token's embedding makes a tied head repeat that token for ever.
        scale = float(getattr(model.model.embed_tokens, "scalar_embed_scale", 1.0))
        offset = 1.0 if model.config.model_type == "gemma" else 0.0  # its gain is 1 + w
        model.model.embed_tokens.weight.mul_(0.1 / scale)
        model.model.norm.weight.add_(offset).mul_(10.0 * scale).sub_(offset)
